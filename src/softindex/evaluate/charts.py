"""Plots as SVG: small, readable on light and dark pages, with a text alternative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

from softindex.records import Doubles

__all__ = ["COLOURS", "STYLE", "Axis", "Series", "figure", "histogram", "legend", "plot"]

WIDTH, HEIGHT = 360, 270
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 12, 46
"""Margins around the axes, for their numbers and names."""
COLOURS = (
    ("#0067a5", "#5db8f5"),
    ("#c2500a", "#f0954f"),
    ("#00805c", "#3cc79b"),
    ("#8d3a85", "#d58ad0"),
    ("#5c5c5c", "#b0b0b0"),
    ("#8a6d00", "#d9bd4a"),
    ("#b3263e", "#f2788c"),
    ("#3d3da8", "#9c9cf5"),
)
"""For light and dark pages; neighbours also differ in lightness, and every series has a different mark."""
STYLE = (
    ":root{--ink:#1d2129;--soft:#5b6470;--line:#d5dae1;"
    + "".join(f"--c{place}:{light};" for place, (light, _) in enumerate(COLOURS))
    + "}@media(prefers-color-scheme:dark){:root{--ink:#e8eaee;--soft:#a3abb8;--line:#3a414c;"
    + "".join(f"--c{place}:{dark};" for place, (_, dark) in enumerate(COLOURS))
    + "}}.plot text{fill:var(--soft);font:12px system-ui,sans-serif}.plot .name{fill:var(--ink);font-size:13px}"
    ".plot .grid{stroke:var(--line);stroke-width:1}.plot .rule{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 3}"
    + "".join(f".plot .s{place}{{stroke:var(--c{place});fill:var(--c{place})}}" for place in range(len(COLOURS)))
    + ".plot path.curve{fill:none;stroke-width:1.6}"
)
MARKS = (
    "M0-4A4 4 0 1 1 0 4A4 4 0 1 1 0-4Z",
    "M-3.5-3.5H3.5V3.5H-3.5Z",
    "M0-4.6L4.2 3.4H-4.2Z",
    "M0-5L4.6 0L0 5L-4.6 0Z",
    "M0 4.6L4.2-3.4H-4.2Z",
    "M-4.4-1.5H-1.5V-4.4H1.5V-1.5H4.4V1.5H1.5V4.4H-1.5V1.5H-4.4Z",
    "M0-5.4L1.4-1.7L5.2-1.6L2.2.8L3.3 4.6L0 2.4L-3.3 4.6L-2.2.8L-5.2-1.6L-1.4-1.7Z",
    "M-2.2-4.2H2.2L4.4 0L2.2 4.2H-2.2L-4.4 0Z",
)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Series:
    """Points x, y (m,) of one kind.  `joined` draws a line through them; `small` draws faint dots instead of marks."""

    label: str
    x: Doubles
    y: Doubles
    style: int
    joined: bool = False
    small: bool = False
    notes: Sequence[str] = field(default=())
    """A tooltip for each point."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its name, its range, and whether it is logarithmic."""

    name: str
    low: float
    high: float
    log: bool = False
    floor: str = ""
    """Label of the lowest value, where smaller values are drawn too."""
    whole: bool = False
    """Whether only whole numbers get a tick."""

    def share(self, values: Doubles) -> Doubles:
        """Positions of the values between low (0) and high (1); values outside go to the nearer end."""
        low, high, clipped = self.low, self.high, np.clip(values, self.low, self.high)
        if self.log:
            low, high, clipped = math.log10(low), math.log10(high), np.log10(clipped)
        return np.asarray((clipped - low) / ((high - low) or 1.0))

    def ticks(self) -> list[tuple[float, str]]:
        """Round values between low and high, with their labels."""
        if not self.log:
            values = _round_values(self.low, self.high)
            return [(value, f"{value:g}") for value in values if not self.whole or value == int(value)]
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        step = max(1, math.ceil((last - first) / 6))
        powers = range(first, last + 1, step)
        if len(powers) < 3:
            found = [(m * 10.0**p, f"{m * 10.0**p:g}") for p in range(first - 1, last + 1) for m in (1, 2, 5)]
            inside = [pair for pair in found if self.low * 0.999 <= pair[0] <= self.high * 1.001]
            return inside if len(inside) > 2 else Axis(self.name, self.low, self.high).ticks()
        return [(10.0**power, f"10{str(power).translate(SUPERSCRIPTS)}") for power in powers]

    @classmethod
    def around(cls, name: str, values: Doubles, *, log: bool = False, whole: bool = False) -> Axis:
        """An axis that covers all these values, with a small margin."""
        shown = values[np.isfinite(values) & (values > 0)] if log else values[np.isfinite(values)]
        if not len(shown):
            return cls(name, 0.1, 1.0, log) if log else cls(name, 0.0, 1.0)
        low, high = float(shown.min()), float(shown.max())
        if log:
            return cls(name, low / 1.4, high * 1.4, True)
        room = 0.05 * (high - low)
        # Values that are equal, or nearly equal for their size, still need a range.
        room = room if room > 1e-6 * max(abs(low), abs(high)) else max(0.5, 0.01 * abs(high))
        return cls(name, low - room, high + room, whole=whole)


def _round_values(low: float, high: float) -> list[float]:
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(place * step, 12) + 0.0 for place in range(first, math.floor(high / step + 1e-9) + 1)]


