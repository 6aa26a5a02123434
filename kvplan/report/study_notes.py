"""Notes on a study: whose its figures are, how sure they are, and which limits its policies keep."""

from collections.abc import Iterator

import numpy as np

from kvplan.report.inputs import State, extrapolations
from kvplan.report.ledger import Ledger
from kvplan.report.wording import sentences
from kvplan.simulation.experiments.study import Study
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.state import Span
from kvplan.units import format_number, format_seconds

_OWN = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT (the mean of its inter-token latencies)",
    "itl_s": "ITL (the mean over its iterations)",
    "e2e_s": "E2E",
}
_NAMED = 5  # unfinished requests


def notes(study: Study) -> tuple[str, ...]:
    """Comment on the figures: whose they are, how sure, and which limits policies keep."""
    within = (f"{_OWN[name]} at most {format_seconds(limit)}" for name, limit in study.objectives.items())
    about = {
        "about.objectives": ", ".join(within) or None,
        "about.overhead_s": study.first[0].request_overhead_s,
        "about.one_run": len(study.seeds) == 1,
    }
    said = sentences("study_notes", Ledger(study, about))
    return (*needed(study), *said, *_limits(study, where_all_agree=True))


def needed(study: Study) -> tuple[str, ...]:
    """Comment on what makes figures say less than they seem to, or policies not comparable."""
    said = [f"{interruption(study)[:1].upper()}{interruption(study)[1:]}."] if study.interrupted else []
    for result, run in zip(study.results, study.first, strict=True):
        if run.ending is Ending.LIVELOCK:
            why = "a request can never fit in the memory it may use, even alone"
            if not run.stuck:
                why = "requests go on preempting each other, or waiting for each other, and none completes"
            said.append(f"{result.policy}: {why}; the run was ended.")
    left = (
        f"{result.policy} {format_number(unfinished)}{_unfinished(study, run)}"
        for result, run in zip(study.results, study.first, strict=True)
        if (unfinished := result.figures["unfinished"])
    )
    cold = (r.policy for r in study.results if r.figures["prefix_cache.hit_rate"] is None)
    first_come = (
        r.policy
        for r, p in zip(study.results, study.policies, strict=True)
        if "scheduling" not in p.parameters
    )
    about = {
        "about.first_come": (study.by_priority and ", ".join(first_come)) or None,
        "about.unfinished": ", ".join(left) or None,
        "about.schedule_left_out": study.scheduled is False,
        "about.cold": ", ".join(cold) or None,
    }
    said += sentences("study_needs", Ledger(study, about))
    said += extrapolations(study.measured, tuple(_visited(study)))
    return (*said, *_limits(study, where_all_agree=False))


def _visited(study: Study) -> Iterator[State]:
    """Yield what the iterations of each policy did at most, in all its runs, and on average."""
    for result, runs in zip(study.results, study.runs, strict=True):
        outcomes = [outcome for _, outcome in runs]
        yield State(
            f"{result.policy} at its peak",
            max(run.kv_peak for run in outcomes),
            max(run.prefill_peak for run in outcomes),
            max(run.batch_peak for run in outcomes),
        )
        if busy_s := sum(run.busy_s for run in outcomes):
            held = sum(run.totals[Span.KV_S] for run in outcomes)
            yield State(f"{result.policy} on average", float(held / busy_s))


def _limits(study: Study, *, where_all_agree: bool) -> Iterator[str]:
    """Say which policies keep the limits of the profile, and which do not know them."""
    keeps = {
        result.policy: policy.limits for result, policy in zip(study.results, study.policies, strict=True)
    }
    for limit, value in study.limits.items():
        kept = [name for name in keeps if limit in keeps[name]]
        others = [name for name in keeps if name not in kept]
        if bool(kept and others) is not where_all_agree:
            parts = [f"kept by {', '.join(kept)}" if kept else "kept by none of these"]
            parts += [f"not by {', '.join(others)}"] if kept and others else []
            yield f"{limit} ({value:,} in the profile): {', '.join(parts)}."


def _unfinished(study: Study, run: Outcome) -> str:
    """Name the first few, in order of arrival, of the first seed."""
    there = np.flatnonzero(np.isnan(run.finish_s) & (run.arrival_s <= run.end_s))
    if not there.size:
        return ""
    shown = ", ".join(f"{i + 1}" for i in there[:_NAMED].tolist())
    more = ", ..." if there.size > _NAMED else ""
    number = "number" if there.size == 1 else "numbers"
    return f" ({number} {shown}{more} in order of arrival, seed {study.seeds[0]})"


def interruption(study: Study) -> str:
    """Say what the figures of an interrupted study are of."""
    if study.cut_short or study.missing:
        what = f"the run of seed {study.seeds[0]} as far as it went"
    else:
        what = f"{len(study.seeds)} seeds that every policy ended" if len(study.seeds) > 1 else "one seed"
    missing = f"; not begun: {', '.join(study.missing)}" if study.missing else ""
    return f"interrupted; figures are of {what}{missing}"
