"""Settings that were tried by simulation, in words."""

from kvplan.study.advice import ADMISSION, Advice
from kvplan.study.protection import Setting
from kvplan.units import format_number, format_percent, format_seconds

_SECONDS = "shed_after"


def advice_actions(found: tuple[Advice, ...], *, recovers: bool) -> tuple[str, ...]:
    """An action for each, best first; `recovers` says that the offered rate drains without any."""
    return tuple(
        f"{'Or set' if i else 'Set'} {' and '.join(map(_written, one.settings))}: {effect(one, recovers=recovers)}"
        + (f" Needs {one.needs_version}." if one.needs_version else "")
        for i, one in enumerate(found)
    )


def effect(one: Advice, *, recovers: bool) -> str:
    """What trying it showed."""
    gains = f"{format_percent(one.gain_backlogged, signed=True)} under a backlog"
    sustains = "the offered rate then drains" if one.sustains_offered else "a backlog still does not drain"
    if recovers:
        sustains = "the offered rate drains without it"
    text = f"tried, {gains}; {sustains}"
    if one.ttft_p95_s_without is not None and one.ttft_p95_s_with is not None:
        before, after = format_seconds(one.ttft_p95_s_without), format_seconds(one.ttft_p95_s_with)
        text += f"; TTFT p95 at the offered rate {before} without, {after} with"
    return f"{text}."


def _written(setting: Setting) -> str:
    if setting.name == ADMISSION:
        return "admission = whole-prompt"
    value = format_seconds(setting.value) if setting.name == _SECONDS else format_number(setting.value)
    return f"{setting.name} = {value}"