def plot(series: Sequence[Series], x: Axis, y: Axis, *, title: str, text: str, rule: float | None = None) -> str:
    """An SVG plot of the series; `title` and `text` are its text alternative.  `rule` draws a dashed line at this y."""
    parts = [*_axes(x, y, title, text)]
    if rule is not None:
        height = _down(y, np.array([rule]))[0]
        parts.append(f'<path class="rule" d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}"/>')
    for one in series:
        across, down = _across(x, one.x), _down(y, one.y)
        if one.small:
            dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(across, down, strict=True))
            parts.append(
                f'<path class="{_colour(one.style)}" d="{dots}" fill="none" stroke-width="3.2" stroke-linecap="round" '
                'stroke-opacity=".6"/>'
            )
            continue
        if one.joined:
            curve = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, down, strict=True))
            parts.append(f'<path class="curve {_colour(one.style)}" d="M{curve}"/>')
        for place, (a, b) in enumerate(zip(across, down, strict=True)):
            note = f"<title>{escape(one.notes[place])}</title>" if len(one.notes) else ""
            parts.append(f'<g transform="translate({a:.1f} {b:.1f})">{note}{_mark(one.style)}</g>')
    return "".join(parts) + "</svg>"


def histogram(values: Doubles, axis: Axis, *, bins: int, title: str, text: str, style: int = 0) -> str:
    """An SVG histogram of the values."""
    edges = np.linspace(axis.low, axis.high, bins + 1)
    if axis.log:
        edges = np.geomspace(axis.low, axis.high, bins + 1)
    counts = np.histogram(values, edges)[0]
    y = Axis("clusters", 0.0, max(1.0, counts.max() * 1.05))
    parts = [*_axes(axis, y, title, text)]
    across, down = _across(axis, edges), _down(y, counts.astype(float))
    for place, count in enumerate(counts):
        if count:
            width, height = across[place + 1] - across[place] - 1, HEIGHT - BOTTOM - down[place]
            parts.append(
                f'<rect class="{_colour(style)}" stroke="none" x="{across[place]:.1f}" y="{down[place]:.1f}" '
                f'width="{width:.1f}" height="{height:.1f}"><title>{count}: {edges[place]:,.0f} to '
                f"{edges[place + 1]:,.0f}</title></rect>"
            )
    return "".join(parts) + "</svg>"


def legend(labels: Sequence[tuple[str, int]]) -> str:
    """Labels with the mark and colour of their style, as HTML."""
    keys = (
        f'<span class="key"><svg class="plot" viewBox="-7 -7 14 14" width="14" height="14" aria-hidden="true">'
        f"{_mark(style)}</svg>{escape(label)}</span>"
        for label, style in labels
    )
    return f'<p class="legend">{"".join(keys)}</p>'


def figure(panels: Sequence[tuple[str, str]], labels: Sequence[tuple[str, int]], *, title: str, text: str) -> str:
    """A stand-alone SVG file: captioned panels (caption, svg) side by side, with the legend below."""
    width = (WIDTH + 12) * len(panels)
    # A letter is about seven units wide.
    longest = max((len(label) for label, _ in labels), default=0)
    columns = max(1, min(2 * len(panels), (width - LEFT) // (7 * longest + 18)))
    height = HEIGHT + 34 + 20 * -(-len(labels) // columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}. {escape(text)}"><style>{STYLE}</style>'
    ]
    for place, (caption, picture) in enumerate(panels):
        left = place * (WIDTH + 12)
        parts.append(f'<text class="name" x="{left + LEFT}" y="14">{escape(caption)}</text>')
        parts.append(picture.replace("<svg ", f'<svg x="{left}" y="20" width="{WIDTH}" height="{HEIGHT}" ', 1))
    for place, (label, style) in enumerate(labels):
        across, top = LEFT + (place % columns) * (width - LEFT) / columns, HEIGHT + 38 + 20 * (place // columns)
        parts.append(
            f'<g transform="translate({across:.0f} {top})">{_mark(style)}'
            f'<text class="name" x="11" y="4">{escape(label)}</text></g>'
        )
    return "".join(parts) + "</svg>\n"


def _colour(style: int) -> str:
    """The CSS class of a style; colours repeat where there are more styles than colours."""
    return f"s{style % len(COLOURS)}"


def _mark(style: int) -> str:
    """The mark of a style; where colours repeat, they come with different marks."""
    shape = MARKS[(style + 3 * (style // len(COLOURS))) % len(MARKS)]
    return f'<path class="{_colour(style)}" d="{shape}"/>'


def _across(axis: Axis, values: Doubles) -> Doubles:
    return np.asarray(LEFT + axis.share(values) * (WIDTH - LEFT - RIGHT))


def _down(axis: Axis, values: Doubles) -> Doubles:
    return np.asarray(HEIGHT - BOTTOM - axis.share(values) * (HEIGHT - TOP - BOTTOM))


def _axes(x: Axis, y: Axis, title: str, text: str) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}. {escape(text)}">'
    ]
    for value, written in x.ticks():
        at = _across(x, np.array([value]))[0]
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{written}</text>')
    for value, written in y.ticks():
        at = _down(y, np.array([value]))[0]
        if y.floor and at > bottom - 14:
            continue
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{written}</text>')
    if y.floor:
        parts.append(f'<path class="grid" d="M{LEFT} {bottom}H{right}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{bottom + 4}" text-anchor="end">{escape(y.floor)}</text>')
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text class="name" x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.name)}</text>'
        f'<text class="name" x="13" y="{middle}" text-anchor="middle" transform="rotate(-90 13 {middle})">'
        f"{escape(y.name)}</text>"
    )
    return parts
