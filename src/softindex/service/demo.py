"""The catalogue of `softindex serve --demo`: things with a colour and a material, near those that resemble them."""

from __future__ import annotations

import numpy as np

from softindex.builder import build
from softindex.index import Index
from softindex.records import Doubles

__all__ = ["demo_index"]

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
WEIGHTS = {"group": 0.5, "thing": 0.7, "material": 0.35, "colour": 0.3, "noise": 0.15}
"""Lengths of the parts of a vector: things of a kind are near each other, then those of the same material."""


def demo_index(seed: int = 0) -> Index:
    """An index of about 32,000 named items; the same on every machine."""
    rng = np.random.default_rng(seed)

    def directions(count: int) -> Doubles:
        drawn: Doubles = rng.standard_normal((count, D))
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        return drawn

    colours, materials = COLOURS.split(","), MATERIALS.split(",")
    things = [(group, thing) for group, listed in enumerate(THINGS.values()) for thing in listed.split(",")]
    groups = directions(len(THINGS))[[group for group, _ in things]]
    kinds = WEIGHTS["group"] * groups + WEIGHTS["thing"] * directions(len(things))
    shades = WEIGHTS["colour"] * directions(len(colours))
    stuffs = WEIGHTS["material"] * directions(len(materials))
    vectors = (shades[:, None, None] + stuffs[None, :, None] + kinds[None, None]).reshape(-1, D)
    vectors = vectors + WEIGHTS["noise"] * directions(len(vectors))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = [f"{colour} {stuff} {thing}" for colour in colours for stuff in materials for _, thing in things]
    return build(vectors.astype(np.float32), ids=names, codes=True, seed=seed)
