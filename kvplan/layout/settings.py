"""Engine settings for people and programs: lines to paste into a command or a file, Markdown, JSON.

Lines are meant for a shell or a YAML file, so nothing from a profile may end a comment or mean anything to either:
only printable characters are kept that are no signs of a language there.
"""

import textwrap
from collections.abc import Iterator, Sequence

from kvplan.engines.advice import Advice, Tried, Verdict
from kvplan.engines.base import Mention, Planned
from kvplan.engines.candidates import Candidate
from kvplan.layout.elements import Block, Bullets, Column, Paragraph, Section, number, table, words
from kvplan.simulation.experiments.paired import Gain, Gains
from kvplan.units import ABSENT, format_number, format_percent

_HARMFUL = frozenset('`$!\\"|<>#')
_WORDS = (("<=", "≤"), (">=", "≥"), ("!=", "≠"), ("<", "below"), (">", "above"))  # no signs of a shell
_WIDTHS = (40, 120)
_OUTCOME = 26  # columns for what became of a candidate
_NOTHING = "Nothing to set: leave the engine's defaults."


def harmless(text: str) -> str:
    """Text that can neither end a comment nor be taken for a command, by a shell or in YAML.

    Examples
    --------
    >>> harmless("A & B\\nrm -rf ~; $(reboot) !! `x` #Ü")
    'A & B rm -rf ~; ?(reboot) ?? ?x? ?Ü'
    """
    signs = (" " if c.isspace() else c if c.isprintable() and c not in _HARMFUL else "?" for c in text)
    return "".join(signs)


def text(
    advice: Advice, name: str, origin: str, requests: int, seeds: Sequence[int], *, width: int = 80
) -> str:
    """Lines for a command line, or of a YAML file for TensorRT-LLM; all else is a comment of so many columns."""
    columns = min(max(width, _WIDTHS[0]), _WIDTHS[1])
    title = f"{advice.engine.title} settings for: {harmless(name)}"
    lines = [*_comment(title, columns)]
    lines += _comment(f"{harmless(origin)}; {_basis(advice, requests, seeds)}", columns)
    for planned in advice.planned:
        lines += _planned(advice, planned, columns)
    if not advice.emitted:
        lines += _comment(f"{_nothing(advice)} {_none_gained(advice)}", columns)
    for one in advice.emitted:
        lines += _setting(advice, one, columns)
    if advice.together is not None:
        lines += _comment(f"All of these together: {gains_in_words(advice.together)}.", columns)
    lines += _left_out(advice, columns)
    for mention in advice.mentions:
        value = "" if mention.value is None else f" {mention.value}"
        lines += _comment(f"Not simulated: {mention.flag}{value}. {mention.version}", columns)
    for note in advice.notes:
        lines += _comment(f"Note: {note}", columns)
    return "\n".join(lines) + "\n"


def _comment(words: str, columns: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        words,
        columns,
        initial_indent=f"# {indent}",
        subsequent_indent=f"#   {indent}",
        break_on_hyphens=False,
        break_long_words=True,
    )


def _left_out(advice: Advice, columns: int) -> Iterator[str]:
    """A line for each candidate that is not set: its value, both gains, what became of it."""
    left = [one for one in advice.tried if _is_left(one)]
    if not left:
        return
    yield from _comment("Left out (gain in requests/s saturated, change of mean E2E, outcome):", columns)
    cells = [(_of(one.candidate), *_means(one.gains), _plain_outcome(one)) for one in left]
    first, second, third = (max(len(row[i]) for row in cells) for i in range(3))
    for setting, rate, e2e, outcome in cells:
        row = f"#   {setting:<{first}}  {rate:>{second}}  {e2e:>{third}}  "
        if len(row) + _OUTCOME <= columns:
            yield from textwrap.wrap(
                outcome, columns, initial_indent=row, subsequent_indent=f"#{' ' * (len(row) - 1)}"
            )
        else:
            yield from _comment(f"{setting}: {rate}, {e2e}, {outcome}", columns, "  ")


def _means(found: Gains | None) -> tuple[str, str]:
    if found is None:
        return ABSENT, ABSENT
    rate, e2e = found.saturated_throughput.mean, -found.offered_e2e.mean
    return tuple(format_percent(round(x, 4), 3, signed=True) for x in (rate, e2e))  # type: ignore[return-value]


def _plain_outcome(one: Tried) -> str:
    """What became of a candidate, with no sign in it that a shell knows."""
    said = _outcome(one)
    for sign, word in _WORDS:
        said = said.replace(sign, word)
    return harmless(said)


def _setting(advice: Advice, one: Tried, columns: int) -> Iterator[str]:
    """The line of a setting, and comments below it."""
    assert one.gains is not None
    c = one.candidate
    if c.setting.section:
        yield f"{c.setting.section}:"
    yield f"{'  ' if c.setting.section else ''}{c.setting.flag}{advice.engine.assigns}{c.value}"
    for line in (
        f"simulated: {gains_in_words(one.gains)}",
        f"from {c.block}{_price(advice, one)}",
        _versions(c),
    ):
        yield from _comment(line, columns, "  ")


