"""Runs that settle a plan: the expected result of each, and the replicas left after it."""

from kvplan.emit.benchmarks import commands_of, next_commands
from kvplan.options import MeasureOptions
from kvplan.planning.measuring import Measuring, Replicas, Run
from kvplan.show import page
from kvplan.show.view import Json, View, header
from kvplan.units import format_number, format_seconds


def view(measuring: Measuring, asked: MeasureOptions) -> View:
    """Show proposed runs, with the commands that follow them."""
    return View(
        lambda: _document(measuring, asked),
        lambda _: page.document([_section(measuring, asked)], measuring.profile.sha256),
        rows=lambda written: written["runs"],
    )


def _document(measuring: Measuring, asked: MeasureOptions) -> Json:
    return {
        **header(),
        "profile": {"name": measuring.profile.name, "sha256": measuring.profile.sha256},
        "tool": asked.tool,
        "binding": measuring.binding,
        "band": list(measuring.band),
        "demand_rps": measuring.demand_rps,
        "rate_rps": measuring.rate_rps,
        "interval_rps": list(measuring.interval_rps),
        "replicas": list(measuring.replicas),
        "runs": [run._asdict() for run in measuring.runs],
        "stopped": measuring.stopped,
        "next": list(next_commands(measuring, asked)),
    }


def _section(measuring: Measuring, asked: MeasureOptions) -> page.Section:
    low, high = measuring.interval_rps
    least, most = measuring.band
    now = (
        f"A replica is expected to serve {format_number(measuring.rate_rps)} requests/s, where {measuring.binding} "
        f"ends it; where iterations take {format_number(least)} to {format_number(most)} times as long as its profile "
        f"says, {format_number(low)} to {format_number(high)}: {_replicas(measuring.replicas)} replicas."
    )
    columns: page.Columns[tuple[int, Run]] = {
        page.number("run"): lambda row: str(row[0]),
        page.number("concurrency"): lambda row: f"{row[1].concurrency:,}",
        page.number("in"): lambda row: f"{row[1].input:,}",
        page.number("out"): lambda row: f"{row[1].output:,}",
        page.number("prompts"): lambda row: f"{row[1].prompts:,}",
        page.number("minutes"): lambda row: f"{row[1].seconds / 60:.1f}",
        page.number("TTFT, TPOT"): lambda row: (
            f"{format_seconds(row[1].ttft_s)}, {format_seconds(row[1].tpot_s)}"
        ),
        page.number("replicas"): lambda row: _replicas(row[1].replicas),
    }
    stopped = f"{measuring.stopped[0].upper()}{measuring.stopped[1:]}."
    title = f"What to measure of {measuring.profile.name}"
    if not measuring.runs:
        return page.section("measure", title, page.Paragraph(now), notes=[stopped])
    then, plan, again = next_commands(measuring, asked)
    notes = [
        "TTFT and TPOT are what is expected, replicas those that four in five such outcomes leave.",
        f"{stopped} Figures beyond {format_number(least)} or {format_number(most)} times what is expected say that the "
        "replica is not what the profile takes it for.",
        f"Then: {then}",
        f"{plan}; {again} proposes the next run.",
    ]
    if asked.memory:
        notes.insert(2, "Keep the engine's start-up log as serve.log: one start has the KV capacity.")
    if source := commands_of(asked.tool).get("source"):
        notes.append(f"Commands of {asked.tool}: {source}.")
    runs = page.tabulate(columns, enumerate(measuring.runs, 1))
    return page.section("measure", title, page.Paragraph(now), runs, notes=notes)


def _replicas(ends: Replicas) -> str:
    low, high = ends
    if high is None:
        return f"{low:,} or more, or no number"
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
