"""Things looked up by a name that people write in many ways: GPUs and models of the catalogues."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli

from kvplan.errors import UsageError

T = TypeVar("T")

_MAKERS = re.compile(r"\b(?:nvidia|geforce|tesla|amd|instinct|gpu)\b")


def plain(name: str) -> str:
    """A name without case, punctuation and the words every product of a maker has.

    Examples
    --------
    >>> plain("NVIDIA GeForce RTX 4090"), plain("rtx-4090")
    ('rtx4090', 'rtx4090')
    """
    return re.sub(r"[\W_]", "", _MAKERS.sub("", name.lower()))


def find(name: str, known: Mapping[str, T], aliases: Mapping[str, str], noun: str) -> T:
    """What goes by a name, or by another one that stands for it; `noun` is what messages call such things.

    Raises
    ------
    UsageError
        There is none of that name; with the nearest.

    Examples
    --------
    >>> find("rtx_4090", {"RTX 4090": 24, "L4": 22}, {}, "GPU")
    24
    """
    written = {plain(other): proper for other, proper in aliases.items()} | {plain(k): k for k in known}
    wanted = plain(name)
    if wanted in written:
        return known[written[wanted]]
    raise UsageError(f"{_quoted(name)}: no {noun} of that name; {_nearest(wanted, written, known)}")


def _nearest(wanted: str, written: Mapping[str, str], known: Iterable[str]) -> str:
    from difflib import get_close_matches  # only a mistake needs it

    # A name can be short for several things, as "A100"; and several spellings can lead to one.
    longer = [name for name in written if wanted and name.startswith(wanted)]
    near = longer or get_close_matches(wanted[:60], written, n=3)
    proper = dict.fromkeys(written[name] for name in near)
    return f"did you mean {' or '.join(proper)}?" if proper else f"known are {', '.join(known)}"


def _quoted(name: str) -> str:
    return name if name.isprintable() and 0 < len(name) <= 100 else repr(name[:100])


def tables(file: str) -> dict[str, Any]:
    """The tables of a TOML file beside this module."""
    return tomli.loads((Path(__file__).parent / file).read_text("utf-8"))
