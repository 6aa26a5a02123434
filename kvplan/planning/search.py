"""The fewest replicas, and the settings, of the cheapest kind: short runs find candidates, long ones decide.

The token budget of an iteration is the setting that counts, and there may be two good ones far apart: either every
iteration is within the limit on gaps, or so few gaps see a prompt that those do not count. So budgets are not climbed
to but tried, each of a list.
"""

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

from kvplan.executors import SERIAL, Engine, results
from kvplan.ranges import MOST_REPLICAS
from kvplan.simulation.experiments.runner import at_once
from kvplan.solve import least_whole
from kvplan.study.objectives import State
from kvplan.study.trial import Judged, Quick, Task

BUDGETS = (512, 1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 16_384)
FEW_BUDGETS = (512, 2_048, 8_192, 16_384)  # where prompts are found in caches, and runs are dear
_CEILING = 1.6  # times the least cost so far, beyond which a kind is not tried
_TIE = 1.05  # times the least cost, within which the cost at the slow end of the error band decides
_NEAR = 0.1  # of the best use of the objectives, within which the engine's own budget is taken
_HOPELESS = 2.0  # of the share that is allowed, beyond which no other budget is tried
_MOST_STEPS = 60  # replicas added to a size that long runs refuse


class Setting(NamedTuple):
    """A size with its token budget; None: no limit."""

    replicas: int
    batched_tokens: int | None


class Found(NamedTuple):
    """A size, and its judgement by long runs."""

    setting: Setting
    judged: Judged


