"""Simulated days of several ways to scale, as a table beside what is emitted."""

from collections.abc import Sequence

from kvplan.show import page
from kvplan.study.verification import SEEDS, Way
from kvplan.units import format_number, format_percent

_COLUMNS: page.Columns[Way] = {
    page.Column("Settings"): lambda way: way.name,
    page.words("Per replica"): lambda way: way.control,
    page.number("Within"): lambda way: format_percent(way.within),
    page.number("Worst day"): lambda way: format_percent(way.worst),
    page.number("GPU-hours"): lambda way: format_number(way.gpu_hours),
}


def section(ways: Sequence[Way]) -> page.Section:
    """Show requests within the objectives and GPU-hours of a day."""
    return page.section(
        "verification",
        "Simulated days",
        page.tabulate(_COLUMNS, ways),
        notes=(
            f"{len(SEEDS)} days that the headroom was not chosen by; requests whose own times are within the "
            "objectives, and GPU-hours of a day, loading and draining included.",
            "Guesses that are deployed: KV usage as Value, waiting requests as AverageValue; latency is llm-d's "
            "rule, with its own behavior: predicted latency is simulated. All keep the same bounds of replicas.",
        ),
    )
