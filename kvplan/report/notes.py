"""Where the numbers of a report come from, and what was assumed or not modelled: `keys.toml` has the texts."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvplan.analysis.concurrency import eviction_is_impossible, never_grows
from kvplan.analysis.dispersion import excess_dispersion, stay_s
from kvplan.analysis.equilibrium import saturation
from kvplan.analysis.overflow import clusters_held, has_doubtful_tail
from kvplan.analysis.stability import UNCERTIFIED
from kvplan.analysis.worst_cycle import MOST_STAGES
from kvplan.model import Prefill, ServingModel
from kvplan.report.figures import Figures
from kvplan.report.inputs import band_notes, extrapolations, origins_note, states
from kvplan.report.keys import BLOCKS
from kvplan.report.ledger import Ledger
from kvplan.report.verdict import capping, requests_in_memory
from kvplan.report.wording import interval, sentence, sentences
from kvplan.report.words import Basis
from kvplan.study.batch import behind
from kvplan.units import format_number, format_seconds

_LITTLE = 0.02  # by which a formula may be off runs
_FEW_CLUSTERS = 2  # in memory at a time; below, the law of their usage was never near that simulated


class Source(NamedTuple):
    """Where the numbers of a block come from."""

    source: str
    kind: Basis


class Sources(Mapping[str, Source]):
    """Where the numbers of each block come from, by its name; found when asked for, as some rest on runs."""

    def __init__(self, figures: Figures) -> None:
        model = figures.whole
        replica, timing = model.replica, model.timing
        limited = replica.max_num_seqs is not None or replica.max_num_batched_tokens is not None
        terms = "d2, d3" if timing.is_linear else "d2 to d6"
        about = {
            "about.limited": _limited(model),
            "about.beyond_papers": timing.goes_beyond_papers
            or replica.block_tokens > 1
            or limited
            or not model.is_plain,
            "about.never_grows": never_grows(model) and model.drafts is None,
            "about.never_preempts": eviction_is_impossible(model),
            "about.one_class": len(model.classes) == 1,
            "about.terms": f"{terms}{', drafts' * (model.drafts is not None)}"
            f"{', layers of several kinds' * (replica.layout is not None)}",
        }
        self._ledger = Ledger(figures, about)
        self._blocks = {block.name: block for block in BLOCKS.values() if block.has_source}

    def __getitem__(self, name: str) -> Source:
        texts = ((sentence(text, self._ledger), basis) for basis, text in self._blocks[name].sources)
        return next(Source(text, Basis(basis)) for text, basis in texts if text is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)


def notes(figures: Figures, room: str = "", *, tried: bool = False) -> tuple[str, ...]:
    """Say what was assumed, what is not modelled, and what to beware of; `tried`: and what runs say of that."""
    ledger = Ledger(figures, {f"about.{name}": value for name, value in _about(figures)})
    return (*_of_inputs(figures, room, tried), *sentences("notes", ledger))


def room(figures: Figures, *, tried: bool = False) -> str:
    """Say how much of the last class fits behind the others; `tried`: and what the first feels of it, by runs."""
    if (batch := behind(figures.model, figures.plan, tried=tried)) is None:
        return ""
    now, most, filled = map(format_number, (batch.now_rps, batch.most_rps, batch.filled_rps))
    was, ttft = map(format_seconds, (batch.ttft_now_s, batch.ttft_filled_s))
    felt = "" if tried else "; --trial: what that does to ttft"
    if batch.ttft_filled_s is not None:
        goes = "is" if batch.ttft_now_s is None else f"goes from {was} to"
        felt = f"; with {filled} ttft p95 of {batch.first} {goes} {ttft}"
    due = {c.name: c.deadline_s for c in figures.model.classes if c.deadline_s}
    due_s = due.get(batch.last) if len(due) == 1 else None  # several stand in each other's way
    least = due_s and f" The backlog takes {format_seconds(due_s * batch.now_rps / batch.most_rps)} at least."
    return (
        f"{most} requests/s of {batch.last} fill what goes before them leaves, now {now}{felt}.{least or ''}"
    )


def _of_inputs(figures: Figures, room: str, tried: bool) -> Iterator[str]:
    model = figures.model
    yield from origins_note(model.provenance)
    yield from extrapolations(model.measured, tuple(states(model)))
    yield from band_notes(model, figures.load, figures.drains_up_to_rps)
    if room:
        yield room
    yield from capping(figures) if tried else ()
    yield from (f"{name} has a rate of 0 and is left out." for name in model.left_out[:3])


def _about(figures: Figures) -> Iterator[tuple[str, Any]]:
    """Yield what notes say beside figures of the report and values of the model."""
    model, cold, tier = figures.model, figures.cold, figures.model.replica.offload
    clusters = cold.arrivals.cv > 1
    yield "has_sessions", any(c.sessions is not None for c in model.classes)
    yield "fans_out", any(c.sessions is not None and c.sessions.sends for c in model.classes)
    yield "limited", _limited(model)
    yield "slow_tier", tier is not None and not tier.overlap and tier.load_s > model.timing.d2 > 0
    yield "iteration_in_runs", _iteration_in_runs(figures)
    yield "requests_in_memory", requests_in_memory(cold)
    yield "token_budget", cold.replica.of_rank().max_num_batched_tokens if cold.mix.partial.exist else None
    yield "holds_prompts_back", cold.engine is not None and cold.engine.holds_prompts_back
    yield "ready_made", cold.replica.prefill is Prefill.DISAGGREGATED and cold.timing.minds_prompts
    yield "no_closed_form", any(c.kind is None for c in figures.worst_cycle.classes)
    yield "stays_long", bool(len(cold.classes) * cold.mix.held.stages.max() > MOST_STAGES)
    yield "uncertified", UNCERTIFIED
    yield "several_lengths", any(len(c.decode_tokens) > 1 for c in cold.classes)
    yield "perhaps_not_smallest", figures.wait.smallest is False
    yield "few_admissions", saturation(cold).admissions_per_iteration < len(cold.classes)
    waits = [(c.mean_wait_s, c.name) for c in figures.rate_cap.classes if c.mean_wait_s is not None]
    longest, whose = max(waits, key=lambda wait: wait[0], default=(None, None))
    yield from (("longest_wait", longest), ("waits_longest", whose))
    yield "no_waits", any(c.dispersion is None for c in figures.wait.classes)
    yield "one_class", len(cold.classes) == 1
    yield "replicas", None if figures.whole.fleet is None else figures.whole.fleet.size
    trace = cold.arrivals.trace
    yield "trace", None if trace is None else trace.arrival_s.size
    if figures.safety_buffer.required_kv_tokens is not None:
        yield "doubtful_tail", has_doubtful_tail(cold) or (clusters and clusters_held(cold) < _FEW_CLUSTERS)
        yield "dispersion", 1 + excess_dispersion(cold) if clusters else None
        yield "stay", stay_s(cold) if clusters else None


def _limited(model: ServingModel) -> bool:
    """Tell whether a limit on the context binds for some sessions."""
    return any(c.sessions is not None and c.sessions.limit is not None for c in model.classes)


def _iteration_in_runs(figures: Figures) -> str | None:
    """Write the iteration time of runs where the formula is outside its interval, and more than a little off."""
    formula, seen = figures.equilibrium.iteration_time_s, figures.operating_point.iteration_s
    if figures.whole.fleet is not None or formula is None or seen is None or math.isinf(seen.high):
        return None
    is_steady = figures.latency.status not in ("growing", "undecided")
    is_off = not seen.low <= formula <= seen.high and abs(formula / seen.value - 1) > _LITTLE
    between = interval(seen.low, seen.high, format_seconds)
    return f"{format_seconds(seen.value)} ({between})" if is_steady and is_off else None
