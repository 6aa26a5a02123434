"""The fewest replicas, and the settings, of the cheapest kind: short runs find candidates, long ones decide.

The token budget of an iteration is the setting that counts, and there may be two good ones far apart: either every
iteration is within the limit on gaps, or so few gaps see a prompt that those do not count. So budgets are not climbed
to but tried, each of a list.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from kvplan.planning.trial import Judged, Quick, Task
from kvplan.simulation.experiments.runner import at_once
from kvplan.solve import least_whole
from kvplan.study.objectives import State

BUDGETS = (512, 1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 16_384)
MOST_REPLICAS = 100_000
_CEILING = 1.6  # times the least cost so far, beyond which a kind is not tried
_NEAR = 0.1  # of the best use of the objectives, within which the engine's own budget is taken
_MOST_STEPS = 60  # replicas added to a size that long runs refuse


class Setting(NamedTuple):
    """A size with its token budget; None: no limit."""

    replicas: int
    batched_tokens: int | None


class Found(NamedTuple):
    """A size, and what long runs say of it."""

    setting: Setting
    judged: Judged


@dataclass(frozen=True, eq=False)
class Candidate:
    """A kind of replica, and what is known of it.

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
    """

    name: str
    task: Task
    price: float
    engine_tokens: int | None
    fixed_tokens: int | None = None
    listed: tuple[int, ...] = BUDGETS

    @cached_property
    def quick(self) -> Callable[[Setting], Quick]:
        """Short runs, each once."""
        return lru_cache(maxsize=None)(lambda setting: self.task.quick(*setting))

    @cached_property
    def judge(self) -> Callable[[Setting], Judged]:
        """Long runs, each once."""
        return lru_cache(maxsize=None)(lambda setting: self.task.judge(*setting))

    def varied(self, setting: Setting, task: Task) -> "Candidate":
        """The same kind for another task that is much like its own, with few budgets to try beside a known one."""
        listed = tuple(b for b in (setting.batched_tokens, max(BUDGETS)) if b is not None)
        return replace(self, task=task, listed=listed)

    @cached_property
    def idle_look(self) -> Quick:
        """What a request sees that is alone, with the better of two budgets."""
        budgets = self.budgets(1)
        # an even one keeps gaps short, the largest the wait for the first token
        ends = dict.fromkeys((budgets[0], max(budgets, key=lambda b: b or math.inf)))
        return min(at_once(self.task.idle, list(ends)), key=lambda look: look.excess)

    @property
    def idle_excess(self) -> float:
        """How much of the objectives that uses; above 1 no number of replicas is enough."""
        return self.idle_look.excess

    @cached_property
    def bound(self) -> int:
        """Replicas that are surely needed."""
        return min(self.task.bound(tokens) for tokens in self.budgets(1))

    def budgets(self, replicas: int) -> list[int | None]:
        """Token budgets to try: even ones first."""
        if self.fixed_tokens is not None:
            return [self.fixed_tokens]
        if self.task.model.replica.max_num_batched_tokens is None or self.task.model.timing.d2 == 0:
            return [self.task.model.replica.max_num_batched_tokens]
        least = self.task.model.replica.max_num_seqs or 1
        even = self.task.even_budgets(replicas)
        own = [] if self.engine_tokens is None else [self.engine_tokens]
        return [tokens for tokens in dict.fromkeys([*even, *own, *self.listed]) if tokens >= least]

    def best(self, replicas: int) -> tuple[Setting, Quick]:
        """The budget that uses least of the objectives; the engine's own where that is about as good."""
        settings = [Setting(replicas, tokens) for tokens in self.budgets(replicas)]
        looked = dict(zip(settings, at_once(self.quick, settings), strict=True))
        least = min(look.excess for look in looked.values())
        own = Setting(replicas, self.engine_tokens)
        if own in looked and looked[own].excess <= least + _NEAR and (looked[own].passes or least > 1):
            return own, looked[own]
        setting = min(looked, key=lambda s: looked[s].excess)
        return setting, looked[setting]

    def fewest(self, ceiling: int | None = None, near: int = 1) -> Setting | None:
        """The least size that short runs have as enough; None: none up to the ceiling.

        Without one the search begins at `near`, or at the bound if that is more.
        """
        low = self.bound
        size = max(low, near) if ceiling is None else ceiling
        if size < low:
            return None
        step = 1
        while not self.best(size)[1].passes:
            if ceiling is not None or size > MOST_REPLICAS:
                return None
            low, size, step = size + 1, size + step, 2 * step
        size = least_whole(lambda n: self.best(n)[1].passes, low - 1, size)
        return self.best(size)[0]