class Band(NamedTuple):
    """Replicas that it takes at the ends of the error band of the timing; None: no number is enough."""

    low: float
    high: float
    replicas: tuple[int | None, int | None]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A kind of replica, and its runs so far.

    Attributes
    ----------
    task
        The service on it.
    price
        Of a replica.
    engine_tokens
        The engine's own token budget; None: it has none.
    listed
        Token budgets to try beside even ones; where `fixed_tokens` is given, that alone.
    own_weights
        Whether weights are as the model has them: other types change answers, and never push those out.
    idle, short, long
        Runs made so far, by token budget or setting, so that none is repeated.
    """

    name: str
    task: Task
    price: float
    engine_tokens: int | None
    fixed_tokens: int | None = None
    listed: tuple[int, ...] = BUDGETS
    own_weights: bool = True
    idle: dict[int | None, Quick] = field(init=False, default_factory=dict)
    short: dict[Setting, Quick] = field(init=False, default_factory=dict)
    long: dict[Setting, Judged] = field(init=False, default_factory=dict)

    def quick(self, setting: Setting) -> Quick:
        """Look at a setting by short runs."""
        if setting not in self.short:
            self.short[setting] = self.task.quick(*setting)
        return self.short[setting]

    def judge(self, setting: Setting) -> Judged:
        """Decide about a setting by long runs."""
        if setting not in self.long:
            self.long[setting] = self.task.judge(*setting)
        return self.long[setting]

    def cost(self, setting: Setting) -> float:
        """Return the cost of all replicas."""
        return setting.replicas * self.price

    def varied(self, setting: Setting, task: Task) -> "Candidate":
        """Return the kind for another task that is much like its own, with few budgets to try beside a known one."""
        listed = tuple(b for b in (setting.batched_tokens, max(BUDGETS)) if b is not None)
        return replace(self, task=task, listed=listed)

    def without(self, setting: Setting, keys: Collection[str]) -> "Candidate":
        """Return the kind without these objectives, and with what runs made so far say of the others."""
        slos = tuple(slo for slo in self.task.plan.slos if slo.key not in keys)
        other = self.varied(setting, replace(self.task, plan=replace(self.task.plan, slos=slos)))
        if slos:  # runs are the same
            other.idle.update((tokens, look.without(keys)) for tokens, look in self.idle.items())
            other.short.update((size, look.without(keys)) for size, look in self.short.items())
        return other

    @property
    def looked_at_idle(self) -> dict[int | None, Quick]:
        """Look at a request that is alone, with two budgets."""
        if not self.idle:
            budgets = self.budgets(1)
            # an even one keeps gaps short, the largest the wait for the first token
            ends = list(dict.fromkeys((budgets[0], max(budgets, key=lambda b: b or math.inf))))
            self.idle.update(zip(ends, at_once(self.task.idle, ends), strict=True))
        return self.idle

    @property
    def idle_look(self) -> Quick:
        """The better of the two."""
        return min(self.looked_at_idle.values(), key=lambda look: look.excess)

    @property
    def idle_excess(self) -> float:
        """Share of the objectives that an idle replica uses; above 1 no number of replicas is enough."""
        return self.idle_look.excess

    @cached_property
    def bound(self) -> int:
        """Replicas that are surely needed."""
        return min(self.task.bound(tokens) for tokens in self.budgets(1))

    def budgets(self, replicas: int) -> list[int | None]:
        """Token budgets of a rank to try: even ones first."""
        if self.fixed_tokens is not None:
            return [self.fixed_tokens]
        replica = self.task.model.replica
        if replica.max_num_batched_tokens is None or not self.task.model.timing.minds_prompts:
            return [replica.of_rank().max_num_batched_tokens]
        least = replica.of_rank().max_num_seqs or 1
        even = self.task.even_budgets(replicas)
        own = [] if self.engine_tokens is None else [self.engine_tokens]
        return [tokens for tokens in dict.fromkeys([*even, *own, *self.listed]) if tokens >= least]

    def best(self, replicas: int) -> tuple[Setting, Quick]:
        """Find the budget that uses least of the objectives; the engine's own if about as good."""
        settings = [Setting(replicas, tokens) for tokens in self.budgets(replicas)]
        own = Setting(replicas, self.engine_tokens)
        if own in settings and (look := self.quick(own)).excess <= _NEAR:  # whatever the others use
            return own, look
        looked = dict(zip(settings, at_once(self.quick, settings), strict=True))
        least = min(look.excess for look in looked.values())
        if own in looked and looked[own].excess <= least + _NEAR and (looked[own].passes or least > 1):
            return own, looked[own]
        setting = min(looked, key=lambda s: looked[s].excess)
        return setting, looked[setting]

    def fewest(self, ceiling: int | None = None, near: int = 1) -> Setting | None:
        """Return the least size that short runs have as enough, from `near` or the bound on; None if none is."""
        low = self.bound
        size = max(low, near) if ceiling is None else ceiling
        if size < low:
            return None
        step = 1
        while (enough := self._enough(size)) is None:
            if ceiling is not None or size > MOST_REPLICAS or self.idle_excess > 1:
                return None
            low, size, step = size + 1, size + step, 2 * step
        while size > low and (enough := self._enough(size - 1, enough)) is not None:
            size = least_whole(partial(self._is_enough, enough.batched_tokens), low - 1, size - 1)
        return self.best(size)[0]

    def _is_enough(self, tokens: int | None, replicas: int) -> bool:
        return self.quick(Setting(replicas, tokens)).passes

    def _enough(self, replicas: int, like: Setting | None = None) -> Setting | None:
        """Return the first setting of so many replicas that is enough; the budget of `like` is tried first."""
        settings = [Setting(replicas, tokens) for tokens in self.budgets(replicas)]
        settings.sort(key=lambda setting: like is None or setting.batched_tokens != like.batched_tokens)
        if self.quick(settings[0]).passes:
            return settings[0]
        by_tokens = sorted(settings, key=lambda setting: setting.batched_tokens or math.inf)
        if _is_hopeless(at_once(self.quick, list(dict.fromkeys((by_tokens[0], by_tokens[-1]))))):
            return None
        return next((setting for setting in settings if self.quick(setting).passes), None)

    def near(self, replicas: float) -> int | None:
        """Find the fewest replicas by short runs, beginning near so many; None: none is enough."""
        setting = self.fewest(near=round(replicas))
        return None if setting is None else setting.replicas

    def band(self, setting: Setting) -> Band | None:
        """Find replicas at the ends of the timing's error band, if it has one."""
        ends = self.task.model.measured.band
        return None if ends is None else self.between(setting, ends)

    def between(self, setting: Setting, ends: tuple[float, float]) -> Band:
        """Find replicas where iterations take `ends` times as long as stated."""
        low, high = (
            self.varied(setting, replace(self.task, times=end)).near(setting.replicas * end) for end in ends
        )
        return Band(*ends, (low, high))


