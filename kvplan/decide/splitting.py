"""Prefill and decode apart or together: formulas say where to look, simulation decides (theory §12).

Every way to make replicas of so many GPUs is a candidate. What a split serves is the lesser of what its sides do, so
that from one to the next it rises and then falls: the search begins at the best by formula and goes on to its
neighbours as long as these serve more in simulation. Beside them replicas that do both are simulated: with the token
budget of the profile, and with smaller ones, where the time between tokens is limited and prompts would exceed it.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.fleet import FleetFigures, Winner, between_tokens_s, fleet_figures
from kvplan.analysis.split import Sides, best_split, even_budget, served, sides, together_rps
from kvplan.decide.fixed_runs import Estimate, Measure, Measured, missed
from kvplan.decide.sizing import search
from kvplan.errors import UsageError
from kvplan.model import ServingModel
from kvplan.model.fleet import Fleet, Hardware
from kvplan.model.slo import Slo
from kvplan.profile.reading import Profile
from kvplan.report.fleet import fleet_block
from kvplan.solve import boundary
from kvplan.study.replicas import scaled
from kvplan.units import format_rate, format_tokens

MOST_GPUS = 4096
NEAR = 0.02  # to which the largest rate is found, relative
_STEP = 1.25  # between two rates while one is looked for that is too much, or little enough
_MOST = 8.0  # times what the formulas say, beyond which a run is too short to tell
_LEAST = 1e-3  # of what the formulas say, below which nothing is looked for
LEAST_BUDGET, BUDGET_STEP = 64, 1.4  # tokens, and from one that is tried to the next
LONG = 8.0  # times what a request takes, from which on runs are more than filling and draining
_TIE = 0.01  # relative, of rates that simulation does not tell apart


class Candidate(NamedTuple):
    """Some replicas, and what they serve by formula.

    Attributes
    ----------
    formula_rps
        Largest rate with the mean iteration within the objective on the time between tokens.
    goodput_rps
        Largest simulated rate at which the queue stays and every objective holds; 0: there is none.
    figures
        Simulated at that rate.
    budget_tokens
        Of an iteration, where it is not that of the profile: iterations of replicas that do both are then even.
    """

    fleet: Fleet
    gpus: int
    formula_rps: float
    budget_tokens: int | None = None
    goodput_rps: float = 0.0
    figures: Mapping[str, Estimate] = {}


class Splitting(NamedTuple):
    """What was simulated, the best split and the replicas that do both among it; None where there are too few GPUs."""

    gpus: int
    tried: tuple[Candidate, ...]
    split: Candidate | None
    together: Candidate | None
    reason: str = ""  # by the formulas
    crossing_itl_s: float | None = None  # likewise

    @property
    def best(self) -> Candidate | None:
        """What serves most; together, where simulation does not tell them apart."""
        if self.split is None or self.together is None:
            return self.split or self.together
        ahead = self.split.goodput_rps > (1 + _TIE) * self.together.goodput_rps
        return self.split if ahead else self.together

    @property
    def winner(self) -> Winner | None:
        """Which way that is; None where it serves nothing."""
        if self.best is None or self.best.goodput_rps == 0:
            return None
        return Winner.SPLIT if self.best is self.split else Winner.TOGETHER


def with_sides(profile: Profile, prefill: Profile | None, decode: Profile | None) -> ServingModel:
    """The model of a profile, a fleet whose prefill and decode replicas run on what other profiles have.

    Of these `[gpu]` and `[timing]` count; all of traffic and fleet is that of the first. None: its replicas as well.

    Raises
    ------
    UsageError
        KV that the other side cannot read, or has no room for.
    """
    model = profile.model
    fleet = replace(
        model.fleet or Fleet(replicas=1),
        prefill_on=_hardware("--prefill", profile, prefill),
        decode_on=_hardware("--decode", profile, decode),
    )
    return replace(model, fleet=fleet) if fleet.sides_differ else model


def _hardware(option: str, profile: Profile, side: Profile | None) -> Hardware | None:
    """What replicas of a side run on; None where that is what the profile has."""
    if side is None:
        return None
    model, other = profile.model, side.model
    if (other.timing, other.replica) == (model.timing, model.replica):
        return None
    where = f"{option} {side.source}"
    if other.drafts is not None:
        raise UsageError(f"{where}: has [speculative], which is not modelled with prefill and decode apart")
    alike = {
        "kv_bytes_per_token": [one.tables["gpu"].get("kv_bytes_per_token") for one in (profile, side)],
        "block_tokens": [one.replica.block_tokens for one in (model, other)],
        "prefill": [one.replica.prefill for one in (model, other)],
    }
    for key, (wanted, found) in alike.items():
        if wanted != found and None not in (wanted, found):
            raise UsageError(
                f"{where}: {key} is {found}, and {wanted} in {profile.source}, but KV goes from side to side"
            )
    further = model.mix.decode_tokens if option == "--decode" else 0
    most = int((model.mix.input_tokens + further).max())
    held, room = other.replica.largest_held(most, most), other.replica.capacity_tokens
    if held > room:
        raise UsageError(
            f"{where}: the longest request of {profile.source} holds {format_tokens(held)} KV tokens there, and memory "
            f"{format_tokens(room)}"
        )
    return Hardware(other.timing, other.replica)


def split_or_together(
    model: ServingModel,
    gpus: int,
    slos: Sequence[Slo],
    measure: Measure,
) -> Splitting:
    """The best of so many GPUs, either way.

    Parameters
    ----------
    model
        Traffic of the fleet, and one of its replicas; its `fleet`, if it has one, says how requests are routed, how
        fast KV is transferred, and what replicas of either side run on. A GPU is a GPU, whatever its kind.
    measure
        Simulates a fleet on its traffic.

    Raises
    ------
    UsageError
        No objectives; too many GPUs, or fewer than a replica has.
    """
    if not slos:
        raise UsageError(
            "--split: no objectives, within which it compares; such as --slo 'ttft_s.p95 <= 2 s'"
        )
    own = model.replica.gpus
    if not own <= gpus <= MOST_GPUS:
        raise UsageError(f"--split {gpus}: must be from {own}, the GPUs of a replica, to {MOST_GPUS:,}")
    given = model.fleet or Fleet(replicas=1)
    limit = between_tokens_s({slo.key: slo.bound for slo in slos}) or math.inf
    formulas = sides(model, given)
    known: dict[tuple[Fleet, int | None], Candidate] = {}

    def simulated(one: Candidate) -> Candidate:
        key = one.fleet, one.budget_tokens
        if key not in known:
            known[key] = largest_rate(model, one, slos, measure)
        return known[key]

    splits = list(split_candidates(given, formulas, gpus, limit))
    both = together_candidate(given, formulas, gpus, limit)
    even = even_budget(formulas.together, limit)
    best = (
        _climbed(splits, simulated) if splits else None
    )  # first: a split that cannot be simulated ends it here
    together = _even(simulated, both, even, model.replica.max_num_batched_tokens or math.inf)
    proved = model.timing.is_linear and not given.sides_differ
    block = fleet_block(_formulas(model, (best or together).fleet, slos, gpus), proved=proved)
    assert block is not None
    return Splitting(gpus, tuple(known.values()), best, together, block.reason, block.crossing_itl_s)


class Fewest(NamedTuple):
    """The fewest GPUs that serve a demand, what these do, and what one size less does; None: there is none."""

    needed_rps: float
    gpus: int
    found: Splitting
    fewer: tuple[int, float] | None


def fewest_gpus(model: ServingModel, needed_rps: float, slos: Sequence[Slo], measure: Measure) -> Fewest:
    """The fewest GPUs whose best split, or replicas that do both, serve so much within the objectives.

    The search begins where the formulas say. More GPUs are assumed never to serve less.

    Raises
    ------
    UsageError
        As for `split_or_together`; no number of GPUs serves anything.
    """
    step = _step(model)
    found: dict[int, Splitting] = {}

    def served_by(steps: int) -> float:
        if steps not in found:
            found[steps] = split_or_together(model, steps * step, slos, measure)
        best = found[steps].best
        return 0.0 if best is None else best.goodput_rps

    steps = gpus_by_formula(model, needed_rps, slos) // step
    if served_by(steps) < needed_rps:
        if not served_by(steps):
            raise UsageError(
                f"--split auto: {steps * step} GPUs serve nothing within the objectives, split or together"
            )
        steps = search(steps, lambda steps: served_by(steps) >= needed_rps) or steps
    least = model.replica.gpus
    while (steps - 1) * step >= least and served_by(steps - 1) >= needed_rps:
        steps -= 1
    fewer = ((steps - 1) * step, served_by(steps - 1)) if (steps - 1) * step >= least else None
    return Fewest(needed_rps, steps * step, found[steps], fewer)


def gpus_by_formula(model: ServingModel, needed_rps: float, slos: Sequence[Slo]) -> int:
    """The fewest GPUs that serve so much by formula, either way.

    Raises
    ------
    UsageError
        There are none, or more than `MOST_GPUS`.
    """
    formulas = sides(model, model.fleet or Fleet(replicas=1))
    limit = between_tokens_s({slo.key: slo.bound for slo in slos}) or math.inf
    step, least = _step(model), model.replica.gpus

    def most(gpus: int) -> float:
        split = best_split(formulas, gpus, limit)
        return max(together_rps(formulas, gpus, limit), 0.0 if split is None else split.rate_rps)

    sizes = range(least, MOST_GPUS + 1, step)
    at = bisect_left(sizes, needed_rps, key=most)
    if at == len(sizes):
        raise UsageError(
            f"--split auto: by formula not even {MOST_GPUS:,} GPUs serve {format_rate(needed_rps, 'requests')} within "
            "the objective on the time between tokens"
        )
    return sizes[at]


def _step(model: ServingModel) -> int:
    """GPUs by which fleets grow: what the replicas of all kinds have in common."""
    fleet = model.fleet or Fleet(replicas=1)
    kinds = (model, model.on(fleet.prefill_on), model.on(fleet.decode_on))
    return math.gcd(*(one.replica.gpus for one in kinds))


def _even(
    simulated: Callable[[Candidate], Candidate], both: Candidate, budget: float, most: float
) -> Candidate:
    """Replicas that do both with the budget that serves most: that of the profile, or near the one of the formulas."""
    tried = [simulated(both)]
    budget = min(budget, most / BUDGET_STEP) if budget < math.inf else math.inf
    for step in (BUDGET_STEP, 1 / BUDGET_STEP):
        at, best = budget, -1.0
        while LEAST_BUDGET <= at < most:
            tried.append(simulated(both._replace(budget_tokens=int(at))))
            if tried[-1].goodput_rps <= best:
                break
            at, best = at * step, tried[-1].goodput_rps
    return max(tried, key=lambda one: one.goodput_rps)


def too_short(requests: int, rate_rps: float, figures: Mapping[str, Estimate], times: float) -> int | None:
    """How many requests a run should have to last so many times what a request takes; None: it does.

    Examples
    --------
    >>> too_short(60_000, 6000.0, {"e2e_s.mean": Estimate(4.0, 4.0, 4.0)}, times=8)
    192000
    """
    taken = figures.get("e2e_s.mean")
    wanted = 0 if taken is None else math.ceil(times * rate_rps * taken.mean)
    return wanted if wanted > requests else None


def long_enough(measure: Measure, requests: int, slos: Sequence[Slo]) -> Measure:
    """The same, but for runs that are over before a request is: in these all holds at any rate.

    Raises
    ------
    UsageError
        Such a run.
    """

    def told(model: ServingModel) -> Measured:
        found = measure(model)
        rate = model.total_rate_rps
        if not missed(found, slos) and too_short(requests, rate, found.figures, 1.0):
            wanted = too_short(requests, rate, found.figures, LONG)
            raise UsageError(
                f"--split: {requests:,} requests all come before one is done, and tell nothing of so many GPUs; take "
                f"{wanted:,} or more with --requests"
            )
        return found

    return told


def default_requests(model: ServingModel, gpus: int) -> int:
    """Requests of a run: for each replica a thousand, and 6,000 to 60,000 in all."""
    return min(max(1000 * gpus // model.replica.gpus, 6000), 60_000)


def _formulas(model: ServingModel, fleet: Fleet, slos: Sequence[Slo], gpus: int) -> FleetFigures:
    whole = replace(model, fleet=fleet)
    limits = {slo.key: slo.bound for slo in slos}
    found = fleet_figures(whole, limits, gpus=gpus)
    assert found is not None
    return found


def _climbed(splits: Sequence[Candidate], simulated: Callable[[Candidate], Candidate]) -> Candidate:
    """From the best by formula to where no neighbour serves more."""
    at = max(range(len(splits)), key=lambda i: splits[i].formula_rps)
    for step in (1, -1):
        while 0 <= at + step < len(splits) and (
            simulated(splits[at + step]).goodput_rps > simulated(splits[at]).goodput_rps
        ):
            at += step
    return simulated(splits[at])


def split_candidates(given: Fleet, formulas: Sides, gpus: int, itl_s: float) -> Iterator[Candidate]:
    """Ever more prefill replicas, and as many of both kinds as there is room for."""
    one, other = formulas.prefill, formulas.decode
    rates = served(one).rate_rps, served(other, itl_s).rate_rps
    for decode in reversed(range(1, (gpus - one.gpus) // other.gpus + 1)):
        prefill = (gpus - decode * other.gpus) // one.gpus
        if decode == (gpus - prefill * one.gpus) // other.gpus:
            fleet = replace(given, prefill=prefill, decode=decode, replicas=0)
            used = prefill * one.gpus + decode * other.gpus
            yield Candidate(fleet, used, min(prefill * rates[0], decode * rates[1]))


def together_candidate(given: Fleet, formulas: Sides, gpus: int, itl_s: float) -> Candidate:
    both = formulas.together
    replicas = gpus // both.gpus
    fleet = replace(given, prefill=0, decode=0, replicas=replicas)
    return Candidate(fleet, replicas * both.gpus, replicas * served(both, itl_s).rate_rps)


def fleet_of(model: ServingModel, one: Candidate, rate_rps: float) -> ServingModel:
    """A candidate at such a rate of the traffic."""
    if one.budget_tokens is not None:
        model = replace(model, replica=replace(model.replica, max_num_batched_tokens=one.budget_tokens))
    return replace(scaled(replace(model, fleet=None), rate_rps), fleet=one.fleet)


def largest_rate(model: ServingModel, one: Candidate, slos: Sequence[Slo], measure: Measure) -> Candidate:
    """A candidate with the largest rate at which all holds in simulation, to 2 %, and its figures there."""
    found: dict[float, Measured] = {}

    def holds(rate: float) -> bool:
        measured = measure(fleet_of(model, one, rate))
        fine = not missed(measured, slos)
        if fine:
            found[rate] = measured
        return fine

    rate = start = one.formula_rps if 0 < one.formula_rps < math.inf else model.total_rate_rps
    if holds(rate):
        while rate < _MOST * start and holds(rate * _STEP):
            rate *= _STEP
        low, high = rate, rate * _STEP
    else:
        while not holds(rate / _STEP):
            rate /= _STEP
            if rate < _LEAST * start:
                return one
        low, high = rate / _STEP, rate
    low, _ = boundary(lambda rate: not holds(rate), low, high, close=NEAR, geometric=True)
    return one._replace(goodput_rps=low, figures=found[low].figures)
