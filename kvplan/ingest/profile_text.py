"""A profile written out: classes fitted to a trace, everything else as a base profile has it."""

import json
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import tomli

from kvplan import __version__
from kvplan.errors import ProfileError
from kvplan.ingest.traffic_fit import BINS, POINTS, Distortion, Traffic, describe, moment_errors
from kvplan.model import RequestClass
from kvplan.profile import Profile, parse_profile
from kvplan.units import format_number, format_percent, format_rate, format_tokens

_KEPT = ("gpu", "timing", "plan", "gate")
_DATED_S = 1e9  # a clock that shows more than this counts from 1970
_WIDTH = 118
_JOINT = ": traffic of "  # between the names of replica and trace


def fitted_profile(
    traffic: Traffic,
    classes: Sequence[RequestClass],
    base: Profile,
    *,
    default_base: bool = False,
    distortion: Distortion | None = None,
) -> Profile:
    """A profile of these classes on the replica of `base`; its `text` says where every part comes from.

    Parameters
    ----------
    traffic : Traffic
        What the classes were fitted to.
    classes : sequence of RequestClass
    base : Profile
        Tables gpu, timing, plan and gate are kept, with their comments where they can be.
    default_base : bool
        Nobody asked for `base`.
    distortion : Distortion, optional
        What the classes distort, if that was looked at.

    Raises
    ------
    ProfileError
        Base and classes do not go together: a request is longer than the memory.

    Examples
    --------
    >>> from io import BytesIO
    >>> from kvplan.ingest.traffic_fit import _example, binned
    >>> from kvplan.profile import load_profile
    >>> base = load_profile("llama-3.1-8b-rtx4090", stdin=BytesIO())
    >>> profile = fitted_profile(_example(), binned(_example()), base)
    >>> [(c.input_tokens, c.rate_rps) for c in profile.model.classes], profile.model.timing == base.model.timing
    ([(10, 0.25), (12, 0.25), (300, 0.5)], True)
    """
    name = _printable(f"{base.name.partition(_JOINT)[0]}{_JOINT}{traffic.path.name}")
    parts = [
        _comment(_provenance(traffic, classes, base, default_base, distortion)),
        f"schema = 1\nname = {_value(name if len(name) <= 200 else name[:199] + '…')}",
        *_kept(base),
        *map(_class, classes),
    ]
    data = ("\n\n".join(parts) + "\n").encode()
    try:
        return parse_profile(data, "<fitted>")
    except ProfileError as error:
        message = f"the traffic does not go with the replica of {base.source}: {error.message}; see --base"
        raise ProfileError(str(traffic.path), message) from None


def _provenance(
    traffic: Traffic,
    classes: Sequence[RequestClass],
    base: Profile,
    default_base: bool,
    distortion: Distortion | None,
) -> Iterable[str]:
    yield (
        f"Classes and rates: fitted by kvplan {__version__} to {_printable(str(traffic.path))} ({traffic.format}, "
        f"{format_tokens(traffic.rows)} rows)."
    )
    yield f"sha256 {traffic.sha256}"
    yield _when(traffic)
    yield (
        f"Lengths: {format_tokens(traffic.mean_input)} tokens in, {format_tokens(traffic.mean_decode)} out, "
        "on average."
    )
    if burstiness := _burstiness(traffic):
        yield burstiness
    if traffic.prefix_share is not None:
        yield (
            f"Prefixes: an unlimited cache would have had {format_percent(traffic.prefix_share)} of the prompts' "
            "blocks; the classes take none of that into account."
        )
    for note in traffic.notes:
        yield f"Note: {note}."
    if distortion is None:
        footprint, variance = moment_errors(traffic, tuple(classes), base.model)
        ranges = f"{len(classes)} ranges" if len(classes) > 1 else "one range"
        yield (
            f"Each class: the mean of a range of input lengths ({ranges}, at most {BINS}), and the decode lengths "
            f"seen with them, gathered into at most {POINTS}. Error of the mean footprint: {_error(footprint)}; of the "
            f"variance of KV usage: {_error(variance)}."
        )
    else:
        yield (
            f"Each class: one decode length, the mean of those it stands for. Beside the trace itself: "
            f"{describe(distortion)}."
        )
    why = ", the shipped default, as no --base was given" if default_base else ""
    yield (
        f"Replica, timing, plan and gate: kept from {_printable(base.source)}{why} ({_printable(base.name)}; "
        f"sha256 {base.sha256[:12]})."
    )


