"""Settings of a policy against each other, on the same requests: with common random numbers small gains show.

Two loads: *saturated*, where all requests are there at the beginning, in an order drawn anew for each seed; and
*offered*, Poisson arrivals at the rates of the model. A setting is compared with another seed by seed, so that what
is common to both, who comes when and how long they are, cancels out.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.analysis.concurrency import RESERVED_BLOCKS
from kvplan.model import Plan, ServingModel
from kvplan.simulation.experiments.load import Arrivals, Load
from kvplan.simulation.experiments.runner import Announce, Job, Progress, run_to_the_end, scenarios
from kvplan.simulation.intervals import t_quantile
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies.protocol import Scenario, Settings

_NO_SPREAD = 1e-12  # of relative differences: rounding
_CAPS = frozenset({"max_num_seqs", "max_running_requests"})


class Variant(NamedTuple):
    """A policy and what is set of it, parameters by name."""

    policy: str
    parameters: tuple[tuple[str, float], ...] = ()


class Measured(NamedTuple):
    """Figures of a variant, one a seed."""

    saturated_rps: tuple[float, ...]  # until the last one is done, where all were there at the beginning
    offered_rps: tuple[float, ...]  # the same for arrivals at the offered rate
    offered_e2e_s: tuple[float, ...]  # their mean time from arrival to the last token
    evictions: int  # in all these runs


class Gain(NamedTuple):
    """Relative gain with its 95 % confidence interval; positive is better, 0.07 is 7 %."""

    mean: float
    low: float
    high: float


class Gains(NamedTuple):
    """What a variant gains over another; throughput upwards, time end to end downwards."""

    saturated_throughput: Gain
    offered_e2e: Gain
    offered_throughput: Gain


class Bench:
    """Requests for several comparisons, so many a run; what the plain policies did with them is kept.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 3, (5,), (1.0,), 0.1),), Timing(1.0), Replica(20))
    >>> [found] = Bench(model, Plan(), requests=10, seeds=[0, 1]).measure([Variant("vllm", (("max_num_seqs", 1.0),))])
    >>> found.saturated_rps, found.evictions
    ((0.2, 0.2), 0)
    """

    def __init__(
        self,
        model: ServingModel,
        plan: Plan,
        *,
        requests: int,
        seeds: Sequence[int],
        progress: Progress | None = None,
        announce: Announce | None = None,
    ) -> None:
        self._model = replace(model, schedule=None)  # offered are the rates as they stand, at any time
        full = Load(Arrivals.SATURATED, requests)  # without chance in it one run is as good as many
        self._saturated = scenarios(self._model, plan, full, seeds if full.is_drawn(model) else seeds[:1])
        self._offered = scenarios(self._model, plan, Load(requests=requests), seeds)
        self._progress, self._announce = progress, announce
        self._plain: dict[str, list[Outcome]] = {}  # at the offered rate

    def measure(self, variants: Sequence[Variant]) -> list[Measured | None]:
        """Run every variant on both loads and all seeds, on all cores.

        None stands for a variant of which a run could not be ended, because a request never fits. At the offered rate
        a limit that the plain policy never comes near changes nothing; then its run is taken.

        Raises
        ------
        KeyboardInterrupt
            Somebody pressed Ctrl-C: half a comparison is none.
        """
        plain = [v for v in variants if not v.parameters and v.policy not in self._plain]
        rows = self._run([*((v, self._saturated) for v in variants), *((v, self._offered) for v in plain)])
        saturated, offered = rows[: len(variants)], rows[len(variants) :]
        self._plain |= dict(zip((v.policy for v in plain), offered, strict=True))
        known = {v: found for v in variants if (found := self._known(v)) is not None}
        rest = [v for v in variants if v not in known]
        known |= dict(zip(rest, self._run([(v, self._offered) for v in rest]), strict=True))
        return [_measured(found, known[v]) for v, found in zip(variants, saturated, strict=True)]

    def _run(self, wanted: Sequence[tuple[Variant, Sequence[Scenario]]]) -> list[list[Outcome]]:
        rows = [[Job(_settings(variant), one) for one in on] for variant, on in wanted]
        return run_to_the_end(rows, self._progress, self._announce)

    def _known(self, variant: Variant) -> list[Outcome] | None:
        """Runs at the offered rate that a variant shares with the plain policy, or None."""
        plain = self._plain.get(variant.policy)
        free = plain is not None and all(
            _never_binds(name, value, plain, self._model) for name, value in variant.parameters
        )
        return plain if free else None


def _never_binds(name: str, value: float, plain: Sequence[Outcome], model: ServingModel) -> bool:
    """Whether runs without a limit never came near enough to it for it to matter."""
    if not all(run.finished for run in plain):
        return False
    if name in _CAPS:
        return all(most_at_once(run) <= value for run in plain)
    if name == "watermark":
        # Held at an admission is at most the peak; the sequence to be admitted is at most as long as any in the end.
        replica = model.replica
        blocks = max(replica.memory_tokens // replica.block_tokens - RESERVED_BLOCKS, 0)
        longest = math.ceil(max(c.max_tokens for c in model.classes) / replica.block_tokens)
        return all(
            math.ceil(run.kv_peak / replica.block_tokens) + longest <= blocks - math.ceil(value * blocks)
            for run in plain
        )
    return False


def most_at_once(run: Outcome) -> int:
    """Most requests that were waiting or running at once, in a run that was ended.

    One that comes when another is done counts beside it.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> times = SimpleNamespace(arrival_s=np.array([0.0, 1.0, 3.0, 9.0]), finish_s=np.array([3.0, 4.0, 5.0, 10.0]))
    >>> most_at_once(times)
    3
    """
    come = np.sort(run.arrival_s)
    gone = np.searchsorted(np.sort(run.finish_s), come, side="left")
    return int(np.max(np.arange(1, come.size + 1) - gone))


def _settings(variant: Variant) -> Settings:
    return Settings(variant.policy, {name: (value,) for name, value in variant.parameters})


def _measured(saturated: Sequence[Outcome], offered: Sequence[Outcome]) -> Measured | None:
    """Of the saturated runs, one or as many as seeds, and of the offered ones."""
    runs = [*saturated, *offered]
    if not all(run.finished for run in runs):
        return None
    rates = [run.finish_s.size / run.end_s for run in saturated]
    return Measured(
        saturated_rps=tuple(rates * (len(offered) // len(saturated))),
        offered_rps=tuple(run.finish_s.size / run.end_s for run in offered),
        offered_e2e_s=tuple(run.mean_e2e_s for run in offered),
        evictions=sum(int(run.evictions.sum()) for run in runs),
    )


def gains(without: Measured, with_it: Measured) -> Gains:
    """What the second gains over the first, which ran on the same seeds.

    Examples
    --------
    >>> before = Measured((10.0, 20.0), (1.0, 1.0), (4.0, 8.0), 9)
    >>> after = Measured((11.0, 22.0), (1.0, 1.0), (3.0, 6.0), 0)
    >>> found = gains(before, after)
    >>> round(found.saturated_throughput.mean, 3), found.offered_e2e.mean, found.offered_throughput.mean
    (0.1, 0.25, 0.0)
    """

    def upwards(a: tuple[float, ...], b: tuple[float, ...]) -> Gain:
        return paired([y / x - 1 for x, y in zip(a, b, strict=True)])

    times = zip(without.offered_e2e_s, with_it.offered_e2e_s, strict=True)
    return Gains(
        saturated_throughput=upwards(without.saturated_rps, with_it.saturated_rps),
        offered_e2e=paired([_saved(x, y) for x, y in times]),
        offered_throughput=upwards(without.offered_rps, with_it.offered_rps),
    )


def _saved(before_s: float, after_s: float) -> float:
    """Share of a time that is saved; none where arrivals are so far apart that a float of their times holds no less."""
    return 1 - after_s / before_s if before_s > 0 else 0.0


def advantage(without: Measured, with_it: Measured) -> Gain:
    """Both gains of the second over the first together, saturated throughput and time end to end, seed by seed.

    Examples
    --------
    >>> before = Measured((10.0, 20.0), (1.0, 1.0), (4.0, 8.0), 9)
    >>> after = Measured((11.0, 22.0), (1.0, 1.0), (3.0, 6.0), 0)
    >>> advantage(before, after).mean
    0.35
    """
    rates = zip(without.saturated_rps, with_it.saturated_rps, strict=True)
    times = zip(without.offered_e2e_s, with_it.offered_e2e_s, strict=True)
    sums = [(y / x - 1) + _saved(a, b) for (x, y), (a, b) in zip(rates, times, strict=True)]
    return paired([round(one, 12) for one in sums])


def paired(differences: Sequence[float]) -> Gain:
    """Mean of at least two paired differences, and Student's 95 % interval; without width where nothing varied.

    Examples
    --------
    >>> tuple(round(x, 3) for x in paired([0.1, 0.2, 0.3]))
    (0.2, -0.048, 0.448)
    """
    n = len(differences)
    mean = math.fsum(differences) / n
    spread = float(np.std(differences, ddof=1))
    half_width = t_quantile(n - 1) * spread / math.sqrt(n) if spread > _NO_SPREAD else 0.0
    return Gain(mean, mean - half_width, mean + half_width)
