"""Pictures of charts in pixels, from their SVG; by resvg, which comes with the extra `kvplan[png]`."""

from functools import cache
from typing import Any

from kvplan.errors import UsageError

_ZOOM = 2  # pixels of a unit, so that text is sharp in a document
_FAMILIES = (
    "Arial",
    "Helvetica",
    "DejaVu Sans",
    "Liberation Sans",
    "Noto Sans",
    "Open Sans",
    "Roboto",
    "FreeSans",
)
_TEXT = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><text y="15" font-family="{}">{}</text></svg>'


def check() -> None:
    """Refuse where pictures cannot be drawn.

    Raises
    ------
    UsageError
        The library is not installed, or no font, without which texts would be missing.
    """
    if _family() is None:
        raise UsageError(f"--plot: a PNG needs a font, and none of {', '.join(_FAMILIES)} is installed")


def drawn(picture: str) -> bytes:
    """Return an SVG as a PNG."""
    return bytes(_library().svg_to_bytes(svg_string=picture, zoom=_ZOOM, sans_serif_family=_family()))


@cache
def _family() -> str | None:
    """Return the first family that leaves ink: one that is missing leaves no text and no word."""
    render = _library().svg_to_bytes
    blank = render(svg_string=_TEXT.format(_FAMILIES[0], ""))
    return next((f for f in _FAMILIES if render(svg_string=_TEXT.format(f, "M")) != blank), None)


def _library() -> Any:
    try:
        import resvg_py
    except ImportError:
        raise UsageError("--plot: a PNG needs the extra png: pip install 'kvplan[png]'") from None
    return resvg_py
