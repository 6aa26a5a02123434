"""Plans for the demands of `demands.toml`: replicas that are just enough, and what a search misses."""

import math
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli
from oracle import System, live

from kvplan.model import Plan as NoPlan
from kvplan.model import ServingModel
from kvplan.options import PlanOptions
from kvplan.planning import options
from kvplan.planning.plan import plan
from kvplan.planning.result import Plan, Request
from kvplan.planning.result import Size as PlannedSize
from kvplan.planning.search import Candidate, Setting
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.study import study
from kvplan.simulation.metrics import LATENCIES
from kvplan.simulation.policies import engine_settings
from kvplan.study.drain import ENOUGH, drain
from kvplan.study.objectives import State
from validation.profiles import Case
from validation.truths import Truths

_TABLES = tomli.loads(Path(__file__).with_name("demands.toml").read_text("utf-8"))
DEMANDS: dict[str, str] = _TABLES["judged"]
SEARCHED: dict[str, str] = DEMANDS | _TABLES["searched"]
REQUESTS = 200_000
FRESH = 1_000  # the first seed of bursts that no plan has looked at
RARE = 1e-3  # evictions of a request, up to which it does not count that the evicted find their blocks again
MOST_LOAD = 0.985  # of what is sustainable, beyond which a size is not tried

# Long runs decide but where short ones see more than so many times the share, or mean, that is allowed.
HOPELESS, HOPELESS_MEAN = 2.0, 1.2
MOST_TOO_MANY, SHARE = 2, 0.1  # demands that get too many, and how many of their replicas; one at least
MORE_BUDGETS = (
    256, 384, 640, 768, 896, 1_280, 1_792, 2_560, 3_584, 5_120, 7_168, 10_240, 12_288, 20_480, 32_768,
)  # fmt: skip


def request(command: str) -> Request:
    """What `kvplan plan` reads of such a line."""
    read = {"rate": float, "users": int, "system_prompt": int, "turns": str}
    service, *words = shlex.split(command)
    given: dict[str, Any] = {"slo": ()}
    for option, value in zip(words[::2], words[1::2], strict=True):
        name = option.removeprefix("--").replace("-", "_")
        name = {"in": "input", "out": "output"}.get(name, name)
        given[name] = (*given["slo"], value) if name == "slo" else read.get(name, str)(value)
    return options.request([service], PlanOptions(**given))


@dataclass(frozen=True)
class Size:
    """The size planned for a demand: true figures over their limits, and those of one replica less, slower."""

    name: str
    kind: str
    replicas: int
    below: str  # what is said of one less
    bursts: (
        int | None
    )  # of fresh ones, on one less, that are over in time, where that is why it is not enough
    enough: dict[str, float]
    fewer: dict[str, float]  # empty where that is too much load

    @classmethod
    def rows(cls, _: Iterable[Case], truths: Truths) -> Iterator["Size"]:
        """Judge each demand."""
        for name, command in DEMANDS.items():
            asked = request(command)
            found = plan(asked)
            task, most, few = found.winner.task, found.setting.replicas, found.setting.replicas - 1
            sizes = {size.replicas: size for size in found.sizes}
            enough, fewer = {}, {}
            for words, slower in (("", False), (" slower", True)):
                ratios = _ratios(name, asked, found, most, truths, slower=slower)
                enough |= {key + words: ratio for key, ratio in ratios.items()}
            if few and task.rate_rps <= MOST_LOAD * few * task.sustainable_rps(sizes[few].batched_tokens):
                fewer = _ratios(name, asked, found, few, truths, slower=True)
            below = str(sizes[few].state) if few in sizes else "none"
            bursts = _bursts(sizes[few]) if few in sizes else None
            yield cls(name, found.winner.name, most, below, bursts, enough, fewer)

    @property
    def is_off(self) -> bool:
        """An objective is missed; or one less keeps all, is not open, nor too much, and recovers from bursts."""
        least = self.below in ("open", "none") or not self.fewer or max(self.fewer.values(), default=0) > 1
        least = least or (self.bursts is not None and self.bursts < ENOUGH)
        return max(self.enough.values(), default=0) > 1 or not least

    @staticmethod
    def summary(judged: list["Size"]) -> dict[str, Any]:
        """Every demand."""
        return {row.name: row for row in judged}

    @staticmethod
    def broken(judged: list["Size"]) -> bool:
        """Whether the promise is."""
        return any(row.is_off for row in judged)