def _is_hopeless(ends: Sequence[Quick]) -> bool:
    """Tell whether no budget between these two is enough: by far they miss the same, an objective or what is served."""
    least, missed = min(look.excess for look in ends), {look.worst for look in ends}
    return least > _HOPELESS and len(missed) == 1 and (math.isinf(least) or missed != {""})


class Race(NamedTuple):
    """Result of a search.

    Attributes
    ----------
    winner, found
        The candidate that costs least, and its size; None where none is enough, or long runs were not made any more.
    sizes
        The least that are enough by short runs, of those that do not cost much more.
    refused
        Candidates of which not even an idle replica meets the objectives.
    dearer
        Number of candidates that cost much more than the best.
    bands
        Sizes within the error band of the timing, of candidates that cost about as much as the winner.
    simulations
        Number of settings simulated, short and long runs apart.
    """

    winner: Candidate | None
    found: Found | None
    sizes: dict[Candidate, Setting]
    refused: tuple[Candidate, ...]
    dearer: int
    bands: Mapping[Candidate, Band | None]
    simulations: int


class Explored(NamedTuple):
    """A candidate's least size by short runs, and all that was simulated for it, wherever that was."""

    size: Setting | None
    idle: dict[int | None, Quick]
    short: dict[Setting, Quick]


def explored(candidate: Candidate, ceiling: int | None) -> Explored:
    """Look for the least size of a candidate, up to a ceiling; where there is none, at an idle replica, too."""
    size = candidate.fewest(ceiling)
    idle = {} if size is not None else candidate.looked_at_idle
    return Explored(size, idle, candidate.short)


def race(
    candidates: Iterable[Candidate],
    tell: Callable[[str], None] = lambda _: None,
    *,
    full: bool = False,
    engine: Engine = SERIAL,
) -> Race:
    """Find the size of the cheapest candidate that long runs confirm; `full`: of dear ones, too.

    As many candidates are looked at together as the engine takes. When it is interrupted, what short runs have found by
    then is returned; a KeyboardInterrupt where that is nothing.
    """
    every = sorted(candidates, key=lambda c: c.bound * c.price)
    waiting = every
    sizes: dict[Candidate, Setting] = {}
    refused: list[Candidate] = []
    winner, best, bands, total = None, None, dict[Candidate, Band | None](), len(every)
    try:
        while waiting:
            wave, waiting = waiting[: engine.ahead], waiting[engine.ahead :]
            ceilings = {c: None if full else _ceiling(c, sizes) for c in wave}
            wave = [c for c in wave if (ceiling := ceilings[c]) is None or ceiling >= c.bound]
            tell(_progress(total - len(waiting), total, sizes))
            for candidate, seen in zip(
                wave, results(engine, explored, wave, map(ceilings.get, wave)), strict=True
            ):
                candidate.idle.update(seen.idle)
                candidate.short.update(seen.short)
                if seen.size is not None:
                    sizes[candidate] = seen.size
                elif candidate.idle_excess > 1:
                    refused.append(candidate)
        if not full:
            sizes = {c: s for c, s in sizes.items() if s.replicas <= (_ceiling(c, sizes) or math.inf)}
        winner, best, bands = _confirmed(sizes, tell)
    except KeyboardInterrupt:
        if not sizes:
            raise
        winner = min(sizes, key=lambda c: c.cost(sizes[c]))
    simulations = sum(len(c.idle) + len(c.short) + len(c.long) for c in every)
    return Race(winner, best, sizes, tuple(refused), total - len(sizes) - len(refused), bands, simulations)


