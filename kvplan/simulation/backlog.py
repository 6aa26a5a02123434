"""A replica that always has more to serve: a run from a given state that can be gone on with.

Time has no part in what a saturated replica does: an iteration is formed from who is resident and who waits, however
long it takes. So a run is measured in iterations, and what its iterations were made of prices any law afterwards.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray, IntArray, Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.drafts import Drafts
from kvplan.model.lengths import Lengths
from kvplan.model.weights import first_tokens, stage_count
from kvplan.simulation import engine
from kvplan.simulation.initial_state import Setup, new_state, stage_weights
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Drafted, Requests, saturated, with_drafts
from kvplan.simulation.residents import put_residents, tokens_emitted
from kvplan.simulation.rows import Rows
from kvplan.simulation.state import (
    Blocks,
    Counter,
    Fixed,
    Group,
    Place,
    Request,
    Span,
    State,
    Time,
    features,
    layered,
)

_LONG = 1_000_000  # tokens, beyond which lengths are not laid out one by one
_PIECE = 1 << 12  # requests that are drawn at a time
_MOST_WAITING = 1 << 17


class Mark(NamedTuple):
    """Totals of a run so far.

    Attributes
    ----------
    footprint
        Block-iterations served: of every token emitted, the blocks that its request needed for it. What an evicted
        request emits again counts once.
    tokens
        Emitted, likewise.
    prompt_tokens
        Of requests that were admitted for the first time.
    busy_s
        Time of the iterations under the model's own law.
    iterations, context, prefill, sequences, roots, beyond_knee
        What they were made of, summed: K, P, B, √B and max(0, P + B - knee).
    completed, evicted
        Requests done, and evictions.
    """

    footprint: float
    tokens: float
    prompt_tokens: float
    busy_s: float
    iterations: float
    context: float
    prefill: float
    sequences: float
    roots: float
    beyond_knee: float
    completed: int
    evicted: int


_BUSY = Mark._fields.index("busy_s")


class Means(NamedTuple):
    """Of the requests of the traffic, what `Mark` sums up: block-iterations, tokens emitted, prompt tokens."""

    footprint: float
    tokens: float
    prompt_tokens: float


class Backlog:
    """A replica under a backlog in random order, which may begin with requests that run already.

    Parameters
    ----------
    model
        Its requests have nothing in common; rates count as shares.
    settings
        The policy and its parameters.
    seed
        Of the requests that wait.
    residents
        Requests that run at the beginning, in order of admission.
    ages : ndarray of int64
        Iterations that each of them has had: at least 1, and less than it needs.

    Examples
    --------
    One request fits at a time, and takes two iterations of a second.

    >>> from kvplan.model import Replica, RequestClass
    >>> model = ServingModel((RequestClass("a", 7, (2,), (1.0,), 0.1),), Timing(1.0), Replica(9))
    >>> run = Backlog(model, Plan(), Settings("greedy", {}), [0])
    >>> mark = run.on(100)
    >>> mark.completed, mark.busy_s
    (50, 100.0)
    """

    def __init__(
        self,
        model: ServingModel,
        plan: Plan,
        settings: Settings,
        seed: list[int],
        residents: Requests | None = None,
        ages: IntArray | None = None,
    ) -> None:
        self._model, self._plan, self._settings, self._seed = model, plan, settings, seed
        self._policy, self._requests, self._pieces = POLICIES[settings.policy], residents, 0
        self.stuck = False
        replica, shortest = model.replica, min(int(c.inputs.values.min()) for c in model.classes)
        most = min(
            replica.memory_tokens // max(shortest, 1), replica.max_num_seqs or _MOST_WAITING, _MOST_WAITING
        )
        self._most_waiting = most + 1
        at_once = max(engine.ROWS, 2 * self._most_waiting) + (0 if ages is None else ages.size)
        requests, setup = self._drawn(2 * at_once)
        self._rows = Rows(requests, setup, replica, at_once)
        decode = max(c.outputs.longest for c in model.classes)
        stages = int(stage_count(replica.prefill, np.array([decode]))[0])
        self._state = new_state(
            requests,
            model.timing,
            replica,
            setup,
            None,
            rows=self._rows.number.size,
            unseen=(stages, max(c.max_tokens for c in model.classes)),
        )
        if ages is not None:
            put_residents(self._state, ages)
        self._patience = engine.PATIENCE * (stages + int(model.mix.input_tokens.max())) + 1000
        self._loop = engine.PROGRAM.compiled(self._policy.form_batch, features(self._state))
        self._left = np.zeros(2)  # footprint and tokens of those who are done and have no row any more
        self._own_weights(requests, setup)

    @property
    def never_ran_dry(self) -> bool:
        """Whether somebody waited after every admission."""
        return bool(self._state.span[0, Span.LEAST_WAITING] >= 1)

    def on(self, iterations: int) -> Mark:
        """Go on for so many iterations, or until nothing can complete any more."""
        until = int(self._state.counter[Counter.ITERATIONS]) + iterations
        assert self._loop is not None
        while int(self._state.counter[Counter.ITERATIONS]) < until and not self.stuck:
            code = self._loop(self._state, until, self._patience)
            if code == engine.LACKS_ROWS:
                self._refill()
            self.stuck = code == engine.LIVELOCK
        return self.mark()

    def seconds(self, sums: FloatArray, timing: Timing) -> FloatArray:
        """Time of stretches under a law with the same knee; `sums` has a row of differences of `Mark` for each."""
        if self._model.drafts is not None:  # whose costs differ from sequence to sequence
            return np.asarray(sums[:, _BUSY])
        return np.asarray(sums[:, _BUSY + 1 : _BUSY + 7] @ np.array(timing.constants[:6]))

    def mark(self) -> Mark:
        """The totals so far."""
        s, sums, c = self._state, self._state.span[0], self._state.counter
        done = self._done()
        row, emitted = _in_progress(s)
        under_way = footprint(s, s.request[row, Request.FIRST_WEIGHT], emitted)
        fresh = np.count_nonzero((s.request[:, Request.PLACE] == 0) & (s.request[:, Request.EVICTIONS] == 0))
        begun = self._rows.requests.arrival_s.size - int(
            c[Counter.ROWLESS] + c[Counter.RELEASED] - c[Counter.JOINED] + fresh
        )
        return Mark(
            footprint=float(self._left[0] + self._footprints[done].sum() + under_way.sum()),
            tokens=float(self._left[1] + self._totals[done].sum() + emitted.sum()),
            prompt_tokens=float(self._prompts[begun]),
            busy_s=float(sums[Span.BUSY_S]),
            iterations=float(sums[Span.STEPS]),
            context=float(sums[Span.CONTEXT]),
            prefill=float(sums[Span.PREFILLED]),
            sequences=float(sums[Span.SEQUENCES]),
            roots=float(sums[Span.ROOTS]),
            beyond_knee=float(sums[Span.BEYOND_KNEE]),
            completed=int(c[Counter.COMPLETED]),
            evicted=int(c[Counter.EVICTED]),
        )

    def means(self) -> Means:
        """What `Mark` sums up, of a request of the traffic in the mean over its law."""
        found = np.zeros(3)
        for c, share in zip(self._model.classes, self._model.class_rates_rps, strict=True):
            inputs, outputs = c.inputs, c.outputs
            first = first_tokens(self._model.replica.prefill, inputs.values)
            first = np.maximum(inputs.values, 1) if self._policy.engine else first
            stages = stage_count(self._model.replica.prefill, outputs.values)
            chance = outputs.probabilities
            laws = Lengths(first, inputs.probabilities), Lengths(stages, chance)
            found += share * np.array([_mean_footprint(self._state, *laws), stages @ chance, inputs.mean])
        return Means(*(found / self._model.total_rate_rps).tolist())

    def _drawn(self, count: int) -> tuple[Requests, Setup]:
        """The residents and at least so many more, the first always the same; and what the policy makes of them."""
        model, parts = self._model, [] if self._requests is None else [self._requests]
        while self._pieces * _PIECE < count:
            parts.append(_piece(model.classes, model.drafts, (*self._seed, self._pieces)))
            self._pieces += 1
        requests = self._requests = replace(joined(parts), most_waiting=self._most_waiting)
        names = tuple(c.name for c in model.classes)
        setup, _ = self._policy.prepare(Scenario(model, self._plan, requests, names), self._settings)
        return requests, setup

    def _refill(self) -> None:
        """Give rows to those who come next, of whom there are always more."""
        s = self._state
        if s.counter[Counter.ROWLESS] <= 2 * s.time.shape[0]:
            # by an eighth where there are many: the old ones are held until the new ones are joined to them
            size = self._rows.requests.arrival_s.size
            requests, setup = self._drawn(size + max(size // 8, 2 * s.time.shape[0]))
            more = requests.arrival_s.size - size
            self._rows.extend(requests, setup)
            if requests.drafted is not None:
                self._state = s = s._replace(emitted=requests.drafted.emitted)
            s.counter[Counter.ROWLESS] += more
            s.fixed[Fixed.ALL] += more
            self._own_weights(requests, setup)
        c, done = s.counter, self._done()
        (self._state,), c[Counter.JOINED], c[Counter.RELEASED] = self._rows.refilled(
            (s,), int(c[Counter.ROWLESS])
        )
        stays = np.zeros(self._rows.requests.arrival_s.size, dtype=np.bool_)
        stays[self._rows.number] = True
        left = done[~stays[done]]
        self._left += self._footprints[left].sum(), self._totals[left].sum()
        c[Counter.ROWLESS] -= c[Counter.RELEASED] - c[Counter.JOINED]

    def _done(self) -> IntArray:
        """Those who are done and have a row."""
        return self._rows.number[self._state.time[:, Time.FINISH] >= 0]

    def _own_weights(self, requests: Requests, setup: Setup) -> None:
        """What each request emits, the block-iterations of that, and the prompts of all before each."""
        first, stages = stage_weights(requests, self._model.replica.prefill)
        if setup.first_weight is not None and setup.stages is not None:
            first, stages = setup.first_weight, setup.stages
        self._totals = stages if requests.drafted is None else requests.decode_tokens
        self._footprints = footprint(self._state, first, self._totals)
        self._prompts = np.concatenate([[0], np.cumsum(requests.input_tokens)])


@lru_cache(maxsize=64)  # settings are compared on the same requests
def _piece(classes: tuple[RequestClass, ...], drafts: Drafts | None, seed: tuple[int, ...]) -> Requests:
    """Draw some requests of these classes, which no replica has a part in."""
    rng = np.random.default_rng(seed)
    drawn = saturated(ServingModel(classes, Timing(1.0), Replica(1)), rng, requests=_PIECE)
    return drawn if drafts is None else with_drafts(drawn, drafts, rng)


def footprint(s: State, first: IntArray, emitted: IntArray) -> FloatArray:
    """Block-iterations of requests that emit a token an iteration, from so many tokens on; shape (n_requests,)."""
    if layered(s):
        tokens = np.arange(s.blocks.shape[0])
        held = s.blocks[tokens, Blocks.FILLED] - s.blocks[np.maximum(tokens - 1, 0), Blocks.PASSED]
        before = np.concatenate([[0], np.cumsum(held)])
        return np.asarray(before[first + emitted] - before[first], dtype=np.float64)
    return _blocks_below(first + emitted, int(s.fixed[Fixed.BLOCK])) - _blocks_below(
        first, int(s.fixed[Fixed.BLOCK])
    )


def _blocks_below(tokens: IntArray, block: int) -> FloatArray:
    """Σ ⌈u/b⌉ over u < tokens."""
    whole, rest = np.divmod(np.maximum(tokens.astype(np.float64) - 1, 0), block)
    return np.asarray(block * whole * (whole + 1) / 2 + rest * (whole + 1))


def _mean_footprint(s: State, first: Lengths, stages: Lengths) -> float:
    """Mean block-iterations of requests whose first tokens and stages are independent, over every pair of them.

    The weights of both are probabilities.
    """
    if max(first.values.size * stages.values.size, _LONG) < first.values.max():  # few pairs of long requests
        pairs = (np.ravel(one) for one in np.meshgrid(first.values, stages.values, indexing="ij"))
        return float(np.outer(first.weights, stages.weights).ravel() @ footprint(s, *pairs))
    one, other = (np.bincount(law.values, law.weights) for law in (first, stages))
    size = one.size + other.size - 1
    sums = np.fft.irfft(np.fft.rfft(one, 2 * size) * np.fft.rfft(other, 2 * size))[:size]
    nothing = np.zeros(1, dtype=np.int64)
    after, before = (footprint(s, nothing, tokens) for tokens in (np.arange(size), first.values))
    return float(sums @ after - first.weights @ before)


def _in_progress(s: State) -> tuple[IntArray, IntArray]:
    """Rows of requests that have begun and are not done, and the tokens that they have emitted."""
    place, group = s.request[:, Request.PLACE], int(s.fixed[Fixed.QUEUES])
    row = np.flatnonzero(
        (place == group) | (place == Place.PARTIAL) | ((place == 0) & (s.request[:, Request.STAGE] > 0))
    )
    stage = s.request[row, Request.STAGE].copy()
    runs = s.request[row, Request.PLACE] == group
    stage[runs] = s.group[0, Group.TICK] - s.request[row[runs], Request.START] + 1
    return row, tokens_emitted(s, row, stage)


def joined(parts: Sequence[Requests]) -> Requests:
    """Requests that have nothing in common, one part after the other, all of them there at the beginning."""
    drafted = parts[0].drafted
    if drafted is not None:
        each = [part.drafted for part in parts if part.drafted is not None]
        offset = np.cumsum([0, *(part.emitted.size for part in each)])
        begin = [part.begin[:-1] + start for part, start in zip(each, offset, strict=False)]
        emitted = np.concatenate([part.emitted for part in each])
        drafted = Drafted(drafted.drafts, emitted, np.concatenate([*begin, offset[-1:]]))
    return Requests(
        np.concatenate([part.arrival_s for part in parts]),
        np.concatenate([part.input_tokens for part in parts]),
        np.concatenate([part.decode_tokens for part in parts]),
        np.concatenate([part.class_index for part in parts]),
        drafted=drafted,
    )


def picked(requests: Requests, which: IntArray) -> Requests:
    """Some of them, in this order, one perhaps several times."""
    drafted = requests.drafted
    if drafted is not None:
        length = (drafted.begin[1:] - drafted.begin[:-1])[which]
        begin = np.concatenate([[0], np.cumsum(length)])
        at = np.repeat(drafted.begin[which] - begin[:-1], length) + np.arange(begin[-1])
        drafted = Drafted(drafted.drafts, drafted.emitted[at], begin)
    return Requests(
        requests.arrival_s[which],
        requests.input_tokens[which],
        requests.decode_tokens[which],
        requests.class_index[which],
        drafted=drafted,
    )
