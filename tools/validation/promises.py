"""What runs say of a profile, beside what the oracle has: recovery, latencies, goodput, and settings that are advised.

Each promise has rows of what is said and true, of which some are off, a summary, and whether it is broken. Caches are
off: who is preempted finds nothing of itself again.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from oracle import System, live, truth
from scipy.optimize import brentq

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.model import Plan, ServingModel
from kvplan.model.slo import parse_slo
from kvplan.simulation.policies import engine_settings
from kvplan.study import advice, lasting
from kvplan.study import goodput as goodput_module
from kvplan.study.goodput import goodput
from kvplan.study.objectives import LOOKS
from kvplan.study.operating_point import OperatingPoint, Status, operating_point
from kvplan.study.recovery import recovery
from validation.profiles import Case
from validation.truths import Truths

WITHIN = (-0.03, 0.01)  # of the true rate up to which a replica recovers, for 95 %
ERRORS = 3.0  # standard errors of the truth that a wrong `stable` exceeds
OFFERED = 0.99  # of the truth: a profile that is offered less needs no cap

FRACTIONS = (0.5, 0.7, 0.3, 0.1, 0.85, 0.95)  # of the sustainable rate
TIMES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
STEADY_UP_TO = 0.9  # of what the replica recovers to
COVERAGE, LEAST = (0.92, 0.99), 0.88  # pooled over latencies, and of each figure
MOST_UNSETTLED = 8 / 42  # of the profiles at the fraction .7
_BIN = 5e-4  # of the oracle's gaps
_LONGER, _FEWEST, _MOST = 20, 100_000, 4_000_000  # requests, as many times those that are judged

SEARCHES = 3  # of each profile
DAYS, MOST_MISSED = 5, 0.05  # at a goodput, and the share of them that may miss
_MOST_OF_DAY = 2_000_000  # requests
INSIDE, ERROR = 0.9, 0.01  # the share of brackets that hold the truth, and the median error
KEYS = (
    "ttft_s.mean", "ttft_s.p90", "ttft_s.p95", "ttft_s.p99", "tpot_s.mean", "tpot_s.p95", "tpot_s.p99",
    "itl_s.mean", "itl_s.p95", "itl_s.p99", "e2e_s.mean", "e2e_s.p95",
)  # fmt: skip

MOST_LOST = 0.01  # of what is served, by a setting that is advised
_NEAR = 0.25  # of the TTFT that is printed: p95 near saturation


def sustainable_rps(model: ServingModel) -> float:
    """The rate that memory and limits allow without evictions."""
    return sustainable_rate(model)[1]


def recovers_up_to_rps(model: ServingModel) -> float:
    """The largest offered rate that is called stable."""
    return recovery(model, engine_settings(model)).rate_rps


def _without_cache(model: ServingModel) -> ServingModel:
    return replace(model, replica=replace(model.replica, prefix_caching=False))


@dataclass(frozen=True)
class Verdict:
    """The rate up to which a profile is called stable, and what its replica serves under a backlog, requests/s."""

    name: str
    said: float
    sustainable: float
    rate: float
    se: float
    start: str
    settled: bool

    @classmethod
    def rows(cls, cases: Iterable[Case], truths: Truths) -> Iterator["Verdict"]:
        """Judge each."""
        for case in cases:
            said, sustainable = recovers_up_to_rps(case.model), sustainable_rps(case.model)
            yield cls(case.name, said, sustainable, **served(case, truths))

    @property
    def off(self) -> float:
        """Relative to the truth."""
        true = min(self.rate, self.sustainable)
        return self.said / true - 1 if true else 0.0

    @property
    def is_wrongly_stable(self) -> bool:
        """Some rate is called stable that the replica does not serve."""
        return self.said > self.rate + ERRORS * self.se

    @property
    def is_off(self) -> bool:
        """By more than is allowed for most."""
        return self.is_wrongly_stable or not WITHIN[0] <= self.off <= WITHIN[1]

    @staticmethod
    def summary(judged: list["Verdict"]) -> dict[str, Any]:
        """Of all profiles, how many break what."""
        return {
            "truth not settled": sum(not row.settled for row in judged),
            "wrong stable": sum(row.is_wrongly_stable for row in judged),
            "needless needs_cap": sum(row.off < OFFERED - 1 for row in judged),
            "within": sum(WITHIN[0] <= row.off <= WITHIN[1] for row in judged) / len(judged),
            "off, in the median": median(row.off for row in judged),
        }

    @classmethod
    def broken(cls, judged: list["Verdict"]) -> bool:
        """Whether the promise is."""
        said = cls.summary(judged)
        needless = said["needless needs_cap"] > 0.01 * len(judged)
        return bool(said["wrong stable"] or needless or said["within"] < 0.95)


def served(case: Case, truths: Truths) -> dict[str, Any]:
    """What a replica serves under a backlog."""

    def compute() -> dict[str, Any]:
        whole = truth(System.of(case.model))
        return {"rate": whole.rate_rps, "se": whole.se, "start": whole.start, "settled": whole.settled}

    return truths.get(f"verdict:{case.name}:{case.digest}", compute)


@dataclass(frozen=True)
class Latency:
    """One profile at one fraction of its rate: the status, and of each figure with an interval whether that holds."""

    name: str
    fraction: float
    of_recovery: float
    status: Status
    unsettled: bool
    inside: dict[str, bool]
    absent: tuple[str, ...]  # latencies without figure or interval

    @classmethod
    def rows(cls, cases: Iterable[Case], truths: Truths) -> Iterator["Latency"]:
        """Judge each at each fraction, all at one before any at the next."""
        listed = [(case, sustainable_rps(case.model), recovers_up_to_rps(case.model)) for case in cases]
        for fraction in FRACTIONS:
            for case, sustainable, recovers in listed:
                rate = float(f"{fraction * sustainable:.6g}")
                at_rate = [
                    replace(c, rate_rps=c.rate_rps * rate / case.model.total_rate_rps)
                    for c in case.model.classes
                ]
                model = _without_cache(replace(case.model, classes=tuple(at_rate)))
                point = operating_point(model, Plan())
                inside, absent = cls._compared(case, rate, point, truths)
                unsettled = bool(point.latency.unsettled)
                yield cls(
                    case.name, fraction, rate / recovers, point.latency.status, unsettled, inside, absent
                )

    @staticmethod
    def _compared(
        case: Case, rate_rps: float, point: OperatingPoint, truths: Truths
    ) -> tuple[dict[str, bool], tuple[str, ...]]:
        if point.latency.status is Status.GROWING:
            return {}, ()
        known, figures = _figures(case, rate_rps, point.requests, truths), list(point.figures())
        inside = {
            key: _holds(interval, known[key])
            for key, _, interval in figures
            if interval is not None and key in known
        }
        times = [(key, value, i) for key, value, i in figures if key.split(".")[0] in TIMES]
        return inside, tuple(key for key, value, interval in times if value is None or interval is None)

    @property
    def is_off(self) -> bool:
        """A figure is missing, or a queue is said to grow that does not."""
        cries = self.of_recovery <= STEADY_UP_TO and self.status in ("growing", "undecided")
        return cries or bool(self.absent)

    @staticmethod
    def summary(judged: list["Latency"]) -> dict[str, Any]:
        """Statuses by fraction, coverage by figure."""
        hits: dict[str, list[bool]] = defaultdict(list)
        for row in judged:
            for key, inside in row.inside.items():
                hits[key].append(inside)
        pooled = [hit for key, inside in hits.items() if key.split(".")[0] in TIMES for hit in inside]
        statuses = {f: Counter(str(row.status) for row in judged if row.fraction == f) for f in FRACTIONS}
        coverage = {key: sum(inside) / len(inside) for key, inside in sorted(hits.items())}
        return {**statuses, **coverage, "all latencies": sum(pooled) / max(len(pooled), 1)}

    @classmethod
    def broken(cls, judged: list["Latency"]) -> bool:
        """Whether the promise is."""
        said, at = cls.summary(judged), [row for row in judged if row.fraction == 0.7]
        low, high = COVERAGE
        return (
            any(row.is_off for row in judged)
            or not low <= said["all latencies"] <= high
            or any(said[key] < LEAST for key in said if str(key).split(".")[0] in TIMES)
            or sum(row.unsettled for row in at) > MOST_UNSETTLED * len(at)
        )


def _figures(case: Case, rate_rps: float, judged: int, truths: Truths) -> dict[str, float]:
    """Figures at a rate, from a run that is longer than one of so many requests that is judged."""
    requests = min(_MOST, max(_FEWEST, _LONGER * judged))

    def compute() -> dict[str, Any]:
        seen = live(System.of(case.model), rate_rps=rate_rps, requests=requests)
        over_time = {
            "preemptions_per_request": seen.preemptions_per_request,
            "running": seen.running,
            "waiting": seen.queued,
            "kv_tokens_mean": seen.kv_tokens,
            "throughput_rps": seen.completed / seen.seconds,
        }
        return {"figures": seen.figures | over_time, "requests": requests}

    key = f"latency:{case.name}:{case.digest}:{rate_rps:.6g}"
    known: dict[str, float] = truths.get(key, compute, lambda x: bool(x["requests"] >= requests))["figures"]
    return known


def _holds(interval: tuple[float, float | None], value: float) -> bool:
    low, high = interval
    return low * (1 - _BIN) <= value and (high is None or value <= high * (1 + _BIN))


@dataclass(frozen=True)
class Goodput:
    """A search for the largest rate within an objective: the bracket, the rate, and the one at which it is met."""

    name: str
    objective: str
    low: float
    rate_rps: float
    high: float
    true: float

    @classmethod
    def rows(cls, cases: Iterable[Case], truths: Truths) -> Iterator["Goodput"]:
        """Judge searches on each."""
        for case in cases:
            model = _without_cache(case.model)
            for search in range(SEARCHES):
                known = _met(case, search, truths)
                objective = f"{known['key']} <= {known['limit_s']!r} s"
                found = goodput(model, Plan(), engine_settings(model), [parse_slo(objective)])
                high = math.inf if found.high is None else found.high
                yield cls(case.name, objective, found.low, found.crossing_rps, high, known["rate"])

    @property
    def is_inside(self) -> bool:
        """The truth is in the bracket."""
        return self.low <= self.true <= self.high

    @property
    def error(self) -> float:
        """Of the rate, relative."""
        return abs(self.rate_rps / self.true - 1)

    @property
    def is_off(self) -> bool:
        """By three times what is allowed in the median."""
        return not self.is_inside or self.error > 3 * ERROR

    @staticmethod
    def summary(judged: list["Goodput"]) -> dict[str, Any]:
        """Brackets that hold the truth, and errors."""
        errors = [row.error for row in judged]
        inside = sum(row.is_inside for row in judged) / len(judged)
        return {"inside": inside, "median error": median(errors), "largest error": max(errors)}

    @classmethod
    def broken(cls, judged: list["Goodput"]) -> bool:
        """Whether the promise is."""
        said = cls.summary(judged)
        return bool(said["inside"] < INSIDE or said["median error"] > ERROR)


def _met(case: Case, search: int, truths: Truths) -> dict[str, Any]:
    """An objective that a part of the recovered rate meets, and the rate at which it is met exactly."""
    recovered = served(case, truths)["rate"]

    def compute() -> dict[str, Any]:
        rng = np.random.default_rng([int(case.digest, 16), search])
        system, key = System.of(case.model), str(rng.choice(KEYS))
        near = float(rng.uniform(0.5, 0.92)) * recovered
        limit = float(f"{live(system, rate_rps=near, requests=100_000, seed=1).figures[key]:.3g}")

        def excess(log_rate: float) -> float:
            seen = live(system, rate_rps=math.exp(log_rate), requests=600_000, seed=2)
            return math.log(seen.figures[key] / limit)

        low, high = math.log(0.93 * near), math.log(1.07 * near)
        while excess(low) > 0:
            low -= 0.1
        while excess(high) < 0:
            high += 0.1
        return {"key": key, "limit_s": limit, "rate": math.exp(brentq(excess, low, high, xtol=0.002))}

    return truths.get(f"goodput:{case.name}:{case.digest}:{search}", compute)


@dataclass(frozen=True)
class Lasting:
    """A goodput, and days at it on other seeds than the search had: whether queues grow, and objectives are missed."""

    name: str
    objective: str
    rate_rps: float
    below_crossing: float  # relative
    seconds: float  # of CPU for the search
    collapsed: int  # days of `DAYS`
    missed: int  # days that miss beyond their 95 % interval

    @classmethod
    def rows(cls, cases: Iterable[Case], truths: Truths) -> Iterator["Lasting"]:
        """Judge a search on each; the objective is what the engine keeps at a part of what it recovers."""
        for case in cases:
            rng = np.random.default_rng([int(case.digest, 16), SEARCHES])
            model, settings = case.model, engine_settings(case.model)
            near = goodput_module.at_rate(model, float(rng.uniform(0.6, 0.97)) * sustainable_rps(model))
            key = str(rng.choice([key for key in KEYS if not key.startswith("e2e")]))
            time, _, figure = key.partition(".")
            limit = getattr(getattr(operating_point(near, Plan()).latency, time), figure)
            if limit is None:
                continue
            slo = parse_slo(f"{key} <= {limit:.3g} s")
            began = process_time()
            found = goodput(model, Plan(), settings, [slo])
            took = process_time() - began
            if found is None or found.rate_rps == 0:
                continue
            there = goodput_module.at_rate(model, found.rate_rps)
            day_s = min(86_400.0, _MOST_OF_DAY / found.rate_rps)
            days = lasting.runs(there, Plan(), settings, [slo], range(900_000, 900_000 + DAYS), day_s)
            yield cls(
                case.name,
                slo.text,
                found.rate_rps,
                1 - found.rate_rps / found.crossing_rps,
                took,
                sum(day.grows for day in days),
                sum(d.share - d.width / LOOKS > d.allowed for day in days for d in day.decided),
            )

    @property
    def is_off(self) -> bool:
        """A day was lost."""
        return self.collapsed > 0 or self.missed > 1

    @staticmethod
    def summary(judged: list["Lasting"]) -> dict[str, Any]:
        """Days that were lost, what the search cost, and by how much the goodput is lower than where runs cross."""
        return {
            "days": DAYS * len(judged),
            "collapsed": sum(row.collapsed for row in judged),
            "missed": sum(row.missed for row in judged),
            "below the crossing": median(row.below_crossing for row in judged),
            "CPU, median and most": (
                median(row.seconds for row in judged),
                max(row.seconds for row in judged),
            ),
        }

    @classmethod
    def broken(cls, judged: list["Lasting"]) -> bool:
        """Whether the promise is."""
        said = cls.summary(judged)
        return bool(said["collapsed"] > 0 or said["missed"] > MOST_MISSED * said["days"])


@dataclass(frozen=True)
class Advice:
    """Settings for a profile: what they change, relative, as printed and true, and TTFT p95 with them."""

    name: str
    settings: dict[str, float]
    said_backlogged: float
    backlogged: float
    offered: float
    said_ttft_p95_s: float | None
    ttft_p95_s: float | None

    @classmethod
    def rows(cls, cases: Iterable[Case], truths: Truths) -> Iterator["Advice"]:
        """Judge each advice."""
        for case in cases:
            model = _without_cache(case.model)
            base, point = recovery(model, engine_settings(model)), operating_point(model, Plan())
            for found in advice.advice(model, Plan(), base, point):
                settings = {setting.name: setting.value for setting in found.settings}
                without, with_it = (_served_with(case, given, truths) for given in ({}, settings))
                backlogged, offered = (with_it[key] / without[key] - 1 for key in ("backlogged", "offered"))
                ttft_s = found.ttft_p95_s_with, with_it["ttft_p95_s"]
                yield cls(case.name, settings, found.gain_backlogged, backlogged, offered, *ttft_s)

    @property
    def is_off(self) -> bool:
        """It loses throughput, or costs another TTFT than printed where the queue does not grow."""
        loses = min(self.backlogged, self.offered) < -MOST_LOST
        printed, true = self.said_ttft_p95_s, self.ttft_p95_s
        return loses or (true is not None and (printed is None or abs(printed / true - 1) > _NEAR))

    @staticmethod
    def summary(judged: list["Advice"]) -> dict[str, Any]:
        """How many there are."""
        return {"profiles": len({row.name for row in judged}), "off": sum(row.is_off for row in judged)}

    @staticmethod
    def broken(judged: list["Advice"]) -> bool:
        """Whether the promise is."""
        return any(row.is_off for row in judged)


def _served_with(case: Case, settings: dict[str, float], truths: Truths) -> dict[str, Any]:
    """What settings serve: under a backlog, at the offered rate, and TTFT there."""

    def compute() -> dict[str, Any]:
        seats = settings.get("max_num_seqs")
        max_num_seqs = None if seats is None else int(seats)
        system = System.of(case.model, watermark=settings.get("watermark"), max_num_seqs=max_num_seqs)
        whole, seen = truth(system), live(system, requests=2_000_000)
        grows = whole.rate_rps < 1.01 * system.rate_rps
        return {
            "backlogged": whole.rate_rps,
            "offered": seen.completed / seen.seconds,
            "ttft_p95_s": None if grows else seen.figures["ttft_s.p95"],
        }

    return truths.get(f"advice:{case.name}:{case.digest}:{sorted(settings.items())}", compute)