class Race(NamedTuple):
    """What a search found.

    Attributes
    ----------
    winner, found
        The candidate that costs least, and its size; None where none is enough.
    sizes
        The least that short runs have as enough, of those that do not cost much more.
    refused
        That not even an idle replica of meets the objectives.
    dearer
        That cost much more than the best.
    """

    winner: Candidate | None
    found: Found | None
    sizes: dict[Candidate, Setting]
    refused: tuple[Candidate, ...]
    dearer: int


def race(
    candidates: Iterable[Candidate], tell: Callable[[str], None] = lambda _: None, *, full: bool = False
) -> Race:
    """Find the size of the cheapest candidate that long runs confirm; `full`: of dear ones, too."""
    refused, sizes, best, dearer = list[Candidate](), dict[Candidate, Setting](), math.inf, 0
    for candidate in sorted(candidates, key=lambda c: c.bound * c.price):
        tell(candidate.name)
        ceiling = None if full or best == math.inf else math.floor(_CEILING * best / candidate.price)
        if ceiling is not None and ceiling < candidate.bound:
            dearer += 1
        elif candidate.idle_excess > 1:
            refused.append(candidate)
        elif (size := candidate.fewest(ceiling)) is None:
            dearer += 1
        else:
            sizes[candidate] = size
            best = min(best, size.replicas * candidate.price)
    winner, found = _confirmed(sizes, tell)
    return Race(winner, found, sizes, tuple(refused), dearer)


def _confirmed(
    sizes: dict[Candidate, Setting], tell: Callable[[str], None]
) -> tuple[Candidate | None, Found | None]:
    """The cheapest size that long runs confirm; those they refuse, or leave open, grow by a replica."""
    order = list(sizes)
    queue = [
        (s.replicas * c.price, s.replicas * c.task.model.replica.gpus, order.index(c), s)
        for c, s in sizes.items()
    ]
    heapq.heapify(queue)
    for _ in range(_MOST_STEPS * max(len(order), 1)):
        if not queue:
            break
        _, _, index, setting = heapq.heappop(queue)
        candidate = order[index]
        tell(candidate.name)
        judged = candidate.judge(setting)
        if judged.state is State.HOLDS:
            return candidate, fewer(candidate, Found(setting, judged))
        more, _ = candidate.best(setting.replicas + 1)
        sizes[candidate] = more
        gpus = more.replicas * candidate.task.model.replica.gpus
        heapq.heappush(queue, (more.replicas * candidate.price, gpus, index, more))
    return None, None


def fewer(candidate: Candidate, found: Found) -> Found:
    """One replica less, as long as long runs confirm that with a budget of its own."""
    while found.setting.replicas > candidate.bound:
        setting, _ = candidate.best(found.setting.replicas - 1)
        judged = candidate.judge(setting)
        if judged.state is not State.HOLDS:
            break
        found = Found(setting, judged)
    return found


def neighbours(candidate: Candidate, replicas: int) -> Sequence[Found]:
    """One replica less, where there is one, and one more."""
    sizes = [n for n in (replicas - 1, replicas + 1) if n > 0]
    settings = [candidate.best(n)[0] for n in sizes]
    return [Found(setting, candidate.judge(setting)) for setting in settings]
