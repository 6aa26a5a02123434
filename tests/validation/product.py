"""What kvplan says: the only module here that asks it."""

import math
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.model import Plan, ServingModel
from kvplan.model.slo import parse_slo
from kvplan.options import PlanOptions
from kvplan.planning import options
from kvplan.planning.plan import plan
from kvplan.planning.result import Request
from kvplan.planning.search import Candidate, Setting
from kvplan.planning.trial import Task
from kvplan.simulation.policies import engine_settings
from kvplan.study import advice as tried
from kvplan.study import goodput as search
from kvplan.study import operating_point as study
from kvplan.study.objectives import State
from kvplan.study.recovery import recovery


@dataclass(frozen=True)
class Point:
    """Figures at a rate by key, such as `ttft_s.p95`, and their intervals; none where the status is growing."""

    status: str
    reason: str | None
    figures: dict[str, float | None]
    intervals: dict[str, tuple[float, float | None] | None]
    unsettled: tuple[str, ...]
    requests: int


@dataclass(frozen=True)
class Goodput:
    """The largest rate within an objective, and the rates between which it lies."""

    rate_rps: float
    low: float
    high: float | None


@dataclass(frozen=True)
class Advice:
    """Settings that go together, what they gain under a backlog, and TTFT p95 with them at the offered rate."""

    settings: dict[str, float]
    gain_backlogged: float
    ttft_p95_s: float | None


def sustainable_rps(model: ServingModel) -> float:
    """The rate that memory and limits allow without evictions."""
    return sustainable_rate(model)[1]


def recovers_up_to_rps(model: ServingModel) -> float:
    """The largest offered rate that is called stable."""
    return recovery(model, engine_settings(model)).rate_rps


def operating_point(model: ServingModel) -> Point:
    """Figures of a model at its rate."""
    point = study.operating_point(model, Plan())
    figures = list(point.figures())
    return Point(
        str(point.latency.status),
        point.latency.reason,
        {key: value for key, value, _ in figures},
        {key: interval for key, _, interval in figures},
        point.latency.unsettled,
        point.requests,
    )


def goodput(model: ServingModel, key: str, limit_s: float) -> Goodput:
    """The search for one objective, such as `ttft_s.p95`."""
    found = search.goodput(model, Plan(), engine_settings(model), [parse_slo(f"{key} <= {limit_s!r} s")])
    return Goodput(found.rate_rps, found.low, found.high)


def advice(model: ServingModel) -> list[Advice]:
    """What is printed."""
    base, point = recovery(model, engine_settings(model)), study.operating_point(model, Plan())
    return [
        Advice({s.name: s.value for s in found.settings}, found.gain_backlogged, found.ttft_p95_s_with)
        for found in tried.advice(model, Plan(), base, point)
    ]


def without_cache(model: ServingModel) -> ServingModel:
    """Preempted requests find nothing of themselves again."""
    return replace(model, replica=replace(model.replica, prefix_caching=False))


def at_rate(model: ServingModel, rate_rps: float) -> ServingModel:
    """The same mix at another rate."""
    factor = rate_rps / model.total_rate_rps
    classes: Any = tuple(replace(c, rate_rps=c.rate_rps * factor) for c in model.classes)
    return replace(model, classes=classes)


TABLES = tomli.loads(Path(__file__).with_name("demands.toml").read_text("utf-8"))
DEMANDS: dict[str, str] = TABLES["judged"]
_READ = {"rate": float, "users": int, "system_prompt": int, "turns": float}
_NAMES = {"in": "input", "out": "output"}


def request(command: str) -> Request:
    """What `kvplan plan` reads of such a line."""
    service, *words = shlex.split(command)
    given: dict[str, Any] = {"slo": []}
    for option, value in zip(words[::2], words[1::2], strict=True):
        name = option.removeprefix("--").replace("-", "_")
        if name == "slo":
            given["slo"].append(value)
        else:
            given[_NAMES.get(name, name)] = _READ.get(name, str)(value)
    return options.request([service], PlanOptions(**given | {"slo": tuple(given["slo"])}))


@dataclass(frozen=True)
class Planned:
    """How many replicas are asked for, and what the one below them is said to do."""

    kind: str
    replicas: int
    below: str
    limits: dict[str, float]
    task: Task
    batched_tokens: dict[int, int | None]
    digest: str
    seconds: float

    def replica(self, replicas: int, *, slower: bool) -> ServingModel:
        """One of so many."""
        return self.task.at(replicas, self.batched_tokens[replicas], slower=slower)

    def load(self, replicas: int) -> float:
        """Share of what is sustainable, slower."""
        tokens = self.batched_tokens[replicas]
        return self.task.rate_rps / (replicas * self.task.sustainable_rps(tokens))


def planned() -> Iterator[tuple[str, Planned]]:
    """Plan each demand."""
    for name, command in DEMANDS.items():
        began = time.process_time()
        asked = request(command)
        found = plan(asked)
        setting = found.setting
        sizes = {size.replicas: size for size in found.sizes}
        below = sizes.get(setting.replicas - 1)
        yield (
            name,
            Planned(
                found.winner.name,
                setting.replicas,
                "none" if below is None else str(below.state),
                {slo.key: slo.bound for slo in asked.slos},
                found.winner.task,
                {size.replicas: size.batched_tokens for size in found.sizes},
                "" if found.profile is None else found.profile.sha256[:16],
                time.process_time() - began,
            ),
        )


@dataclass(frozen=True)
class Sizes:
    """Sizes and budgets of the kind of replica that a demand names, and what the search decides of them."""

    found: tuple[int, int | None]
    candidate: Candidate

    @classmethod
    def of(cls, command: str) -> "Sizes":
        """Plan a demand."""
        found = plan(request(command))
        assert found.race.found is not None, command
        return cls(found.setting, found.winner)

    @property
    def bound(self) -> int:
        """Fewer are surely not enough."""
        return self.candidate.bound

    def budgets(self, replicas: int, more: Sequence[int]) -> list[int | None]:
        """Those that the search tries at a size, and more."""
        tried = self.candidate.budgets(replicas)
        least = self.candidate.task.model.replica.max_num_seqs or 1
        return tried if len(tried) == 1 else [*tried, *(t for t in more if t >= least and t not in tried)]

    def excess(self, setting: tuple[int, int | None], of_mean: float, of_share: float) -> float:
        """The worst of the objectives by short runs, as a multiple of so many times what is allowed."""
        look = self.candidate.quick(Setting(*setting))
        if not look.decided or math.isinf(look.excess):
            return look.excess / of_share
        return max(d.share / d.allowed / (of_mean if d.allowed == 1 else of_share) for d in look.decided)

    def holds(self, setting: tuple[int, int | None]) -> bool:
        """What long runs decide."""
        return self.candidate.judge(Setting(*setting)).state is State.HOLDS
