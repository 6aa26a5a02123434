"""Charts as SVG: an element for a page that defines the colours, or a file of its own.

Text is measured by an estimate that no common sans-serif font exceeds; legends wrap by it, so that nothing is cut.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import numpy as np

from kvplan.model import FloatArray
from kvplan.show.chart import Axis, Chart, Line, Patch

# by what they are for; all texts have a contrast of 4.5 : 1 at least
LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "ink": "#1c2128",
    "soft": "#57606b",
    "rule": "#d3d9e0",
    "blue": "#0b57b8",
    "orange": "#a64b00",
    "red": "#b3192b",
    "green": "#16692f",
    "violet": "#6a3fb5",
}
DARK: Mapping[str, str] = {
    "paper": "#10151c",
    "ink": "#e5eaf0",
    "soft": "#a3aebb",
    "rule": "#38424e",
    "blue": "#74b3ff",
    "orange": "#f0a35e",
    "red": "#ff8a8f",
    "green": "#6fd08c",
    "violet": "#c3a3ff",
}

WIDTH = 360  # units; text of 11 has 10 pixels on a telephone
_HEIGHT, _SIZE, _ROW = 170, 11, 16  # of the plot; of text; of a line of text
_SWATCH, _GAP = 16, 10
_X_TICKS, _Y_TICKS = 6, 6
_DASHES = {"dashed": "5 3", "dotted": "1.5 2.5"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def quote(text: str) -> str:
    r"""Quote a text for a browser; what cannot be shown, or would change how the rest is, is replaced.

    >>> print(quote("<script> \x1b[31m 'a' & \"b\""))
    &lt;script&gt; �[31m &#x27;a&#x27; &amp; &quot;b&quot;
    >>> print(quote("##[group]"))  # a command to GitHub's runner, which shows what a job prints
    ##&#91;group]
    """
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)).replace("##[", "##&#91;")


def file(charts: Sequence[Chart]) -> str:
    """Return a file with charts one below the other, dark on white."""
    drawn, top = [], 0
    for chart in charts:
        body, height = _drawn(chart, titled=True)
        drawn.append(f'<g transform="translate(0 {top})"><desc>{quote(chart.caption)}</desc>\n{body}\n</g>')
        top += height + _ROW
    text = "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH + 32}" height="{2 * top + 32}" '
            f'viewBox="-8 -8 {WIDTH + 16} {top + 16}" font-family="system-ui, Helvetica, Arial, sans-serif">',
            '<rect x="-8" y="-8" width="100%" height="100%" fill="var(--paper)"/>',
            *drawn,
            "</svg>\n",
        ]
    )
    for role, colour in LIGHT.items():
        text = text.replace(f"var(--{role})", colour)
    return text


def element(chart: Chart) -> str:
    """Return an ``<svg>`` for a page that defines ``--ink`` and the other colours of the palette."""
    body, height = _drawn(chart)
    label = quote(f"{chart.title}. {chart.caption}")
    return f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {height}">\n{body}\n</svg>'


def text_width(text: str) -> float:
    """Estimate the width of a text, rather too large.

    >>> round(text_width("TTFT p95"))
    60
    """
    return _SIZE * sum(map(_em, text))


def _em(character: str) -> float:
    if ord(character) > 0x2000:
        return 1.05
    if character in " .,:;'|!()[]-ijlt":
        return 0.42
    return 1.0 if character in "mwMW@%" else 0.78 if character.isupper() else 0.64


def _drawn(chart: Chart, *, titled: bool = False) -> tuple[str, int]:
    """Return the markup of a chart, and its height."""
    ticks = [(value, chart.y.shown(value)) for value in chart.y.ticks(_Y_TICKS)]
    right = _right(chart)
    left = 8 + max(text_width(label) for _, label in ticks)
    width = WIDTH - left - 8 - max([text_width(label) for _, label in right] or [4])
    parts, top = [], 4
    if titled:
        parts.append(_text(0, top + _SIZE, chart.title, weight="bold"))
        top += _ROW
    legend, rows = _legend([*chart.patches, *chart.lines], top)
    parts += legend
    top += rows * _ROW + 2
    if chart.right is not None:
        parts.append(_text(WIDTH, top + _SIZE, chart.right[0], anchor="end", room=WIDTH / 2))
    parts.append(_text(0, top + _SIZE, chart.y.label, room=WIDTH / 2 if chart.right else WIDTH))
    top += _ROW + 6
    bottom = top + _HEIGHT
    for value, label in ticks:
        y = bottom - _HEIGHT * _place(chart.y, value)
        parts.append(f'<path d="M{left:.1f} {y:.1f}h{width:.1f}" stroke="var(--rule)"/>')
        parts.append(_text(left - 5, y + 4, label, anchor="end"))
    for value, label in right:
        y = bottom - _HEIGHT * _place(chart.y, value)
        parts.append(_text(left + width + 5, y + 4, label))
    parts.append(
        f'<svg x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_HEIGHT}" overflow="hidden" fill="none">'
    )
    parts += [_patch(patch, chart, width) for patch in chart.patches]
    parts += [_line(line, chart, width) for line in chart.lines if line.style != "dots"]
    parts += [
        "</svg>",
        f'<g transform="translate({left:.1f} {top})">',
        *(_dots(line, chart, width) for line in chart.lines if line.style == "dots"),
        "</g>",
        f'<path d="M{left:.1f} {bottom}h{width:.1f}" stroke="var(--soft)"/>',
        *_x_ticks(chart.x, left, width, bottom),
        _text(left + width / 2, bottom + 2 * _ROW, chart.x.label, anchor="middle", room=width),
    ]
    return "\n".join(parts), bottom + 2 * _ROW + 8


def _right(chart: Chart) -> list[tuple[float, str]]:
    if chart.right is None:
        return []
    each = chart.right[1]
    whole = [n for n in Axis("", chart.y.low / each, chart.y.high / each).ticks(_Y_TICKS) if n == int(n)]
    return [(each * n, f"{n:,.0f}") for n in whole]


def _x_ticks(axis: Axis, left: float, width: float, bottom: float) -> Iterator[str]:
    """Yield labels below their ticks, no two of which touch, and all inside the picture."""
    end = -math.inf
    for value in axis.ticks(_X_TICKS):
        x, label = left + width * _place(axis, value), axis.shown(value)
        half = text_width(label) / 2
        centre = min(x, WIDTH - half)
        if centre - half < end + _GAP / 2:
            continue
        end = centre + half
        yield f'<path d="M{x:.1f} {bottom}v4" stroke="var(--soft)"/>'
        yield _text(centre, bottom + _ROW, label, anchor="middle")


def _legend(entries: Sequence[Line | Patch], top: int) -> tuple[list[str], int]:
    """Return the legend of lines and patches with a label, and its number of rows."""
    parts, x, row = [], 0.0, 0
    for entry in entries:
        if not entry.label:
            continue
        width = _SWATCH + 4 + text_width(entry.label)
        if x and x + width > WIDTH:
            x, row = 0.0, row + 1
        parts.append(_swatch(entry, x, top + row * _ROW + 7))
        parts.append(
            _text(x + _SWATCH + 4, top + row * _ROW + _SIZE, entry.label, room=WIDTH - x - _SWATCH - 4)
        )
        x += width + _GAP
    return parts, row + bool(parts)


def _swatch(entry: Line | Patch, x: float, y: float) -> str:
    colour = f"var(--{entry.colour})"
    if isinstance(entry, Patch):
        box = f'x="{x:.1f}" y="{y - 5}" width="{_SWATCH}" height="10"'
        return f'<rect {box} fill="{colour}" opacity="{entry.opacity:.2g}"/>'
    if entry.style == "dots":
        return f'<circle cx="{x + _SWATCH / 2:.1f}" cy="{y}" r="3" fill="{colour}"/>'
    return f'<path d="M{x:.1f} {y}h{_SWATCH}" {_stroke(entry)}/>'


def _stroke(line: Line) -> str:
    dash = f' stroke-dasharray="{_DASHES[line.style]}"' if line.style in _DASHES else ""
    return f'stroke="var(--{line.colour})" stroke-width="1.6"{dash}'


def _line(line: Line, chart: Chart, width: float) -> str:
    x, y = width * chart.x.place(line.x), _HEIGHT * (1 - chart.y.place(line.y))
    path, pen = [], "M"
    for i, j in zip(x.tolist(), np.clip(y, -9.0, _HEIGHT + 9.0).tolist(), strict=True):
        if i == i and j == j:
            path.append(f"{pen}{i:.1f} {j:.1f}")
        pen = "L" if i == i and j == j else "M"
    return f'<path d="{"".join(path)}" {_stroke(line)}/>'


def _dots(line: Line, chart: Chart, width: float) -> str:
    x, y = width * chart.x.place(line.x), _HEIGHT * (1 - chart.y.place(line.y))
    dots = (f'<circle cx="{i:.1f}" cy="{j:.1f}" r="3"/>' for i, j in zip(x, y, strict=True))
    return f'<g fill="var(--{line.colour})">{"".join(dots)}</g>'


def _patch(patch: Patch, chart: Chart, width: float) -> str:
    x, y = width * chart.x.place(patch.boxes[:, ::2]), _HEIGHT * (1 - chart.y.place(patch.boxes[:, 1::2]))
    path = (f"M{a:.2f} {c:.2f}H{b:.2f}V{d:.2f}H{a:.2f}z" for (a, b), (c, d) in zip(x, y, strict=True))
    return f'<path d="{"".join(path)}" fill="var(--{patch.colour})" fill-opacity="{patch.opacity:.2g}"/>'


def _place(axis: Axis, value: float) -> float:
    place: FloatArray = axis.place(np.array([value]))
    return float(place[0])


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", room: float = WIDTH, weight: str = ""
) -> str:
    """Write a text, pressed into the room it has where it would be longer."""
    pressed = f' textLength="{room:.0f}" lengthAdjust="spacingAndGlyphs"' if text_width(text) > room else ""
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{_SIZE}" text-anchor="{anchor}" fill="var(--ink)"{bold}{pressed}>'
        f"{quote(text)}</text>"
    )