def _planned(advice: Advice, one: Planned, columns: int) -> Iterator[str]:
    """The line of a setting that was not tried, and why it is set."""
    if one.section:
        yield f"{one.section}:"
    value = "" if one.value is None else f"{advice.engine.assigns}{one.value}"
    yield f"{'  ' if one.section else ''}{one.flag}{value}"
    for line in (f"not simulated: {one.why}", one.version):
        yield from _comment(line, columns, "  ")


def _nothing(advice: Advice) -> str:
    return "Nothing else to set." if advice.planned else _NOTHING


def _price(advice: Advice, one: Tried) -> str:
    """What it does to the headroom, where it goes back into the profile."""
    return "" if one.headroom is None else f"; load.headroom {_from_to(advice, one)}"


def _from_to(advice: Advice, one: Tried) -> str:
    if one.headroom is None:
        return ABSENT
    return " to ".join(ABSENT if x is None else format_percent(x, 4) for x in (advice.headroom, one.headroom))


def _versions(c: Candidate) -> str:
    """Since when a setting exists, and what does it before."""
    earlier = c.setting.earlier
    return f"{c.setting.since} Before: {earlier.format(c.value)}" if earlier else c.setting.since


def _of(c: Candidate) -> str:
    return f"{c.setting.flag} {c.value}"


def _outcome(one: Tried) -> str:
    return f"{one.verdict.value}: {one.broken}" if one.broken else one.verdict.value


def _mention(one: Mention) -> str:
    return f"{one.flag}{'' if one.value is None else ' ' + one.value}: {one.why}"


def _is_left(one: Tried) -> bool:
    return one.verdict is not Verdict.EMITTED


def _none_gained(advice: Advice) -> str:
    if not advice.tried:
        return "The plan suggests nothing else."
    verdicts = {one.verdict for one in advice.tried}
    if Verdict.SHORT in verdicts:
        return "What seems to gain was found in runs too short to tell."
    if Verdict.BREAKS in verdicts:
        return "What gains breaks the gate of the profile."
    count = len(advice.tried)
    return f"None of {count} candidates gained." if count > 1 else "The only candidate gained nothing."


def _basis(advice: Advice, requests: int, seeds: Sequence[int]) -> str:
    return (
        f"with against without by simulation (policy {advice.engine.policy}), {len(seeds)} seeds of "
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
    mean, half = format_percent(round(gain.mean, 5), signed=True), abs(gain.high - gain.mean)
    return f"{mean} ± {format_percent(round(half, 4))}" if half > 0 else mean


def build(advice: Advice, name: str, requests: int, seeds: Sequence[int]) -> Section:
    """For Markdown: what to set, what was tried, what else there is to know."""
    blocks: list[Block] = [Paragraph(f"{advice.engine.title}: {_basis(advice, requests, seeds)}.")]
    if advice.planned:
        columns = (Column("Setting"), number("Value"), words("Why"))
        cells = [(one.flag, one.value or ABSENT, f"{one.why}. {one.version}") for one in advice.planned]
        blocks += [Paragraph("Set by the plan, not simulated:"), table(columns, cells)]
    if advice.emitted:
        rows = [
            (
                one.candidate.setting.flag,
                one.candidate.value,
                *_both(one.gains),
                _from_to(advice, one),
                one.candidate.block,
                f"{one.candidate.why}. {_versions(one.candidate)}",
            )
            for one in advice.emitted
        ]
        blocks.append(table((*_COLUMNS, Column("load.headroom"), Column("From"), words("Why")), rows))
    else:
        blocks.append(Paragraph(f"{_nothing(advice)} {_none_gained(advice)}"))
    if advice.together is not None:
        blocks.append(Paragraph(f"All of these together: {gains_in_words(advice.together)}."))
    left = [
        (
            one.candidate.setting.flag,
            one.candidate.value,
            *_both(one.gains),
            one.candidate.block,
            _outcome(one),
        )
        for one in advice.tried
        if _is_left(one)
    ]
    if left:
        blocks.append(Paragraph("Tried and left out:"))
        blocks.append(table((*_COLUMNS, Column("From"), words("Outcome")), left))
    said = [f"Not simulated: {_mention(one)}. {one.version}" for one in advice.mentions]
    if said or advice.notes:
        blocks.append(Bullets((*said, *advice.notes)))
    return Section("settings", f"Engine settings: {name}", tuple(blocks), "simulated")


_COLUMNS = (
    Column("Setting"),
    number("Value"),
    number("Requests/s, saturated"),
    number("Mean E2E, offered rate"),
)


def _both(found: Gains | None) -> tuple[str, str]:
    if found is None:
        return ABSENT, ABSENT
    return _plus_minus(found.saturated_throughput), _plus_minus(Gain(*(-x for x in found.offered_e2e)))
