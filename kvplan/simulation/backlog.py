"""Runs that are gone on with: a replica that always has more to serve, and open arrivals from one time to the next.

Time has no part in what a saturated replica does: an iteration is formed from who is resident and who waits, however
long it takes. So a run under a backlog is measured in iterations, and what its iterations were made of prices any law
afterwards.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.model import FloatArray, IntArray, Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.drafts import Drafts
from kvplan.model.lengths import Lengths
from kvplan.model.weights import first_tokens, stage_count
from kvplan.simulation import engine
from kvplan.simulation.initial_state import Setup, stage_weights
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Drafted, Requests, chosen, end_to_end, saturated, with_drafts
from kvplan.simulation.state import (
    NOBODY,
    Ahead,
    Blocks,
    Clock,
    Counter,
    Fixed,
    Group,
    List,
    Place,
    Request,
    Span,
    State,
    Time,
    layered,
    takes_turns,
)
from kvplan.simulation.turns import note_turn

_LONG = 10_000  # tokens, beyond which lengths are laid out one by one only where they have more pairs
_PIECE = 1 << 12  # requests that are drawn at a time
_MOST_WAITING = 1 << 17  # each, and one behind it, takes half a kilobyte
_FEWER_WAITING = 1 << 14  # where nobody can tell how many do
# policies whose state is who is resident, and nothing else: those preempted do not go behind all who wait
AGED = ("vllm", "greedy", "trtllm-max-utilization")


class Mark(NamedTuple):
    """Totals of a run so far.

    A block-iteration is a block that a request needs for a token that it emits. What an evicted request emits again
    counts once.
    """

    footprint: float  # block-iterations served
    tokens: float  # emitted
    prompt_tokens: float  # of requests that were admitted for the first time
    busy_s: float  # time of the iterations under the model's own law
    # this and the next seven: what they were made of, K, P, B, √B, max(0, P + B - knee), shares of experts, Q, summed
    iterations: float
    context: float
    prefill: float
    sequences: float
    roots: float
    beyond_knee: float
    woken: float
    pairs: float
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

    Requests of the model have nothing in common, and rates count as shares. `residents` run at the beginning, in order
    of admission; `ages` are the iterations that each of them has had, at least 1 and less than it needs.
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
        if (
            residents is not None and ages is not None and model.replica.ranks > 1
        ):  # dealt to one after the other
            dealt = np.argsort(np.arange(ages.size) % model.replica.ranks, kind="stable")
            residents, ages = chosen(residents, dealt), ages[dealt]
        self._model, self._plan, self._settings, self._seed = model, plan, settings, seed
        self._policy, self._pieces, self._forgotten = POLICIES[settings.policy], 0, 0
        self.stuck = False
        replica, shortest = model.replica, min(int(c.inputs.values.min()) for c in model.classes)
        deepest = _FEWER_WAITING if settings.policy in AGED else _MOST_WAITING
        most = min(replica.memory_tokens // max(shortest, 1), replica.max_num_seqs or deepest, deepest)
        self._most_waiting = most + 1
        at_once = max(engine.ROWS, 2 * self._most_waiting) + (0 if ages is None else ages.size)
        requests, setup = self._drawn(residents, 2 * at_once)
        decode = max(c.outputs.longest for c in model.classes)
        stages = int(stage_count(replica.prefill, np.array([decode]))[0])
        most_tokens = max(c.max_tokens for c in model.classes)
        self._run = engine.Run(
            requests, model.timing, replica, setup, None, at_once=at_once, unseen=(stages, most_tokens)
        )
        if ages is not None:
            _put_residents_in_ranks(self._run.states, ages)
        self._run.patience = engine.PATIENCE * (stages + int(model.mix.input_tokens.max())) + 1000
        self._loop = self._run.loop(self._policy.form_batch)
        self._left = np.zeros(2)  # footprint and tokens of those who are done and have no row any more
        self._own_weights(requests, setup)

    @property
    def never_ran_dry(self) -> bool:
        """Whether somebody waited after every admission."""
        return bool(self._run.state.span[0, Span.LEAST_WAITING] >= 1)

    def on(self, iterations: int) -> Mark:
        """Go on for so many iterations, or until nothing can complete any more."""
        c = self._run.state.counter
        until = int(c[Counter.ITERATIONS]) + iterations
        while int(c[Counter.ITERATIONS]) < until and not self.stuck:
            engine.look_up()
            code = self._loop(self._run.states, 0, until, self._run.patience)
            if code == engine.LACKS_ROWS:
                self._refill()
            self.stuck = code == engine.LIVELOCK
        return self.mark()

    def seconds(self, sums: FloatArray, timing: Timing) -> FloatArray:
        """Price stretches under a law that bends alike; `sums` has a row of differences of `Mark` for each."""
        if self._model.drafts is not None or self._model.replica.ranks > 1:
            # drafts cost more in some sequences than in others, and all ranks take as long as the busiest
            return np.asarray(sums[:, _BUSY])
        law = np.array([*timing.constants[:6], timing.experts, timing.d6])
        return np.asarray(sums[:, _BUSY + 1 : _BUSY + 9] @ law)

    def mark(self) -> Mark:
        """Return the totals so far."""
        s, sums, c = self._run.state, self._run.state.span[0], self._run.state.counter
        done = self._done()
        row, emitted = _in_progress(self._run.states)
        under_way = footprint(s, s.request[row, Request.FIRST_WEIGHT], emitted)
        fresh = np.count_nonzero(_waits(s) & (s.request[:, Request.EVICTIONS] == 0))
        begun = self._run.pool.requests.arrival_s.size - int(
            c[Counter.ROWLESS] + c[Counter.RELEASED] - c[Counter.JOINED] + fresh
        )
        return Mark(
            footprint=float(self._left[0] + self._footprints[done].sum() + under_way.sum()),
            tokens=float(self._left[1] + self._totals[done].sum() + emitted.sum()),
            prompt_tokens=float(self._forgotten + self._prompts[begun]),
            busy_s=float(sums[Span.BUSY_S]),
            iterations=float(sums[Span.STEPS]),
            context=float(sums[Span.CONTEXT]),
            prefill=float(sums[Span.PREFILLED]),
            sequences=float(sums[Span.SEQUENCES]),
            roots=float(sums[Span.ROOTS]),
            beyond_knee=float(sums[Span.BEYOND_KNEE]),
            woken=float(sums[Span.WOKEN]),
            pairs=float(sums[Span.PAIRS]),
            completed=int(c[Counter.COMPLETED]),
            evicted=int(c[Counter.EVICTED]),
        )

    def means(self) -> Means:
        """Return what `Mark` sums up, of a request of the traffic in the mean over its law."""
        found = np.zeros(3)
        for c, share in zip(self._model.classes, self._model.class_rates_rps, strict=True):
            for part, inputs, outputs in c.laws:
                first = first_tokens(self._model.replica.prefill, inputs.values)
                first = np.maximum(inputs.values, 1) if self._policy.engine else first
                stages = stage_count(self._model.replica.prefill, outputs.values)
                chance = outputs.probabilities
                laws = Lengths(first, inputs.probabilities), Lengths(stages, chance)
                means = _mean_footprint(self._run.state, *laws), stages @ chance, inputs.mean
                found += share * part * np.array(means)
        return Means(*(found / self._model.total_rate_rps).tolist())

    def _drawn(self, before: Requests | None, more: int) -> tuple[Requests, Setup]:
        """Draw so many more behind others, the first always the same; and prepare the policy for them."""
        model, parts = self._model, [] if before is None else [before]
        first, self._pieces = self._pieces, self._pieces + math.ceil(more / _PIECE)
        seeds = ((*self._seed, piece) for piece in range(first, self._pieces))
        parts += (
            _piece(model.classes, seed)
            if model.drafts is None
            else _drafted_piece(model.classes, model.drafts, seed)
            for seed in seeds
        )
        requests = replace(joined(parts), most_waiting=self._most_waiting)
        names = tuple(c.name for c in model.classes)
        setup, _ = self._policy.set_up(Scenario(model, self._plan, requests, names), self._settings)
        return requests, setup

    def _refill(self) -> None:
        """Give rows to those who come next, of whom there are always more."""
        s, pool = self._run.state, self._run.pool
        if s.counter[Counter.ROWLESS] <= s.time.shape[0]:
            if pool.requests.drafted is None:  # else rows know places among all tokens drafted
                self._forget()
            size = pool.requests.arrival_s.size
            requests, setup = self._drawn(pool.requests, max(size // 8, s.time.shape[0]))
            more = requests.arrival_s.size - size
            pool.extend(requests, setup)
            if requests.drafted is not None:
                emitted = requests.drafted.emitted
                self._run.states = tuple(one._replace(emitted=emitted) for one in self._run.states)
            s.counter[Counter.ROWLESS] += more
            s.fixed[Fixed.ALL] += more
            self._own_weights(requests, setup)
        done = self._done()
        self._run.refill()
        stays = np.zeros(pool.requests.arrival_s.size, dtype=np.bool_)
        stays[pool.number] = True
        left = done[~stays[done]]
        self._left += self._footprints[left].sum(), self._totals[left].sum()

    def _forget(self) -> None:
        """Keep nothing of those who have no row any more: of millions that would be hundreds of megabytes."""
        pool = self._run.pool
        before, size = pool.requests.input_tokens, pool.requests.arrival_s.size
        to_come = np.arange(size - int(self._run.state.counter[Counter.ROWLESS]), size)
        pool.keep_only(np.concatenate([np.sort(pool.number), to_come]))
        self._forgotten += int(before.sum() - pool.requests.input_tokens.sum())

    def _done(self) -> IntArray:
        """Find those who are done and have a row."""
        return self._run.pool.number[self._run.state.time[:, Time.FINISH] >= 0]

    def _own_weights(self, requests: Requests, setup: Setup) -> None:
        """Note what each request emits, the block-iterations of that, and the prompts of all before each."""
        first, stages = stage_weights(requests, self._model.replica.prefill)
        if setup.first_weight is not None and setup.stages is not None:
            first, stages = setup.first_weight, setup.stages
        self._totals = stages if requests.drafted is None else requests.decode_tokens
        self._footprints = footprint(self._run.state, first, self._totals)
        self._prompts = np.concatenate([[0], np.cumsum(requests.input_tokens)])


@lru_cache(maxsize=64)  # settings are compared on the same requests
def _piece(classes: tuple[RequestClass, ...], seed: tuple[int, ...]) -> Requests:
    """Draw some requests of these classes, which no replica has a part in."""
    return _drawn(classes, np.random.default_rng(seed))


@lru_cache(maxsize=8)  # with every step of long answers they take 20 MB each
def _drafted_piece(classes: tuple[RequestClass, ...], drafts: Drafts, seed: tuple[int, ...]) -> Requests:
    """Draw them with what is accepted of their drafts."""
    rng = np.random.default_rng(seed)
    return with_drafts(_drawn(classes, rng), drafts, rng)


def _drawn(classes: tuple[RequestClass, ...], rng: np.random.Generator) -> Requests:
    return saturated(ServingModel(classes, Timing(1.0), Replica(1)), rng, requests=_PIECE)


def footprint(s: State, first: IntArray, emitted: IntArray) -> FloatArray:
    """Sum the block-iterations of requests that emit a token an iteration, from so many tokens on."""
    if layered(s):
        tokens = np.arange(s.blocks.shape[0])
        held = s.blocks[tokens, Blocks.FILLED] - s.blocks[np.maximum(tokens - 1, 0), Blocks.PASSED]
        before = np.concatenate([[0], np.cumsum(held)])
        return np.asarray(before[first + emitted] - before[first], dtype=np.float64)
    return _blocks_below(first + emitted, int(s.fixed[Fixed.BLOCK])) - _blocks_below(
        first, int(s.fixed[Fixed.BLOCK])
    )


def _blocks_below(tokens: IntArray, block: int) -> FloatArray:
    """Sum ⌈u/b⌉ over u < tokens."""
    whole, rest = np.divmod(np.maximum(tokens.astype(np.float64) - 1, 0), block)
    return np.asarray(block * whole * (whole + 1) / 2 + rest * (whole + 1))


def _mean_footprint(s: State, first: Lengths, stages: Lengths) -> float:
    """Average the block-iterations of requests whose first tokens and stages are independent, over every pair.

    The weights of both are probabilities.
    """
    longest = max(first.longest, stages.longest)
    if max(first.values.size * stages.values.size, _LONG) < longest:  # few pairs of long requests
        pairs = (np.ravel(one) for one in np.meshgrid(first.values, stages.values, indexing="ij"))
        return float(np.outer(first.weights, stages.weights).ravel() @ footprint(s, *pairs))
    one, other = (np.bincount(law.values, law.weights) for law in (first, stages))
    size = one.size + other.size - 1
    padded = 2 ** math.ceil(math.log2(size))  # other sizes may have large prime factors, which are slow
    sums = np.fft.irfft(np.fft.rfft(one, padded) * np.fft.rfft(other, padded))[:size]
    nothing = np.zeros(1, dtype=np.int64)
    after, before = (footprint(s, nothing, tokens) for tokens in (np.arange(size), first.values))
    return float(sums @ after - first.weights @ before)


def _waits(s: State) -> NDArray[np.bool_]:
    """Tell which rows stand in a queue, of which there is one for each priority."""
    place = s.request[:, Request.PLACE]
    return np.asarray((place >= 0) & (place < s.fixed[Fixed.QUEUES]))


def _in_progress(states: tuple[State, ...]) -> tuple[IntArray, IntArray]:
    """Find the rows of requests that have begun and are not done, and the tokens that they have emitted."""
    s, *ranks = states
    place, group = s.request[:, Request.PLACE], int(s.fixed[Fixed.QUEUES])
    row = np.flatnonzero(  # those who stand by stand behind the group
        (place >= group) | (place == Place.PARTIAL) | (_waits(s) & (s.request[:, Request.STAGE] > 0))
    )
    stage = s.request[row, Request.STAGE].copy()
    runs = s.request[row, Request.PLACE] == group
    tick = np.full(place.size, s.group[0, Group.TICK])
    for rank in ranks:
        member = rank.list[group, List.HEAD]
        while member != NOBODY:
            tick[member] = rank.group[0, Group.TICK]
            member = rank.request[member, Request.AFTER]
    stage[runs] = tick[row[runs]] - s.request[row[runs], Request.START] + 1
    return row, tokens_emitted(s, row, stage)


def joined(parts: Sequence[Requests]) -> Requests:
    """Join requests that have nothing in common, one part after the other, all of them there at the beginning."""
    drafted = parts[0].drafted
    if drafted is not None:
        each = [part.drafted for part in parts if part.drafted is not None]
        offset = np.cumsum([0, *(part.emitted.size for part in each)])
        begin = [part.begin[:-1] + start for part, start in zip(each, offset, strict=False)]
        emitted = np.concatenate([part.emitted for part in each])
        drafted = Drafted(drafted.drafts, emitted, np.concatenate([*begin, offset[-1:]]))
    return Requests(*end_to_end(parts), drafted=drafted)


# ------------------------------------------------------------------- requests that run from the beginning


def blocks_needed(model: ServingModel, requests: Requests, ages: IntArray, *, engine: bool) -> IntArray:
    """Count the blocks that requests hold which have had so many iterations, shape (n_requests,).

    `engine`: KV is counted as engines do, tokens computed so far.
    """
    inputs, replica, emitted = requests.input_tokens, model.replica, ages - 1
    slots = 0
    if requests.drafted is not None:
        slots = requests.drafted.drafts.slots
        emitted = requests.drafted.emitted[requests.drafted.begin[:-1] + emitted]
    tokens = (np.maximum(inputs, 1) if engine else first_tokens(replica.prefill, inputs)) + emitted
    if replica.layout is not None:
        return np.asarray(replica.layout.pool_tokens(tokens - 1, tokens + slots) // replica.block_tokens)
    return np.asarray(-(-(tokens + slots) // replica.block_tokens))


def _put_residents_in_ranks(states: tuple[State, ...], ages: IntArray) -> None:
    """Share residents among the data-parallel ranks of a replica, or put them in the one engine that it is."""
    s, *ranks = states
    begin = 0
    for rank, mine in zip(ranks or states, np.array_split(ages, max(len(ranks), 1)), strict=True):
        put_residents(rank, mine, begin)
        begin += mine.size
    s.counter[Counter.JOINED] = ages.size


def put_residents(s: State, ages: IntArray, begin: int = 0) -> None:
    """Make requests of a new state, from one on, members of its one group, in this order, at ages as for `Backlog`."""
    count, row = ages.size, begin + np.arange(ages.size)
    if count == 0:
        return
    group, where = s.group[0], int(s.fixed[Fixed.QUEUES])
    stage, tick = ages - 1, int(group[Group.RING_SIZE])
    request, time = s.request[begin : begin + count], s.time[begin : begin + count]
    request[:, Request.START] = request[:, Request.ENTERED_AT] = tick - stage
    request[:, Request.PLACE], request[:, Request.ADMISSION] = where, row
    request[:, Request.BEFORE], request[:, Request.AFTER] = row - 1, row + 1
    request[0, Request.BEFORE] = request[-1, Request.AFTER] = NOBODY
    s.list[where, [List.HEAD, List.TAIL, List.LENGTH]] = row[0], row[-1], count
    time[:, Time.ARRIVAL] = 0.0
    group[Group.TICK] = tick
    group[Group.WEIGHT] = int((request[:, Request.FIRST_WEIGHT] + stage).sum())
    first = (request[:, Request.FIRST_WEIGHT] - request[:, Request.START]) % s.fixed[Fixed.BLOCK]
    s.phase[0] += np.bincount(first, minlength=int(s.fixed[Fixed.BLOCK]))
    _schedule(s, row)
    c = s.counter
    c[Counter.JOINED] = c[Counter.RESIDENT] = c[Counter.OUTSTANDING] = count
    c[Counter.SEQUENCE] = row[-1] + 1
    c[Counter.PROMISED] = int(request[:, Request.PROMISE].sum())
    c[Counter.HELD] = int(blocks_held(s, row, stage).sum())
    if layered(s):
        request[:, Request.HOLDS] = blocks_held(s, row, stage)
    if takes_turns(s):
        tokens = request[:, Request.FIRST_WEIGHT] + stage
        s.ahead[Ahead.READS] = s.context[tokens].sum()
        s.ahead[Ahead.STEP] = (s.context[tokens] - s.context[tokens - 1]).sum()
        for each in row.tolist():
            note_turn(s, each, tick + 1)


def blocks_held(s: State, row: IntArray, stage: IntArray) -> IntArray:
    """Count the blocks that requests hold in the iteration of a stage, shape (n_rows,)."""
    tokens = s.request[row, Request.FIRST_WEIGHT] + tokens_emitted(s, row, stage)
    if layered(s):
        filled, passed = s.blocks[:, Blocks.FILLED], s.blocks[:, Blocks.PASSED]
        return np.asarray(filled[tokens + s.fixed[Fixed.SLOTS]] - passed[tokens - 1])
    return np.asarray((tokens + s.fixed[Fixed.BLOCK] - 1) // s.fixed[Fixed.BLOCK])


def tokens_emitted(s: State, row: IntArray, stage: IntArray) -> IntArray:
    """Count the tokens that requests had emitted before the iteration of a stage, shape (n_rows,)."""
    if layered(s) and s.fixed[Fixed.DRAFTS] > 0:
        return np.asarray(s.emitted[s.request[row, Request.PATH] + stage])
    return stage


def _schedule(s: State, row: IntArray) -> None:
    """Note when each of these requests, one after the other, leaves, in the ring of the group."""
    request, group = s.request[row[0] : row[-1] + 1], s.group[0]
    last_tick = request[:, Request.START] + request[:, Request.STAGES] - 1
    slot = group[Group.RING_START] + last_tick % group[Group.RING_SIZE]
    order = np.argsort(slot, kind="stable")  # of one slot the last comes first
    same = slot[order][1:] == slot[order][:-1]
    request[:, Request.DUE_BEFORE] = request[:, Request.DUE_AFTER] = NOBODY
    request[order[1:][same], Request.DUE_AFTER] = row[order[:-1][same]]
    request[order[:-1][same], Request.DUE_BEFORE] = row[order[1:][same]]
    last = np.append(~same, True)
    s.ring[slot[order[last]]] = row[order[last]]


# ------------------------------------------------------------------------------------------------ open arrivals

_SLICE = 200_000  # iterations in one go


class Queue(NamedTuple):
    """The queue in a stretch of a run."""

    end_s: float  # where the stretch ended: the end of an iteration, or an arrival after idle time
    least: int  # fewest requests that waited in an iteration of it; 0 where there was none
    waiting: int  # in the last iteration
    completed: int  # this and what follows: of the run so far
    iterations: int
    preempted: int


class OpenRun:
    """Requests that arrive by themselves, or follow each other, at one replica; run on from one time to the next."""

    def __init__(self, scenario: Scenario, settings: Settings, horizon_s: float) -> None:
        model, policy = scenario.model, POLICIES[settings.policy]
        setup, _ = policy.set_up(scenario, settings)
        self._run = engine.Run(
            scenario.requests, model.timing, model.replica, setup, horizon_s, model.request_overhead_s
        )
        self._loop = self._run.loop(policy.form_batch)
        self.ended = False  # by the horizon, by the last completion, or stuck
        self.stuck = False

    def on(self, until_s: float) -> Queue:
        """Go on until the first iteration that ends at this time or later."""
        state = self._run.state
        state.clock[Clock.PAUSE] = until_s
        state.span[0, Span.LEAST_WAITING] = math.inf
        while not self.ended and state.clock[Clock.NOW] < until_s:
            engine.look_up()
            code = self._run.step(self._loop, _SLICE)
            self.stuck, self.ended = code == engine.LIVELOCK, code in engine.ENDINGS
        c, least = state.counter, float(state.span[0, Span.LEAST_WAITING])
        return Queue(
            end_s=float(state.clock[Clock.NOW]),
            least=0 if least == math.inf else int(least),
            waiting=int(c[Counter.WAITING]),
            completed=int(c[Counter.COMPLETED]),
            iterations=int(c[Counter.ITERATIONS]),
            preempted=int(c[Counter.EVICTED]),
        )