def _bursts(size: PlannedSize) -> int | None:
    """Bursts on seeds that nobody has looked at which are over in time; None where they were not why it is refused."""
    recovery = size.recovery
    if recovery is None or size.met is not State.HOLDS or recovery.state is not State.MISSES:
        return None
    return drain(recovery.model, NoPlan(), FRESH).within(recovery.within_s)


def _ratios(
    name: str, asked: Request, found: Plan, replicas: int, truths: Truths, *, slower: bool
) -> dict[str, float]:
    """Figures over their limits."""
    tokens = {size.replicas: size.batched_tokens for size in found.sizes}[replicas]
    model = found.winner.task.at(replicas, tokens, slower=slower)
    digest = "" if found.profile is None else found.profile.sha256[:16]
    figures = truths.get(f"plan:{name}:{digest}:{replicas}:{slower}", lambda: _figures(model))
    return {slo.key: figures[slo.key] / slo.bound for slo in asked.slos}


def _figures(model: ServingModel) -> dict[str, float]:
    """By the oracle, or where requests find something in a cache, by a long run of the simulator on other draws."""
    if not model.finds_prefixes:
        seen = live(System.of(model), requests=REQUESTS)
        if seen.preemptions_per_request < RARE:
            return seen.figures
    policies = {"engine": engine_settings(model)}
    run = study(model, NoPlan(), Load(requests=REQUESTS), policies, [77]).results[0]
    return {key: value for key, value in run.figures.items() if key.split(".")[0] in LATENCIES}


@dataclass(frozen=True)
class Search:
    """The size that a demand gets, and the least that any budget keeps, each with its budget."""

    name: str
    found: Setting
    least: Setting
    looked: int
    judged: int

    @classmethod
    def rows(cls, _: Iterable[Case], __: Truths) -> Iterator["Search"]:
        """Plan each demand, and try everything below."""
        for name, command in SEARCHED.items():
            found = plan(request(command))
            looked, judged, least = 0, 0, found.setting
            for replicas in range(found.winner.bound, found.setting.replicas + 1):
                settings = [Setting(replicas, tokens) for tokens in _budgets(found.winner, replicas)]
                looked += len(settings)
                near = sorted((x, i) for i, s in enumerate(settings) if (x := _excess(found.winner, s)) <= 1)
                for _, i in near:
                    judged += 1
                    if found.winner.judge(settings[i]).state is State.HOLDS:
                        least = settings[i]
                        break
                else:
                    continue
                break
            yield cls(name, found.setting, least, looked, judged)

    @property
    def too_many(self) -> int:
        """Replicas that are not needed; below 0: too few."""
        return self.found.replicas - self.least.replicas

    @property
    def is_off(self) -> bool:
        """By too few, or by more than a share."""
        return self.too_many < 0 or self.too_many > max(1, SHARE * self.least.replicas)

    @staticmethod
    def summary(judged: list["Search"]) -> dict[str, Any]:
        """Every demand."""
        return {row.name: row for row in judged}

    @staticmethod
    def broken(judged: list["Search"]) -> bool:
        """Whether the promise is."""
        return any(row.is_off for row in judged) or sum(row.too_many > 0 for row in judged) > MOST_TOO_MANY


def _budgets(candidate: Candidate, replicas: int) -> list[int | None]:
    """Those that the search tries at a size, and more."""
    tried = candidate.budgets(replicas)
    least = candidate.task.model.replica.max_num_seqs or 1
    return tried if len(tried) == 1 else [*tried, *(t for t in MORE_BUDGETS if t >= least and t not in tried)]


def _excess(candidate: Candidate, setting: Setting) -> float:
    """The worst of the objectives by short runs, as a multiple of what is hopeless."""
    look = candidate.quick(setting)
    if not look.decided or math.isinf(look.excess):
        return look.excess / HOPELESS
    return max(d.share / d.allowed / (HOPELESS_MEAN if d.allowed == 1 else HOPELESS) for d in look.decided)
