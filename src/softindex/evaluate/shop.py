"""A shop to try things on: items with a colour, a material and a name, near those that resemble them."""

from __future__ import annotations

import numpy as np

from softindex.arguments import check_count, check_seed
from softindex.errors import InputError
from softindex.records import Doubles, Floats, Integers

__all__ = ["shop"]

STYLES = ("", "antique", "folding", "large", "round", "striped", "tiny")
COLOURS = "amber,azure,black,blue,bronze,copper,coral,cream,crimson,emerald,golden,green,grey,indigo,ivory,lilac,"
COLOURS += "mint,ochre,olive,orange,pink,plum,purple,red,rose,scarlet,silver,teal,violet,white,yellow"
MATERIALS = "bamboo,brass,ceramic,cork,cotton,felt,glass,iron,leather,linen,marble,oak,paper,pine,silk,slate,steel,"
MATERIALS += "stone,wool,walnut"
THINGS = {
    "kitchen": "bowl,cup,jug,kettle,ladle,mug,pan,plate,spoon,teapot,tray",
    "furniture": "armchair,bench,bookcase,cabinet,chair,desk,sofa,stool,table,wardrobe",
    "light": "candle,chandelier,lamp,lantern,lampshade",
    "clothes": "belt,cap,coat,glove,jacket,scarf,shirt,shoe,sock,sweater",
    "travel": "backpack,bag,purse,suitcase,wallet",
    "garden": "basket,birdhouse,flowerpot,hammock,trellis,vase",
    "play": "ball,doll,kite,puzzle,train",
}
D = 64
WEIGHTS = {"group": 0.5, "thing": 0.7, "material": 0.35, "colour": 0.3, "style": 0.25, "noise": 0.6}
"""Lengths of the parts of a vector: things of a kind are near each other, then those of the same material."""
MOST = 10_000_000


def shop(items: int, *, seed: int = 0) -> tuple[list[str], Floats]:
    """Names and vectors of a made-up shop: "striped amber oak table" is near "striped teal oak table".

    Args:
        items: Number of items, 10,000,000 at most.  Up to 32,240 have a colour and a material, more also have a style,
            and above 225,680 a number.
        seed: The same seed gives the same items on every machine.

    Returns:
        `items` different names, and vectors (items, 64) float32 of length one, in random order.
    """
    if check_count(items, "items") > MOST:
        raise InputError(f"items is {items}; expected at most {MOST}.")
    rng = np.random.default_rng(check_seed(seed))
    colours, materials = COLOURS.split(","), MATERIALS.split(",")
    things = [(group, thing) for group, listed in enumerate(THINGS.values()) for thing in listed.split(",")]
    plain = len(colours) * len(materials) * len(things)
    styles = min(len(STYLES), -(-items // plain))
    series = -(-items // (plain * styles))
    kinds = WEIGHTS["group"] * _directions(rng, len(THINGS))[[group for group, _ in things]]
    kinds += WEIGHTS["thing"] * _directions(rng, len(things))
    parts = [kinds]
    for name, count in (("material", len(materials)), ("colour", len(colours)), ("style", len(STYLES))):
        parts.append(WEIGHTS[name] * _directions(rng, count))
    numbers = rng.choice(plain * styles * series, items, replace=False)
    digits = np.unravel_index(numbers, (series, styles, len(colours), len(materials), len(things)))
    made, style, colour, material, thing = digits
    words = zip(made.tolist(), style.tolist(), colour.tolist(), material.tolist(), thing.tolist(), strict=True)
    names = [_name(STYLES[s], colours[c], materials[m], things[t][1], number) for number, s, c, m, t in words]
    return names, _vectors(rng, parts, (thing, material, colour, style))


def _directions(rng: np.random.Generator, count: int) -> Doubles:
    drawn: Doubles = rng.standard_normal((count, D))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


def _name(style: str, colour: str, material: str, thing: str, number: int) -> str:
    words = f"{colour} {material} {thing}" + (f" {number + 1}" if number else "")
    return f"{style} {words}" if style else words


def _vectors(rng: np.random.Generator, parts: list[Doubles], chosen: tuple[Integers, ...]) -> Floats:
    """The sum of the chosen row of each part and some noise, with length one: (n, d) float32."""
    noise = rng.standard_normal((len(chosen[0]), D), dtype=np.float32)
    noise *= WEIGHTS["noise"] / np.linalg.norm(noise, axis=1, keepdims=True)
    for part, rows in zip(parts, chosen, strict=True):
        noise += part.astype(np.float32)[rows]
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    return noise
