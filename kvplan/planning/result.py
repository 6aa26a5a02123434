"""The request for a plan, and the plan."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from kvplan.arguments import ApiPrice
from kvplan.model.fleet import Routing
from kvplan.model.slo import Slo
from kvplan.planning.day import Day
from kvplan.planning.demand import Demand, Replay
from kvplan.planning.host_memory import Tier
from kvplan.planning.intervals import Spaced
from kvplan.planning.kinds import Kind
from kvplan.planning.measuring import First
from kvplan.planning.saved import Stated
from kvplan.planning.search import Band, Candidate, Race, Setting
from kvplan.planning.split import Apart
from kvplan.planning.ways import Ways
from kvplan.profile.reading import Profile
from kvplan.study.drain import Drain
from kvplan.study.headroom import Headroom
from kvplan.study.objectives import Decision, State
from kvplan.study.operating_point import Latency
from kvplan.study.trial import Recovers

_HOUR_S = 3600.0
# of the power at load, where nobody says: a CUDA context adds 26 to 50 W to what idle GPUs with HBM draw (arXiv
# 2605.23918), about 70 W by nvidia-smi on an H100 SXM and 55 W on an A100 SXM: 14 to 26 %
_IDLE = 0.2


class Status(StrEnum):
    """End of a search."""

    PLANNED = "planned"
    IMPOSSIBLE = "impossible"
    INTERRUPTED = "interrupted"


class Objective(NamedTuple):
    """A figure of the fleet, and its limit where it has one; times in seconds.

    `low` and `high` are its 95 % interval, `slower` the value with iterations slower, `cliff` the times between which
    it moves for a per cent of the requests, `mean` and `p99` those of the same time; `replicas_without` are what the
    other objectives alone take, by short runs, and `replicas_with_tpot`, of one on ITL, the fewer that do with its
    limit on TPOT.
    """

    key: str
    limit: float | None
    value: float | None
    low: float | None
    high: float | None
    slower: float | None
    state: State
    cliff: tuple[float, float] | None
    replicas_without: int | None
    replicas_with_tpot: int | None
    mean: float | None
    p99: float | None


class Size(NamedTuple):
    """A number of replicas, with its best token budget; `missed` are keys as of `Judged.missed`."""

    replicas: int
    batched_tokens: int | None
    state: State
    met: State
    missed: tuple[str, ...]
    decided: tuple[Decision, ...]
    recovery: Recovers | None


class Alternative(NamedTuple):
    """Another kind of replica, by short runs."""

    candidate: Candidate
    setting: Setting


class Versus(NamedTuple):
    """A replica that shares the winner's GPUs otherwise, with the engine's own token budget: why it costs more."""

    name: str
    memory: float  # KV tokens, times the winner's
    rate: float  # sustainable requests/s, likewise
    limit: str  # what limits it


class Refused(NamedTuple):
    """A kind that cannot do it at any number, and why; where it holds the model, what a request sees that is alone."""

    name: str
    why: str
    least: tuple[Decision, ...] = ()
    unknown: bool = False  # nothing models it


class Cost(NamedTuple):
    """Cost of an hour, of a million tokens in and out, and of a million out."""

    per_hour: float
    per_million_tokens: float
    per_million_output_tokens: float


class Share(NamedTuple):
    """Part of the planned demand that each replica, and each GPU, serves."""

    replica_rps: float
    gpu_output_tokens_per_s: float


class Api(NamedTuple):
    """An API beside the plan: what an hour of the demand costs there, and the rate from which the plan is cheaper.

    The plan costs the same at any rate up to its demand; of an API a rate has its price. `autoscaled_per_hour` is what
    replicas that come and go in a simulated period cost, without spare ones.
    """

    per_hour: float
    cheaper_from_rps: float
    autoscaled_per_hour: float | None


class Power(NamedTuple):
    """Watts of a GPU at load and idle; `assumed`: nobody says what it draws at idle."""

    load: float
    idle: float
    assumed: bool


class Energy(NamedTuple):
    """Watts of all GPUs at load, `busy` of the time, and idle; energy as run, of a token of the mean demand."""

    watts: float
    idle_watts: float
    idle_assumed: bool
    busy: float
    kwh_per_day: float
    joules_per_output_token: float


class Next(NamedTuple):
    """The input on which the number of replicas depends most, from how many to how many, and what measures it."""

    input: str
    replicas: tuple[int, int | None]
    command: str
    first: First | None = None  # of the runs that measure the speed


@dataclass(frozen=True)
class Request:
    """Request for a search.

    Attributes
    ----------
    options
        Kinds, or profiles, that may serve it.
    demand
        Of kinds; profiles have their own unless it is given.
    rate_rps
        In the place of the rates of profiles.
    schedule
        Table [workload] with a period and a schedule.
    load_s
        From the start of a replica until it serves; None: the period of the schedule is not planned.
    split
        True where prefill and decode apart are looked at.
    spare
        Replicas beyond those that are enough, in GPUs and cost alone.
    settings
        Of the engine, by key, that are given and not searched.
    prices
        Of replicas, by the names of kinds and the sources of profiles.
    unpriced
        Why the price of a saved plan is left out; empty where none is.
    api_price
        Of what is asked for elsewhere.
    folder
        Where the plan is to stand, which refers to files.
    """

    options: Sequence[Kind | Profile]
    demand: Demand | Replay | Stated | None
    slos: tuple[Slo, ...]
    rate_rps: float | None = None
    slower: float = 0.05
    headroom: float = 0.0
    spare: int = 0
    recover_s: float | None = None
    engine: str = "vllm"
    settings: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] | None = None
    load_s: float | None = None
    split: bool = False
    prices: Mapping[str, float] | None = None
    unpriced: str = ""
    api_price: ApiPrice | None = None
    offload: tuple[float, ...] | None = None
    memory_hour: float = 0.0
    router: Routing | None = None
    folder: Path = Path()

    def option(self, name: str) -> Kind | Profile:
        """Return the kind of replica, or the profile, by name."""
        return next(option for option in self.options if option.name == name)

    def kind(self, name: str) -> Kind | None:
        """Return the kind of replica by name; None: it is a profile."""
        option = self.option(name)
        return option if isinstance(option, Kind) else None

    def model_table(self, name: str) -> Mapping[str, Any] | None:
        """Return the table [model] of an option by name."""
        option = self.option(name)
        return option.model_table if isinstance(option, Kind) else option.tables.get("model")

    def power(self, name: str) -> Power | None:
        """Return what a GPU of the option draws; None: nobody says."""
        option = self.option(name)
        said = option.gpu if isinstance(option, Kind) else option.plan
        idle = None if isinstance(option, Kind) else option.plan.idle_watts
        if said.watts is None:
            return None
        return Power(said.watts, _IDLE * said.watts if idle is None else idle, idle is None)

    @property
    def priced(self) -> bool:
        """True where cost is money, and not GPUs."""
        return self.prices is not None


class Plan(NamedTuple):
    """Result of `kvplan plan`.

    Attributes
    ----------
    race
        The search.
    refused
        Kinds that cannot serve the model, or meet the objectives.
    profile
        The service as planned, which `-o` writes; None where it is impossible.
    headroom
        By how much the demand may grow at this size.
    by_short_runs
        Replicas that short runs have as enough, which `band`, `spread` and `first_come` compare with.
    spread
        Replicas by cv of lengths that are assumed; empty where they are stated.
    versus
        Kinds that share the winner's GPUs otherwise, by ranks, experts, stages or contexts.
    host_memory
        Replicas with none and with tiers of host memory, where that was asked for; `host_curve`: along their size.
    first_come
        Replicas without priorities, by short runs; None where there are none, or no number is enough.
    spaced
        The kind with prompts at an interval; None where that was not looked for, or saves nothing.
    apart
        Prefill and decode on replicas of their own, where that was asked for.
    day
        The period of the schedule, where that was asked for.
    mean_rps
        The demand, of a schedule its mean.
    busy
        Share of the time that a replica computes, likewise.
    worst
        From when to when in the period of a schedule the demand is that which is planned for, seconds.
    next
        What to measure; None where the number of replicas depends on nothing that is estimated or assumed.
    """

    status: Status
    demand: str
    request: "Request"
    race: Race
    refused: tuple[Refused, ...]
    profile: Profile | None = None
    objectives: tuple[Objective, ...] = ()
    sizes: tuple[Size, ...] = ()
    headroom: Headroom | None = None
    band: Band | None = None
    by_short_runs: int = 0
    spread: tuple[tuple[float, int], ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    versus: tuple[Versus, ...] = ()
    routers: tuple[tuple[str, int], ...] = ()
    first_come: int | None = None
    spaced: Spaced | None = None
    host_memory: tuple[Tier, ...] = ()
    host_curve: tuple[Tier, ...] = ()
    drain: Drain | None = None
    latency: Latency | None = None
    verdict: str = ""
    recovery_rps: float | None = None
    apart: Apart | None = None
    day: Day | None = None
    mean_rps: float = 0.0
    busy: float | None = None
    worst: tuple[float, float] | None = None
    ways: Ways = Ways()
    next: Next | None = None

    @property
    def winner(self) -> Candidate:
        """The kind of replica that was chosen."""
        assert self.race.winner is not None
        return self.race.winner

    @property
    def setting(self) -> Setting:
        """Replicas and token budget of the plan; by short runs where the search was interrupted."""
        return self.race.sizes[self.winner] if self.race.found is None else self.race.found.setting

    def kind(self, name: str) -> Kind | None:
        """Return the kind of replica by name; None: it is a profile."""
        return self.request.kind(name)

    @property
    def cost(self) -> Cost | None:
        """Cost of all replicas; None where prices are not known."""
        return self.cost_of(self.winner, self.setting)

    def bought(self, replicas: int) -> int:
        """Count replicas with the spare ones."""
        return replicas + self.request.spare

    def cost_of(self, candidate: Candidate, setting: Setting) -> Cost | None:
        """Return the cost of so many replicas of a kind; None where prices are not known."""
        if not self.request.priced:
            return None
        hour, mix = self.bought(setting.replicas) * candidate.price, candidate.task.model.mix
        out = self.mean_rps * mix.mean(mix.decode_tokens) * _HOUR_S / 1e6
        every = out + self.mean_rps * mix.mean(mix.input_tokens) * _HOUR_S / 1e6
        return Cost(hour, hour / every, hour / out)

    @property
    def share(self) -> Share:
        """Share of each; users ask as often as so many replicas let them."""
        model, replicas = self.winner.task.model, self.setting.replicas
        tokens = model.mix.mean(model.mix.decode_tokens) / model.replica.gpus
        rate_rps = (self.mean_rps if self.worst is None else model.total_rate_rps) / replicas
        return Share(rate_rps, rate_rps * tokens)

    @property
    def api(self) -> Api | None:
        """The API beside it; None where one of the prices is not known."""
        asked, cost, mix = self.request.api_price, self.cost, self.winner.task.model.mix
        if asked is None or cost is None:
            return None
        paid = asked.per_million_in * mix.mean(mix.input_tokens)
        hour = _HOUR_S / 1e6 * (paid + asked.per_million_out * mix.mean(mix.decode_tokens))
        autoscaled = None
        if self.day is not None and self.day.ways:
            autoscaled = self.day.ways["autoscaled"].replicas * self.winner.price
        return Api(self.mean_rps * hour, cost.per_hour / hour, autoscaled)

    @property
    def energy(self) -> Energy | None:
        """Energy as run; None where nobody says what a GPU draws."""
        power, mix = self.request.power(self.winner.name), self.winner.task.model.mix
        if power is None or self.busy is None:
            return None
        bought = self.bought(self.setting.replicas)
        gpus = self.winner.task.model.replica.gpus * bought
        busy = self.busy * self.setting.replicas / bought  # spare replicas share the work, and add none
        kilowatts = self.kwh(gpus, busy * gpus)
        tokens_per_s = self.mean_rps * mix.mean(mix.decode_tokens)
        return Energy(
            gpus * power.load,
            gpus * power.idle,
            power.assumed,
            busy,
            24 * kilowatts,
            1000 * kilowatts / tokens_per_s,
        )

    def kwh(self, gpu_hours: float, busy_gpu_hours: float) -> float:
        """Return the energy of GPUs that are busy for a part of the time; NaN where nobody says what one draws."""
        load, idle, _ = self.request.power(self.winner.name) or (math.nan,) * 3
        return (busy_gpu_hours * load + (gpu_hours - busy_gpu_hours) * idle) / 1000
