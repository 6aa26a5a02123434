"""Provenance of the inputs of a report, and how far a plan goes beyond the range they were measured in."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import NamedTuple

from kvplan.analysis.equilibrium import iteration_time, most_admissions, per_request
from kvplan.analysis.records import Load
from kvplan.model import Knowledge, MeasuredRange, Origin, Provenance, ServingModel
from kvplan.report.keys import FORMATS
from kvplan.report.words import Status
from kvplan.units import format_number, format_percent, format_tokens

_UNSEEN = 0.005  # beyond a range by less is not said: no factor would show it
_SURE = (Knowledge.MEASURED, Knowledge.STATED)
_AMOUNTS = {
    "kv_tokens": "holds {} KV tokens",
    "prefill_tokens": "has {} prefill tokens computed in an iteration",
    "sequences": "runs {} sequences",
}


class Inputs(NamedTuple):
    """Provenance of each part of the profile; the `inputs` block of the report."""

    gpu: Knowledge
    timing: Knowledge
    workload: Knowledge


class State(NamedTuple):
    """Load of iterations at a point of a plan or a run; None for amounts of which nothing is said."""

    name: str
    kv_tokens: float | None = None
    prefill_tokens: float | None = None
    sequences: float | None = None


class Beyond(NamedTuple):
    """A state outside of the range that a timing was measured in, `factor` times the nearest end of it."""

    amount: str  # a field of `State`
    state: State
    end: float
    factor: float


def inputs(model: ServingModel) -> Inputs:
    """Take the bases alone."""
    origins = model.provenance
    return Inputs(origins.gpu.basis, origins.timing.basis, origins.workload.basis)


def assumed(model: ServingModel) -> list[str]:
    """List the parts that are only known of something else."""
    return [name for name, basis in inputs(model)._asdict().items() if basis is Knowledge.ASSUMED]


def states(model: ServingModel) -> Iterator[State]:
    """Visit where a plan needs the timing: the equilibrium, if memory holds it, the sustainable rate, one prompt."""
    cost, tau = per_request(model), iteration_time(model)
    most = most_admissions(model)
    now = None if tau is None else model.total_rate_rps * tau
    if now is not None and now <= most:
        yield State("the equilibrium", now * cost.held, now * cost.prefill_tokens, now * cost.iterations)
    yield State("a full replica", most * cost.held, most * cost.prefill_tokens, most * cost.iterations)
    longest = float(model.mix.prefill_tokens.max())
    at_once = model.replica.max_num_batched_tokens or math.inf
    yield State("the longest prompt", prefill_tokens=min(model.replica.ranks * longest, at_once))


def beyond(measured: MeasuredRange, visited: Sequence[State]) -> list[Beyond]:
    """Find the states that a timing was not measured for."""
    outside = []
    for amount in _AMOUNTS:
        low, high = getattr(measured, amount) or (0.0, math.inf)
        for state in visited:
            value = getattr(state, amount)
            if value is not None and value > high * (1 + _UNSEEN):
                outside.append(Beyond(amount, state, high, value / high if high else math.inf))
            elif value is not None and value < low * (1 - _UNSEEN) and amount != "prefill_tokens":
                outside.append(Beyond(amount, state, low, value / low))
    return outside


def extrapolations(measured: MeasuredRange, visited: Sequence[State]) -> list[str]:
    """Write a sentence for each amount of which some states leave the range that the timing was measured in."""
    said: dict[tuple[str, float], str] = {}
    for amount, state, end, factor in beyond(measured, visited):
        value = format_tokens(getattr(state, amount))
        times = f"{format_number(factor, 3)} times" if end else "beyond"
        if (amount, end) in said:
            said[amount, end] += f"; {state.name} {value}, {times}"
        else:
            limit = f"the {format_number(end)} it was measured {'to' if factor > 1 else 'from'}"
            said[amount, end] = f"{state.name} {_AMOUNTS[amount].format(value)}, {times} {limit}"
    return [f"The timing is extrapolated: {words}." for words in said.values()]


# ------------------------------------------------------------------------------------------- the error band


def headroom_range(offered: Load) -> tuple[float, float] | None:
    """Return the range of the headroom; None where it counts users, who ask for less when iterations take longer."""
    ends, rate = offered.sustainable_rps_range, offered.offered_rps
    if ends is None or not counts_rates(offered):
        return None
    return ends[0] / rate - 1, ends[1] / rate - 1


def counts_rates(offered: Load) -> bool:
    """Tell whether the headroom is about rates, rather than about users."""
    most = offered.load_factor_max * offered.offered_rps
    return math.isclose(most, offered.sustainable_rps, rel_tol=1e-6)


def verdicts_in(
    band: tuple[float, float], offered_rps: float, sustainable_rps: float, recovery_rps: float
) -> list[tuple[Status, float]]:
    """List the verdicts within an error band, each up to so many times the iteration time."""
    low, high = band
    ends = (
        (Status.STABLE, min(recovery_rps, sustainable_rps) / offered_rps),
        (Status.NEEDS_CAP, sustainable_rps / offered_rps),
        (Status.OVERLOADED, math.inf),
    )
    verdicts: list[tuple[Status, float]] = []
    start = low
    for status, end in ends:
        if end >= start and (not verdicts or verdicts[-1][1] < high):
            verdicts.append((status, min(end, high)))
            start = end
    return verdicts


def band_notes(model: ServingModel, offered: Load, recovery_rps: float | None) -> Iterator[str]:
    """Say what the error band of the timing makes of rates and verdict.

    Verdicts with a prefix cache are left out: what it keeps depends on the clock, and does not scale with iterations.
    Nor does what a standard burst leaves; where it decides, without `recovery_rps`, only overload is reported.
    """
    band, ends = model.measured.band, offered.sustainable_rps_range
    if band is None:
        return
    times = " to ".join(format_number(end, 3) for end in band)
    headroom, rates = headroom_range(offered), "" if ends is None else f" ({FORMATS['numbers'](ends)})"
    between = "" if headroom is None else f" ({FORMATS['changes'](headroom)})"
    above = "capacity above the load" if counts_rates(offered) else "capacity for more users"
    yield (
        f"Error band of the timing: iterations took {times} times as long as it says. Sustainable are then "
        f"{format_number(offered.sustainable_rps)}{rates} requests/s, with a {above} of "
        f"{format_percent(offered.headroom, signed=True)}{between}; everything "
        "else is for the timing as it stands."
    )
    if model.finds_prefixes:
        return
    if recovery_rps is None:
        end = offered.sustainable_rps / offered.offered_rps
        if band[0] <= end < band[1]:
            times = f"{format_number(end, 3)} times its iteration times"
            yield f"Within that band more is offered than sustainable beyond {times}."
        return
    *before, (last, _) = verdicts_in(band, offered.offered_rps, offered.sustainable_rps, recovery_rps)
    if before:
        parts = [
            f"{status} up to {format_number(end, 3)} times its iteration times" for status, end in before
        ]
        yield f"Within that band the verdict changes: {', '.join(parts)}, {last} beyond."


# ----------------------------------------------------------------------------------------------- provenance


def origins_note(origins: Provenance) -> Iterator[str]:
    """Say how the inputs are known, with their sources in full; nothing where all are stated without a word."""
    if origins != Provenance():
        parts = [(f.name, getattr(origins, f.name)) for f in fields(Provenance)]
        yield f"Inputs: {'; '.join(_in_full(name, origin) for name, origin in parts)}."


def _in_full(name: str, origin: Origin) -> str:
    source = source_text(origin)
    return f"{name} {origin.basis} ({source})" if source else f"{name} {origin.basis}"


def doubts(model: ServingModel) -> Iterator[str]:
    """Say what is neither measured nor stated, and where the plan leaves the range that the timing was measured in."""
    if any(basis not in _SURE for basis in inputs(model)):
        yield from origins_note(model.provenance)
    yield from extrapolations(model.measured, tuple(states(model)))


def source_text(origin: Origin) -> str:
    """Say where a part comes from and when it was recorded; empty where nobody says."""
    return ", ".join(word for word in (origin.source, str(origin.date or "")) if word)


def caveat(model: ServingModel) -> str:
    """Say on the first screen which inputs are unsure or extrapolated, and where rates are only bounds."""
    unsure = {f.name: getattr(model.provenance, f.name) for f in fields(Provenance)}
    unsure = {name: origin for name, origin in unsure.items() if origin.basis not in _SURE}
    said = []
    for basis in Knowledge:
        names = [name for name, origin in unsure.items() if origin.basis is basis]
        if names:
            *others, last = names
            said.append(f"{', '.join(others)} and {last} {basis}" if others else f"{last} {basis}")
    factors = [each.factor for each in beyond(model.measured, tuple(states(model)))]
    if factors:
        furthest = max(factors, key=lambda factor: abs(math.log(factor)) if factor > 0 else math.inf)
        times = f" {format_number(furthest, 3)} times" if 0 < furthest < math.inf else ""
        said.append(f"timing extrapolated{times}")
    if model.replica.ranks > 1:
        said.append(f"computed rates are bounds with {model.replica.ranks} ranks")
    elif model.formulas_bound:
        said.append("computed rates are upper bounds, as prompts wait while others decode")
    weakest_first = sorted(unsure.values(), key=lambda origin: -list(Knowledge).index(origin.basis))
    sources = dict.fromkeys(origin.source for origin in weakest_first if origin.source)
    return ", ".join(said) + (f" ({'; '.join(sources)})" if sources else "")
