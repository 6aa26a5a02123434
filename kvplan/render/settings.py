"""Engine settings for people and programs: lines to paste into a command or a file, Markdown, JSON.

Lines are meant for a shell or a YAML file, so nothing from a profile may end a comment or mean anything to either:
of its name only letters, digits and a few harmless signs are kept.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from kvplan.engines import Advice, Candidate, Engine, Kind, Mention, Tried, Verdict, version_note
from kvplan.render.document import Block, Bullets, Column, Paragraph, Section, Table
from kvplan.simulation.paired import Gain, Gains
from kvplan.units import ABSENT, format_number, format_percent

SCHEMA_VERSION = 1
_HARMLESS = frozenset(" .,:;()+-/=%_±")
_TITLES = {Engine.VLLM: "vLLM", Engine.SGLANG: "SGLang", Engine.TRTLLM: "TensorRT-LLM"}
_PROFILE_KEYS = {Kind.RUNNING: "gpu.max_num_seqs", Kind.TOKENS: "gpu.max_num_batched_tokens"}
_NOTHING = "Nothing to set: leave the engine's defaults."


def harmless(text: str) -> str:
    """Text that can neither end a comment nor be taken for a command, by a shell or in YAML.

    Examples
    --------
    >>> harmless("a\\nrm -rf ~; $(reboot) !! `x` #Ü")
    'a rm -rf ?; ?(reboot) ?? ?x? ?Ü'
    """
    signs = (c if c.isalnum() or c in _HARMLESS else " " if c.isspace() else "?" for c in text)
    return "".join(signs)


def text(advice: Advice, name: str, origin: str, requests: int, seeds: Sequence[int]) -> str:
    """Lines for a command line, or of a YAML file for TensorRT-LLM; everything else is a comment."""
    lines = [
        f"# {_TITLES[advice.engine]} settings for: {harmless(name)}",
        f"# {harmless(origin)}; {_basis(advice, requests, seeds)}",
    ]
    if not advice.emitted:
        lines.append(f"# {_NOTHING} {_none_gained(advice)}")
    for one in advice.emitted:
        lines += _setting(advice.engine, one)
    if advice.together is not None:
        lines.append(f"# All of these together: {gains_in_words(advice.together)}.")
    lines += [f"# Not set: {_of(one.candidate)} {_outcome(one)}." for one in advice.tried if _is_left(one)]
    lines += [f"# Not simulated: {_mention(one)}. {version_note(one.flag)}" for one in advice.mentions]
    lines += [f"# Note: {note}" for note in advice.notes]
    return "\n".join(lines) + "\n"


def _setting(engine: Engine, one: Tried) -> Iterator[str]:
    """The line of a setting, and comments below it."""
    assert one.gains is not None
    c, gained = one.candidate, gains_in_words(one.gains)
    if engine is not Engine.TRTLLM:
        yield f"{c.flag} {c.value}  # {c.block}; simulated: {gained}"
    else:
        if c.kind is Kind.SCHEDULER:
            yield "scheduler_config:"
        indent = "  " if c.kind is Kind.SCHEDULER else ""
        yield f"{indent}{c.flag}: {c.value}  # {c.block}; simulated: {gained}"
    yield f"#   why: {c.why}. {version_note(c.flag)}{_older(c)}"


def _older(c: Candidate) -> str:
    if c.flag != "--max-num-active-seqs":
        return ""
    return f" Before: --max-num-seqs {c.value}, which sizes buffers and CUDA graphs too."


def _of(c: Candidate) -> str:
    return f"{c.flag} {c.value} ({c.block})"


def _outcome(one: Tried) -> str:
    measured = "" if one.gains is None else f": {gains_in_words(one.gains)}"
    return f"{one.verdict.value}{measured}"


def _mention(one: Mention) -> str:
    return f"{one.flag}{'' if one.value is None else ' ' + one.value}: {one.why}"


def _is_left(one: Tried) -> bool:
    return one.verdict is not Verdict.EMITTED


def _none_gained(advice: Advice) -> str:
    count = len(advice.tried)
    if count == 0:
        return "The plan suggests nothing else."
    return f"None of {count} candidates gained." if count > 1 else "The only candidate gained nothing."


def _basis(advice: Advice, requests: int, seeds: Sequence[int]) -> str:
    return (
        f"with against without by simulation (policy {advice.policy}), {len(seeds)} seeds of "
        f"{format_number(requests)} requests, 95% intervals"
    )


def gains_in_words(found: Gains) -> str:
    """Both measures with their intervals.

    Examples
    --------
    >>> even = Gain(0.0, 0.0, 0.0)
    >>> gains_in_words(Gains(Gain(0.0512, 0.0441, 0.0583), Gain(-0.01, -0.02, 0.0), even))
    '+5.12% ± 0.71% requests/s saturated, +1% ± 1% mean E2E at the offered rate'
    """
    e2e = Gain(*(-x for x in found.offered_e2e))  # of a time, as it changes
    return (
        f"{_plus_minus(found.saturated_throughput)} requests/s saturated, "
        f"{_plus_minus(e2e)} mean E2E at the offered rate"
    )


def _plus_minus(gain: Gain) -> str:
    mean, half = round(gain.mean, 5), abs(gain.high - gain.mean)
    return f"{format_percent(mean, signed=True)} ± {format_percent(round(half, 4))}"


def build(advice: Advice, name: str, requests: int, seeds: Sequence[int]) -> Section:
    """For Markdown: what to set, what was tried, what else there is to know."""
    blocks: list[Block] = [Paragraph(f"{_TITLES[advice.engine]}: {_basis(advice, requests, seeds)}.")]
    if advice.emitted:
        rows = [
            (
                one.candidate.flag,
                one.candidate.value,
                *_both(one.gains),
                one.candidate.block,
                f"{one.candidate.why}. {version_note(one.candidate.flag)}{_older(one.candidate)}",
            )
            for one in advice.emitted
        ]
        blocks.append(Table((*_COLUMNS, Column("From"), Column("Why", wraps=True)), tuple(rows)))
    else:
        blocks.append(Paragraph(f"{_NOTHING} {_none_gained(advice)}"))
    if advice.together is not None:
        blocks.append(Paragraph(f"All of these together: {gains_in_words(advice.together)}."))
    left = [
        (
            one.candidate.flag,
            one.candidate.value,
            *_both(one.gains),
            one.candidate.block,
            one.verdict.value,
        )
        for one in advice.tried
        if _is_left(one)
    ]
    if left:
        blocks.append(Paragraph("Tried and left out:"))
        blocks.append(Table((*_COLUMNS, Column("From"), Column("Outcome", wraps=True)), tuple(left)))
    said = [f"Not simulated: {_mention(one)}. {version_note(one.flag)}" for one in advice.mentions]
    if said or advice.notes:
        blocks.append(Bullets((*said, *advice.notes)))
    return Section("settings", f"Engine settings: {name}", tuple(blocks), "simulated")


_COLUMNS = (
    Column("Setting"),
    Column("Value", right=True),
    Column("Requests/s, saturated", right=True),
    Column("Mean E2E, offered rate", right=True),
)


def _both(found: Gains | None) -> tuple[str, str]:
    if found is None:
        return ABSENT, ABSENT
    return _plus_minus(found.saturated_throughput), _plus_minus(Gain(*(-x for x in found.offered_e2e)))


def to_document(
    advice: Advice, *, name: str, sha256: str, version: str, requests: int, seeds: Sequence[int]
) -> dict[str, Any]:
    """The JSON document (schema_version 1): gains are relative, and positive where it is better."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kvplan_version": version,
        "profile": {"name": name, "sha256": sha256},
        "engine": advice.engine.value,
        "simulated": {"policy": advice.policy, "requests": requests, "seeds": list(seeds)},
        "settings": [
            {
                **_plain_candidate(one.candidate),
                "why": one.candidate.why,
                "version": version_note(one.candidate.flag),
                "profile_key": _PROFILE_KEYS.get(one.candidate.kind),
                "policy": one.candidate.variant.policy,
                "parameters": dict(one.candidate.variant.parameters),
                "gains": _plain_gains(one.gains),
            }
            for one in advice.emitted
        ],
        "together": _plain_gains(advice.together),
        "left_out": [
            {
                **_plain_candidate(one.candidate),
                "verdict": one.verdict.value,
                "gains": _plain_gains(one.gains),
            }
            for one in advice.tried
            if _is_left(one)
        ],
        "not_simulated": [{**one._asdict(), "version": version_note(one.flag)} for one in advice.mentions],
        "notes": list(advice.notes),
    }


def _plain_candidate(c: Candidate) -> dict[str, Any]:
    return {"kind": c.kind.value, "flag": c.flag, "value": c.value, "block": c.block}


def _plain_gains(found: Gains | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {key: {"mean": gain.mean, "ci95": [gain.low, gain.high]} for key, gain in found._asdict().items()}