def _ceiling(candidate: Candidate, sizes: Mapping[Candidate, Setting]) -> int | None:
    """Return the most replicas of interest of a candidate; the model's own weights compete among themselves."""
    rivals = [c.cost(s) for c, s in sizes.items() if c.own_weights or not candidate.own_weights]
    return math.floor(_CEILING * min(rivals) / candidate.price) if rivals else None


def _progress(done: int, total: int, sizes: Mapping[Candidate, Setting]) -> str:
    text = f"{done} of {total}"
    if sizes:
        best = min(sizes, key=lambda c: c.cost(sizes[c]))
        text += f"; best so far {sizes[best].replicas:,} x {best.name}"
    return text


def _confirmed(
    sizes: dict[Candidate, Setting], tell: Callable[[str], None]
) -> tuple[Candidate | None, Found | None, dict[Candidate, Band | None]]:
    """Return the cheapest size that long runs confirm; those they refuse, or leave open, grow by a replica, or 2 %.

    Of several that cost about the same, take the one that costs least where iterations are as slow as they may be.
    """
    order = list(sizes)
    queue = [(c.cost(s), s.replicas * c.task.model.replica.gpus, order.index(c), s) for c, s in sizes.items()]
    heapq.heapify(queue)
    held: dict[Candidate, Found] = {}
    for _ in range(_MOST_STEPS * max(len(order), 1)):
        least = min((c.cost(f.setting) for c, f in held.items()), default=math.inf)
        if not queue or queue[0][0] > _TIE * least:
            break
        _, _, index, setting = heapq.heappop(queue)
        candidate = order[index]
        tell(f"confirming {setting.replicas:,} x {candidate.name}")
        judged = candidate.judge(setting)
        if judged.state is State.HOLDS:
            held[candidate] = fewer(candidate, Found(setting, judged))
            continue
        more, _ = candidate.best(setting.replicas + _step(setting))
        sizes[candidate] = more
        gpus = more.replicas * candidate.task.model.replica.gpus
        heapq.heappush(queue, (candidate.cost(more), gpus, index, more))
    if not held:
        return None, None, {}
    least = min(c.cost(f.setting) for c, f in held.items())
    tied = [c for c, f in held.items() if c.cost(f.setting) <= _TIE * least]
    sizes |= {c: f.setting for c, f in held.items()}
    if len(tied) == 1:
        return tied[0], held[tied[0]], {}
    bands = {c: c.band(held[c].setting) for c in tied}
    winner = min(tied, key=lambda c: (_slow_cost(c, held[c].setting, bands[c]), c.cost(held[c].setting)))
    return winner, held[winner], bands


def _slow_cost(candidate: Candidate, setting: Setting, band: Band | None) -> float:
    if band is None:
        return candidate.cost(setting)
    return math.inf if band.replicas[1] is None else band.replicas[1] * candidate.price


def fewer(candidate: Candidate, size: Found) -> Found:
    """Take replicas off, of hundreds several at once, while long runs confirm it with a budget of its own."""
    step = _step(size.setting)
    while step:
        replicas = size.setting.replicas - step
        if replicas >= candidate.bound:
            setting, _ = candidate.best(replicas)
            if (judged := candidate.judge(setting)).state is State.HOLDS:
                size = Found(setting, judged)
                continue
        step //= 2
    return size


def _step(setting: Setting) -> int:
    return max(1, setting.replicas // 50)


def neighbours(candidate: Candidate, setting: Setting) -> Iterable[Found]:
    """Yield one replica less, if there is one, and one more, where the same budget is nearly always enough."""
    if setting.replicas > 1:
        less = candidate.best(setting.replicas - 1)[0]
        yield Found(less, candidate.judge(less))
    more = setting._replace(replicas=setting.replicas + 1)
    if candidate.judge(more).state is not State.HOLDS:
        more = candidate.best(more.replicas)[0]
    yield Found(more, candidate.judge(more))
