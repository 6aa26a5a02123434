"""Settings that were tried by simulation, in words."""

from kvplan.study.advice import Advice
from kvplan.study.protection import Setting
from kvplan.units import format_number, format_percent, format_seconds

_SECONDS = "shed_after"


def advice_actions(found: tuple[Advice, ...]) -> tuple[str, ...]:
    """An action for each, best first."""
    return tuple(("Or set " if i else "Set ") + _said(one) for i, one in enumerate(found))


def _said(one: Advice) -> str:
    values = " and ".join(map(_written, one.settings))
    gains = f"{format_percent(one.gain_backlogged, signed=True)} under a backlog"
    sustains = "the offered rate then drains" if one.sustains_offered else "a backlog still does not drain"
    text = f"{values}: tried, {gains}; {sustains}"
    if one.ttft_p95_s_without is not None and one.ttft_p95_s_with is not None:
        before, after = format_seconds(one.ttft_p95_s_without), format_seconds(one.ttft_p95_s_with)
        text += f"; TTFT p95 at the offered rate {before} without, {after} with"
    return f"{text}.{f' Needs {one.needs_version}.' if one.needs_version else ''}"


def _written(setting: Setting) -> str:
    value = format_seconds(setting.value) if setting.name == _SECONDS else format_number(setting.value)
    return f"{setting.name} = {value}"