def _error(relative: float) -> str:
    return format_percent(relative, 2, signed=True) if abs(relative) >= 1e-4 else "below 0.01%"


def _when(traffic: Traffic) -> str:
    assert traffic.span_s is not None
    rate = f"{format_tokens(traffic.span_s)} s, {format_rate(traffic.rate_rps)}"
    if traffic.span_s < 1000:
        rate = f"{format_number(traffic.span_s)} s, {format_rate(traffic.rate_rps)}"
    if traffic.start_s is None or not _DATED_S < traffic.start_s < 1e11:
        return f"Time: {rate}."
    begin, end = (
        datetime.fromtimestamp(second, UTC) for second in (traffic.start_s, traffic.start_s + traffic.span_s)
    )
    return f"Time: {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC, {rate}."


def _burstiness(traffic: Traffic) -> str | None:
    found = []
    if traffic.gap_cv is not None:
        found.append(f"coefficient of variation of the gaps {format_number(traffic.gap_cv, 3)}")
    if traffic.dispersion is not None and traffic.dispersion_window_s is not None:
        window = format_number(traffic.dispersion_window_s)
        found.append(f"variance over mean of the counts in {window} s {format_number(traffic.dispersion, 3)}")
    return f"Arrivals: {', '.join(found)} (1 for Poisson arrivals)." if found else None


def _class(c: RequestClass) -> str:
    if len(c.decode_tokens) == 1:
        decode = str(c.decode_tokens[0])
    else:
        pairs = zip(c.decode_tokens, c.decode_weights, strict=True)
        decode = "{ " + ", ".join(f"{length} = {_weight(weight)}" for length, weight in pairs) + " }"
    rate = float(f"{c.rate_rps:.6g}")
    return (
        f"[[classes]]\nname = {_value(c.name)}\ninput = {c.input_tokens}\ndecode = {decode}\nrate = {rate!r}"
    )


def _weight(weight: float) -> str:
    return (
        f"{weight:.0f}" if weight.is_integer() and weight < 1e12 else repr(max(float(f"{weight:.6g}"), 1e-12))
    )


def _kept(base: Profile) -> list[str]:
    """The kept tables of a base profile: as written there if that stands for itself, else written anew."""
    document = tomli.loads(base.text)
    wanted = {key: document[key] for key in _KEPT if key in document}
    sections = _sections(base.text)
    verbatim = [sections[key] for key in wanted if key in sections]
    try:
        if tomli.loads("\n".join(verbatim)) == wanted:
            return verbatim
    except tomli.TOMLDecodeError:
        pass
    return [
        "\n".join([f"[{key}]", *(f"{_key(k)} = {_value(v)}" for k, v in table.items())])
        for key, table in wanted.items()
    ]


def _sections(text: str) -> dict[str, str]:
    """Tables by name, from the comment above a ``[name]`` to the comment above the next."""
    found: dict[str, str] = {}
    name, section, comment = "", [""], [""]
    for line in [*text.split("\n"), "["]:
        if line.lstrip().startswith("["):
            found[name] = "\n".join(section).strip("\n")
            name, section, comment = line.partition("#")[0].strip(" \t[]"), [*comment, line], []
        elif line.lstrip().startswith("#"):
            comment.append(line)
        else:
            section, comment = [*section, *comment, line], []
    return found


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else _value(key)


def _value(value: Any) -> str:
    """A value in TOML: text, whole and other numbers, lists, and tables in line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(paragraphs: Iterable[str]) -> str:
    lines = (line for text in paragraphs for line in textwrap.wrap(text, _WIDTH - 2, break_on_hyphens=False))
    return "\n".join(f"# {line}" for line in lines)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
