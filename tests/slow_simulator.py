"""A slow, obvious simulator of LLM serving, one Python object a request: a second opinion on the fast kernel.

Nothing here imports a kernel or `kvplan.analysis`; of kvplan only the input types are used. Every list is searched
from end to end and every sum is taken anew in each iteration, so that a rule can be read where it is applied.

What the policies leave open is decided here, for the kernel too.

The loop
    Arrivals with time <= now join the queue, but whoever an answer brings at the moment at which an iteration ends
    comes while the next one runs, if there is one: it begins before anybody has read the answer. The policy forms
    the batch; the clock advances by
    τ = d0 + d1·K + d2·P + d3·B + d4·√B + d5·max(0, P + B - knee) + d6·Q + experts·(1 - (1 - chosen)^(P + B));
    the batch gains its tokens; finished requests leave. Where nothing can run the clock jumps to the next arrival;
    where none is to come either and requests remain, the run ends as a livelock.
    `iterations` counts executed batches only. The clock stops at `horizon_s`: no batch is formed at or after it, one
    that would end after it is not executed (what it evicted stays evicted), and a jump is cut short. In a closed loop
    the first `clients` requests arrive at 0 and each completion brings the next one at that moment (two completions,
    two arrivals); `at_once`: into the iteration that begins then.

Stage policies (all but those named after engines: `vllm`, `trtllm-no-evict`, `sglang`, `sarathi`, `vllm-v0`)
    A request of (s, d) stays n stages and needs a + k tokens while stage k runs (the table in `kvplan.model`), in
    whole blocks: b·ceil(weight/b). A resident request that pauses before stage k holds what it computed last,
    a + k - 1, in whole blocks. K sums the unrounded weights of the requests that run, B counts them, P sums the
    inputs of those at stage 0: none in `disaggregated`, except that one that was evicted before recomputes its
    prompt. Every stage emits a token at its end, except stage 0 of `inline`. No more than max_num_seqs are resident
    at once: who would be one too many waits as if memory lacked; nobody is evicted for it. `wait` and `nested-wait`
    do not know that limit, and none of them a token budget.
    `computed_tokens` grows by P and by the tokens emitted; `recomputed_tokens` by what an evicted request held,
    a + k - 1 before stage k.

`greedy`
    All residents run. While they need more than M the last admitted is evicted: as all run, it is the least progressed,
    and of equals the latest admitted. It goes to the front of the queue and restarts at stage 0; of several
    the earliest admitted ends up first. Then, also in an iteration that evicted, the queue is admitted in order as
    long as the next request's stage-0 memory fits. Together residents and queue stay in order of arrival.
    Livelock: an eviction that leaves nobody resident, for whoever went then did not fit alone; it is counted. That
    finds every request that can never end: before its last step it fills all blocks, and whoever holds no block was
    admitted after it and goes before it. The run stops, although short requests behind it could still slip past
    while it begins again and again. A request whose stage 0 does not fit holds up the queue until no arrival is to
    come.

`rate-limited` (beta)
    As greedy, and iteration t admits at most floor((t+1)·beta) - floor(t·beta). t counts executed iterations.
    Where nothing is resident and only the cap holds the queue back (always so at first, if beta < 1), t moves on to the
    next iteration that admits somebody, at no cost in time. Memory is empty then, so that the bound on peak
    memory of theory §4 keeps.

`wait` (thresholds, one a class)
    A class joins when its queue has reached its threshold n_i; of each of its stages the first n_i residents run, and
    n_i of its queue are admitted at stage 0, class after class in profile order. Other classes pause. Memory is
    settled before executing: while residents need more than M, the last admitted of all (running or paused) is
    evicted to the front of its class's queue. The next in line are admitted only as far as they fit,
    and in an iteration that evicted none is: "takes n_i, then the last admitted go while memory lacks", without calling
    it an eviction when somebody who never ran stays in the queue.
    Drain: where the batch comes out empty and no arrival is to come, all classes join with what they have
    (at most n_i a stage), in that iteration. Whether to drain is asked anew in every iteration.

`nested-wait` (boundaries, thresholds, one a segment)
    Boundaries l'_1 < … < l'_L are decode lengths; as stages N_j they are l'_j, or l'_j + 1 in `inline`. Segment j has
    the stages N_{j-1} … N_j - 1, the last one also everything beyond. Whoever is to run stage N_{j-1} next waits at the
    boundary of segment j; in front of segment 1 it is the queue. Segments 1..k run, k the largest for which
    all of 1..k have their threshold waiting; of each of their stages, boundary included, the first n_j in order
    of admission run. Eviction, admission, and drain (all segments run) as in `wait`, with one queue.

`vllm`
    Always `fused`; an empty prompt counts as one token. Usable blocks: floor(M/b) - 1. Each iteration grants at most
    max_num_batched_tokens. The running list is walked in order while that budget lasts: a request needs its uncomputed
    tokens (input + generated - computed) or what is left of the budget. While blocks lack for them the last of the list
    is preempted: blocks freed, nothing computed any more, to the front of the queue; where it is the request itself
    the walk stops. Only if nobody was preempted the queue is admitted in order, while the budget lasts, fewer than
    max_num_seqs run and ceil((input + generated)/b) blocks are free beyond the watermark's; only the blocks of the
    grant are taken.
    The watermark is a share of the usable blocks, rounded down, and binds while the running list is not empty, requests
    admitted in this very iteration included. Whoever has computed input + generated tokens emits one.
    K is what the scheduled requests have computed once the iteration is over, grants included; P sums grants of more
    than one token. `computed_tokens` grows by P and by the tokens emitted, so a prompt's odd single-token chunk is not
    in it; `recomputed_tokens` by the computed tokens of a preempted request. Memory held is allocated blocks times b.
    Livelock: the only running request preempts itself, which is counted. It had all usable blocks and can never come
    back.

    With `admission` 1 the blocks of the tokens to be granted are to be free at admission, instead of those of all.

`trtllm-max-utilization`
    Counts as `vllm`, but all blocks are usable. Those who run and the queue are one list, walked in order while the
    budget lasts: each needs the blocks of the tokens to be granted, and whoever is not running a seat. While blocks
    lack the last of those who run, from the one in question on, is preempted as in `vllm`, and the list ends
    before it; where nobody from there on runs, the walk is over. Livelock as in `vllm`.

`trtllm-no-evict` (max_new, one a class)
    As `vllm`, but all blocks of the memory are usable, and the queue is admitted as long as the blocks of
    input + max_new of everybody resident, the next in line included, are no more than there are; those who are done
    no longer count. So blocks never lack and nobody is preempted. Livelock: the next in line would not fit even alone,
    nobody is resident and no arrival is to come.

`trtllm-no-evict`, `trtllm-max-utilization` (batch_wait_iterations, batch_wait_tokens)
    Where both are above 0, while anything decodes: the prompts that this iteration would compute, one begun before
    included, wait where their tokens in it and the number of requests that decode are less than batch_wait_tokens.
    They have waited batch_wait_iterations in a row at most; iterations that could compute none do not count.

`flow` (budgets, one a class)
    All residents run. Then, class after class in profile order, at most b_i of its queue are admitted. While all of
    them need more than M the last admitted goes, to the front of its class's queue; of somebody who was admitted in
    this very iteration that is no eviction. So nobody is admitted in an iteration that evicts.

`flow-unknown` (budget)
    As `flow`, with one queue and one budget: iteration t admits at most floor((t+1)·budget) - floor(t·budget), and t
    moves on as in `rate-limited`.

`adaptive` (budget, low, high)
    As `flow-unknown`, but the budget binds from the iteration in which the residents hold a share `high` of M or more,
    to the one in which they hold `low` or less; otherwise the queue is admitted until they hold `high`.

`alpha-protection` (alpha)
    All residents run. Where they need more than M all of them are evicted, to the front of the queue in order of
    admission. Then, also in that iteration, the queue is admitted in order as long as memory held stays (1-alpha)M at
    most.
    Livelock: those evicted are exactly those who began together after the eviction before; nobody was done, nobody
    joined. They will be the first in line each time, and do the same again, with others or without.

`mc` (assume)
    All residents run. The queue is admitted in order as long as, in this and in every later iteration, all residents
    and the next in line together need M at most, in whole blocks: each a token more in each iteration, until the one
    that it is predicted to end with. Predicted is its own decode length, or with `max` the longest of all requests.
    Whoever has left needs nothing more. Nobody is evicted.

`mc-sf`
    As `mc` with decode lengths known, the queue in order of decode length, then of arrival. The first one that does
    not fit holds up all others.

`a-min` (shortest)
    As `mc`, every request predicted to have the decode length `shortest` at first; whoever runs longer than predicted
    needs what it holds now, and nothing later. While the residents need more than M, the one with the shortest
    predicted length is evicted, of equals the last admitted, to the front of the queue; it is then predicted to be no
    shorter than what it had generated. Then, also in that iteration, the queue is admitted.
    Livelock: as greedy, or a request that is never admitted.

`sarathi` (cap)
    As `vllm`, but all blocks are usable, there is no watermark, and who evicts goes on to ask the queue.
    With a cap, iteration t admits at most floor((t+1)·cap) - floor(t·cap), and t moves on as in `rate-limited`.

`vllm-v0` (watermark)
    Counts as `vllm`, but all blocks are usable. Whole sequences (input + generated) of the queue are computed in
    order, in an iteration in which nobody decodes: while fewer than max_num_seqs are resident, their blocks are
    free beyond the watermark's (a share of all blocks, rounded down, which binds while anybody is resident), and all
    of this iteration are within the token budget; the first of an iteration may exceed it. Where there is none,
    all who run decode, whatever the budget; while blocks lack for that the last admitted is preempted, to the
    front of the queue. Livelock as in `vllm`.

`sglang` (conservativeness, max_new, one a class)
    As `vllm` in counting (P sums grants of more than one token), but all blocks are usable. An iteration either
    computes prompts or decodes. It computes prompts where one begun before goes on, or the next in line fits:
    prompt and what it had generated, with the smaller of its remaining max_new and 4096, are no more than the free
    blocks' tokens less ratio times the sum, over those running, of the smaller of remaining max_new and 4096;
    those computed or admitted in this same iteration count whole instead of by the ratio, and are not among those
    running yet. max_new is cut to the usable tokens less the input, at least 1. Prompts are admitted in order
    while that holds, the token budget lasts and fewer than max_num_seqs are resident; the budget cuts the last
    one, which goes on in the next iteration. Otherwise all decode, whatever the budget. While blocks lack for that
    the one with the fewest outputs is retracted, of equals the one with the longest input, of these the last of
    the running list; it goes to the end of the queue. ratio starts at min(1, 0.7·conservativeness). An iteration
    that decodes lowers it by 1/600 of the way from there to 0.14 of that, down to that; one that retracts sets it
    to min(1, (outputs of those left + 20 each)/(their max_new + 1)). It is the first one again where nothing is
    resident. Livelock: the only one is retracted, which is counted; or the next in line would not fit even alone.

    With `receive_every_steps` n above 1 it looks for new requests after n iterations that decode, since it looked
    last; after an iteration that computes prompts and where nobody is resident, at once. Nobody else joins its queue.

    With `prefill_interval` n above 1 `vllm` computes no prompts in an iteration of which the number, counted from 0,
    is not a multiple of n, while anybody decodes, unless the last one that did and preempted nobody left some in the
    queue. After one of `sglang` that computes prompts come n - 1 that do not, while anybody decodes; of ranks that step
    together after one in which any computed some, while anybody at any of them decodes. Where the last who decodes is
    retracted beside a prompt that is begun, that goes on at once.

    With layers of several kinds `vllm` frees what a request's windows have passed when its turn comes. `sglang` has two
    pools (swa_full_tokens_ratio): as many bytes as the profile's pool are t tokens of the layers with full attention
    and ratio times t of those with a window, each rounded down to whole pages; the rules above are of the first. Who
    decodes frees what his window has passed, all of them before anybody is retracted, and blocks of either pool may
    lack. Who is admitted needs tokens of the second for what the budget lets it compute now, and for a window at
    least, beside those computed or admitted in this same iteration, which set aside as much in whole pages, of what
    was free at first. A prompt that goes on computes no more than both pools have pages for, once it has freed what
    its window has passed; where that is nothing, the others decode; where none of them is left then, it goes
    on.

Two rules are additions without which runs would not end: the cap's idle iterations, and the drain.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from slow_blocks import Allocator

from kvplan.model import Prefill, Replica, Timing
from kvplan.model.kv_layout import Attention, KvLayout
from kvplan.simulation.requests import Requests


@dataclass
class SlowResult:
    """What a run left behind; None where something has not happened."""

    arrival_s: list[float | None]
    first_token_s: list[float | None]
    finish_s: list[float | None]
    evictions: list[int]  # of each request
    iterations: int
    end_s: float
    recomputed_tokens: int
    computed_tokens: int
    kv_per_iteration: list[int]  # memory held while the batch ran, whole blocks
    waiting_per_iteration: list[int]  # queue once the batch was formed
    evicted_per_iteration: list[int]  # since the batch before
    prefill_per_iteration: list[int]
    sequences_per_iteration: list[int]
    batches: list[list[tuple[int, int]]]  # (request, its stage; in `vllm` its grant), in order of admission
    livelock: bool


@dataclass(eq=False)
class Request:
    """One request and what became of it so far."""

    index: int
    input_tokens: int
    decode_tokens: int
    class_index: int
    arrival_s: float | None = None
    first_token_s: float | None = None
    finish_s: float | None = None
    evictions: int = 0
    # stage policies
    first_weight: int = 0  # a
    stages: int = 0  # n
    stage: int = 0  # k, the next one to run
    # vllm
    generated: int = 0
    computed: int = 0
    blocks: int = 0
    granted: int = 0
    brought: bool = False  # an answer has, to another request
    decodes: bool = False  # it has emitted a token since it was admitted
    # with turns, and shedding
    gone: bool = False  # it was given up, or will never come

    @property
    def weight(self) -> int:
        """Tokens needed while the next stage runs."""
        return self.first_weight + self.stage


@dataclass
class Work:
    """What the iteration time depends on, and what the batch emits."""

    kv_tokens: float  # K
    prefill_tokens: int  # P
    sequences: int  # B
    prefill_pairs: int = 0  # Q: of each prefill token, itself and all before it
    emitting: list[Request] = field(default_factory=list)
    leaving: list[Request] = field(default_factory=list)


class LivelockError(Exception):
    """Nothing can ever complete any more."""


class Run:
    """The loop; a policy forms a batch, and executes it."""

    def __init__(
        self, requests: Requests, timing: Timing, replica: Replica, params: Mapping[str, Any]
    ) -> None:
        self.timing = timing
        self.replica = replica
        self.params = params
        self.block = replica.block_tokens
        self.seats = math.inf if replica.max_num_seqs is None else replica.max_num_seqs
        limit = replica.max_num_batched_tokens
        self.limit = math.inf if limit is None else limit  # of tokens in an iteration
        self.all = [
            Request(i, int(s), int(d), int(c))
            for i, (s, d, c) in enumerate(
                zip(requests.input_tokens, requests.decode_tokens, requests.class_index, strict=True)
            )
        ]
        self.closed, self.at_once = requests.clients is not None, requests.at_once
        self.more_later = requests.more_later
        for i, request in enumerate(self.all):
            if requests.clients is None:
                request.arrival_s = float(requests.arrival_s[i])
            elif i < requests.clients:
                request.arrival_s = 0.0
        self.to_come = list(self.all)
        self.queue: list[Request] = []
        self.resident: list[Request] = []  # in order of admission
        self.now = 0.0
        self.ended: float | None = None  # an iteration, at this moment, and nothing has idled since
        self.request_overhead_s = 0.0
        self.evicted = 0  # since the batch before
        self.recomputed_tokens = 0

    # -- what a policy says

    def form(self, drain: bool) -> list[Request]:
        """The requests that run in this iteration; evicts and admits. `drain`: nobody will come any more."""
        raise NotImplementedError

    def kv_held(self, batch: list[Request]) -> int:
        """Memory held while `batch` runs, tokens in whole blocks."""
        raise NotImplementedError

    def label(self, request: Request) -> int:
        """What to record of a request in a batch."""
        raise NotImplementedError

    def execute(self, batch: list[Request]) -> Work:
        """Advance every request of the batch."""
        raise NotImplementedError

    # -- the loop

    def whole_blocks(self, tokens: int) -> int:
        return self.block * math.ceil(tokens / self.block)

    def next_arrival(self) -> float | None:
        if self.to_come:
            return self.to_come[0].arrival_s
        return math.inf if self.more_later else None

    def next_event(self) -> float | None:
        """When something happens though nothing runs; None: never."""
        return self.next_arrival()

    def beside_s(self) -> float:
        """What takes time of an iteration beside its batch."""
        return 0.0

    def run(self, horizon_s: float | None) -> SlowResult:
        horizon = math.inf if horizon_s is None else horizon_s
        kv, waiting, evicted = [], [], []
        prefill, sequences = [], []
        batches = []
        computed_tokens = 0
        livelock = False
        while True:
            self.let_join()
            all_done = all(request.finish_s is not None or request.gone for request in self.all)
            if all_done and self.more_later:
                self.now = horizon
            if all_done or self.now >= horizon:
                break
            try:
                batch = self.form(drain=False)
                if all(request.finish_s is not None or request.gone for request in self.all):
                    continue
                if not batch and self.next_event() is None:
                    batch = self.form(drain=True)
                    if not batch:
                        raise LivelockError
            except LivelockError:
                livelock = True
                break
            if not batch:
                coming = self.next_event()
                assert coming is not None
                self.now, self.ended = min(max(coming, self.now), horizon), None
                continue

            held, labels = self.kv_held(batch), [(request.index, self.label(request)) for request in batch]
            work = self.execute(batch)
            t = self.timing
            end = self.now + (
                t.d0
                + t.d1 * work.kv_tokens
                + t.d2 * work.prefill_tokens
                + t.d3 * work.sequences
                + t.d4 * work.sequences**0.5
                + t.d5 * max(0.0, work.prefill_tokens + work.sequences - t.knee_tokens)
                + t.d6 * work.prefill_pairs
                + t.experts * (1 - (1 - t.chosen) ** (work.prefill_tokens + work.sequences))
                + self.beside_s()
            )
            if end > horizon:
                self.now = horizon
                break
            self.now = self.ended = end
            kv.append(held)
            waiting.append(len(self.queue))
            evicted.append(self.evicted)
            self.evicted = 0
            prefill.append(work.prefill_tokens)
            sequences.append(work.sequences)
            batches.append(labels)
            computed_tokens += work.prefill_tokens + len(work.emitting)
            for request in work.emitting:
                if request.first_token_s is None:
                    request.first_token_s = self.now
            for request in work.leaving:
                request.finish_s = self.now
                self.resident.remove(request)
                if self.closed:
                    self.bring_the_next()
                self.is_answered(request)
        return SlowResult(
            arrival_s=[request.arrival_s for request in self.all],
            first_token_s=[request.first_token_s for request in self.all],
            finish_s=[request.finish_s for request in self.all],
            evictions=[request.evictions for request in self.all],
            iterations=len(batches),
            end_s=self.now,
            recomputed_tokens=self.recomputed_tokens,
            computed_tokens=computed_tokens,
            kv_per_iteration=kv,
            waiting_per_iteration=waiting,
            evicted_per_iteration=evicted,
            prefill_per_iteration=prefill,
            sequences_per_iteration=sequences,
            batches=batches,
            livelock=livelock,
        )

    def let_join(self) -> None:
        """Whoever has come by now joins the queue."""
        self.next_arrival()
        for request in list(self.to_come):
            arrival_s = request.arrival_s
            if arrival_s is None or arrival_s > self.now or (request.brought and arrival_s == self.ended):
                continue
            self.to_come.remove(request)
            self.queue.append(request)

    def bring_the_next(self) -> None:
        """Closed loop: a client whose request completed sends the next one."""
        for request in self.to_come:
            if request.arrival_s is None:
                request.arrival_s, request.brought = self.now, not self.at_once
                return

    def is_answered(self, request: Request) -> None:
        """Something may follow the completion of a request."""


class StageRun(Run):
    """What all stage policies share: weights, eviction, and the work of a batch."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.inline = self.replica.prefill is Prefill.INLINE
        for request in self.all:
            request.first_weight = request.input_tokens if self.inline else request.input_tokens + 1
            request.stages = request.decode_tokens + 1 if self.inline else request.decode_tokens

    def kv_held(self, batch: list[Request]) -> int:
        running = set(batch)
        return sum(
            self.whole_blocks(request.weight if request in running else request.weight - 1)
            for request in self.resident
        )

    def label(self, request: Request) -> int:
        return request.stage

    def evict_until_they_fit(self, batch: list[Request]) -> bool:
        """Evict the last admitted while memory lacks; True if somebody was."""
        somebody = False
        while self.kv_held(batch) > self.replica.memory_tokens:
            victim = self.resident.pop()
            if victim in batch:
                batch.remove(victim)
            self.begin_again(victim)
            somebody = True
        return somebody

    def begin_again(self, victim: Request) -> None:
        self.recomputed_tokens += victim.weight - 1
        victim.stage = 0
        victim.evictions += 1
        self.queue.insert(0, victim)
        self.evicted += 1
        if not self.resident:
            raise LivelockError

    def may_run(self) -> float:
        """Most requests resident at once."""
        return self.seats

    def fits(self, request: Request, batch: list[Request]) -> bool:
        """Whether a queued request can be admitted next to everything resident."""
        if len(self.resident) + 1 > self.may_run():
            return False
        needed = self.whole_blocks(request.first_weight)
        return self.kv_held(batch) + needed <= self.replica.memory_tokens

    def admit(self, request: Request, batch: list[Request]) -> None:
        self.queue.remove(request)
        self.resident.append(request)
        batch.append(request)

    def execute(self, batch: list[Request]) -> Work:
        work = Work(sum(request.weight for request in batch), 0, len(batch))
        for request in batch:
            first = request.stage == 0
            ready_made = self.replica.prefill is Prefill.DISAGGREGATED and request.evictions == 0
            if first and not ready_made:
                work.prefill_tokens += request.input_tokens
                work.prefill_pairs += sum(range(1, request.input_tokens + 1))
            if not (first and self.inline):
                work.emitting.append(request)
            request.stage += 1
            if request.stage == request.stages:
                work.leaving.append(request)
        return work


class Greedy(StageRun):
    def allowance(self) -> float:
        """Most admissions in this iteration."""
        return math.inf

    def form(self, drain: bool) -> list[Request]:
        batch = list(self.resident)
        self.evict_until_they_fit(batch)
        admitted = 0
        allowance = self.allowance()
        while self.queue and admitted < allowance and self.fits(self.queue[0], batch):
            self.admit(self.queue[0], batch)
            admitted += 1
        return batch


def of_iteration(t: int, mean: float) -> int:
    """Admissions of iteration t under a cap."""
    return math.floor((t + 1) * mean) - math.floor(t * mean)


class RateLimited(Greedy):
    t = 0

    def allowance(self) -> float:
        beta = float(self.params["beta"])
        if beta > 0 and not self.resident and self.queue and self.fits(self.queue[0], []):
            while of_iteration(self.t, beta) == 0:
                self.t += 1
        return of_iteration(self.t, beta)

    def execute(self, batch: list[Request]) -> Work:
        self.t += 1
        return super().execute(batch)


class Gathering(StageRun):
    """WAIT in both forms: only thresholds and memory decide."""

    def may_run(self) -> float:
        return math.inf


class Wait(Gathering):
    def form(self, drain: bool) -> list[Request]:
        thresholds = [int(n) for n in self.params["thresholds"]]
        queues = [
            [request for request in self.queue if request.class_index == i] for i in range(len(thresholds))
        ]
        joining = [drain or len(queues[i]) >= thresholds[i] for i in range(len(thresholds))]

        batch: list[Request] = []
        count: dict[tuple[int, int], int] = {}  # running so far, of each class and stage
        for request in self.resident:
            i = request.class_index
            running = count.get((i, request.stage), 0)
            if joining[i] and running < thresholds[i]:
                batch.append(request)
                count[i, request.stage] = running + 1

        if self.evict_until_they_fit(batch):
            return batch
        next_in_line = [
            request for i in range(len(thresholds)) if joining[i] for request in queues[i][: thresholds[i]]
        ]
        for request in next_in_line:
            if not self.fits(request, batch):
                break
            self.admit(request, batch)
        return batch


class NestedWait(Gathering):
    def form(self, drain: bool) -> list[Request]:
        thresholds = [int(n) for n in self.params["thresholds"]]
        boundaries = [int(length) + (1 if self.inline else 0) for length in self.params["boundaries"]]
        starts = [0, *boundaries[:-1]]  # first stage of each segment

        running_segments = 0
        for j, start in enumerate(starts):
            at_boundary = [request for request in self.resident if request.stage == start]
            waiting = len(self.queue) if j == 0 else len(at_boundary)
            if not drain and waiting < thresholds[j]:
                break
            running_segments += 1

        batch: list[Request] = []
        count: dict[int, int] = {}  # running so far, of each stage
        for request in self.resident:
            segment = max(j for j, start in enumerate(starts) if start <= request.stage)
            running = count.get(request.stage, 0)
            if segment < running_segments and running < thresholds[segment]:
                batch.append(request)
                count[request.stage] = running + 1

        if self.evict_until_they_fit(batch):
            return batch
        if running_segments > 0:
            for request in self.queue[: thresholds[0]]:
                if not self.fits(request, batch):
                    break
                self.admit(request, batch)
        return batch


class Flow(StageRun):
    def lines(self) -> list[tuple[list[Request], int]]:
        """Queues, and how many of each may be admitted."""
        budgets = self.params["budgets"]
        return [
            ([request for request in self.queue if request.class_index == i], int(budgets[i]))
            for i in range(len(budgets))
        ]

    def form(self, drain: bool) -> list[Request]:
        batch = list(self.resident)
        chosen = [request for line, budget in self.lines() for request in line[:budget]]
        if self.evict_until_they_fit(batch):
            return batch
        for request in chosen:
            if not self.fits(request, batch):
                break  # it would go again, and those after it before it
            self.admit(request, batch)
        return batch


class FlowUnknown(Flow):
    t = 0

    def lines(self) -> list[tuple[list[Request], int]]:
        budget = float(self.params["budget"])
        if not self.resident and self.queue and self.fits(self.queue[0], []):
            while of_iteration(self.t, budget) == 0:
                self.t += 1
        return [(list(self.queue), of_iteration(self.t, budget))]

    def execute(self, batch: list[Request]) -> Work:
        self.t += 1
        return super().execute(batch)


class Adaptive(FlowUnknown):
    held_back = False

    def form(self, drain: bool) -> list[Request]:
        high, low = (
            float(self.params[key]) * (self.replica.memory_tokens // self.block) for key in ("high", "low")
        )
        batch = list(self.resident)
        if self.kv_held(batch) // self.block >= high:
            self.held_back = True
        if self.kv_held(batch) // self.block <= low:
            self.held_back = False
        if self.held_back:
            return super().form(drain)
        if self.evict_until_they_fit(batch):
            return batch
        while self.queue and self.kv_held(batch) // self.block < high and self.fits(self.queue[0], batch):
            self.admit(self.queue[0], batch)
        return batch


class AlphaProtection(StageRun):
    began: list[Request] | None = None  # together, after an overflow

    def form(self, drain: bool) -> list[Request]:
        limit = (1 - Fraction(str(self.params["alpha"]))) * self.replica.memory_tokens
        batch = list(self.resident)
        overflow = self.kv_held(batch) > self.replica.memory_tokens
        if overflow:
            for victim in self.resident:
                self.recomputed_tokens += victim.weight - 1
                victim.stage = 0
                victim.evictions += 1
            self.evicted += len(self.resident)
            same_again = self.resident == self.began
            self.queue = self.resident + self.queue
            self.resident, batch = [], []
            if same_again:
                raise LivelockError
        while self.queue and self.kv_held(batch) + self.whole_blocks(self.queue[0].first_weight) <= limit:
            if len(self.resident) == self.may_run():
                break
            self.admit(self.queue[0], batch)
        if overflow:
            self.began = list(self.resident)
        return batch


class Mc(StageRun):
    """Predicted stages are in `predicted`; of the present, what is held counts, not what was predicted."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        longest = max(request.stages for request in self.all)
        known = self.params.get("assume", "exact") == "exact"
        self.predicted = {request: request.stages if known else longest for request in self.all}

    def order(self) -> list[Request]:
        return list(self.queue)

    def needs(self, request: Request, later: int) -> int:
        """Memory that a request is predicted to need so many iterations from now."""
        if request.stage + later >= self.predicted[request]:
            return 0
        return self.whole_blocks(request.weight + later)

    def fits_to_the_end(self, request: Request, batch: list[Request]) -> bool:
        if not self.fits(request, batch):
            return False
        return all(
            sum(self.needs(other, later) for other in [*self.resident, request]) <= self.replica.memory_tokens
            for later in range(1, self.predicted[request])
        )

    def form(self, drain: bool) -> list[Request]:
        batch = list(self.resident)
        assert self.kv_held(batch) <= self.replica.memory_tokens
        for request in self.order():
            if not self.fits_to_the_end(request, batch):
                break
            self.admit(request, batch)
        return batch


class McSf(Mc):
    def order(self) -> list[Request]:
        return sorted(self.queue, key=lambda request: (request.decode_tokens, request.index))


class AMin(Mc):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        silent = 1 if self.inline else 0
        self.predicted = {request: int(self.params["shortest"]) + silent for request in self.all}

    def form(self, drain: bool) -> list[Request]:
        while self.kv_held(self.resident) > self.replica.memory_tokens:
            victim = min(reversed(self.resident), key=lambda request: self.predicted[request])
            self.predicted[victim] = max(self.predicted[victim], victim.stage)
            self.resident.remove(victim)
            self.begin_again(victim)
        return super().form(drain)


class Vllm(Run):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        for request in self.all:
            request.input_tokens = max(request.input_tokens, 1)
        self.usable_blocks = self.replica.memory_tokens // self.block - 1
        self.before = 0  # iterations, of all ranks
        self.decodes_alone = False  # in an iteration between prompts
        self.saturated = False  # whether the last iteration that took prompts left some in the queue

    def free_blocks(self) -> int:
        return self.usable_blocks - sum(request.blocks for request in self.resident)

    def form(self, drain: bool) -> list[Request]:
        self.budget = self.limit
        for request in self.resident:
            request.granted = 0
        between = self.before % self.params.get("prefill_interval", 1) > 0
        self.decodes_alone = between and not self.saturated and any(r.decodes for r in self.resident)
        preempted = self.walk_the_running_list()
        if not preempted and not self.decodes_alone:
            self.admit_from_the_queue()
            self.saturated = bool(self.queue)
        return [request for request in self.resident if request.granted > 0]

    def is_alone(self) -> bool:
        """Whether whoever was just preempted had all the memory."""
        return not self.resident

    def walk_the_running_list(self) -> bool:
        """Grant tokens to the running requests in order; True if somebody was preempted."""
        preempted = False
        position = 0
        while position < len(self.resident) and self.budget > 0:
            request = self.resident[position]
            if self.decodes_alone and not request.decodes:
                break
            uncomputed = request.input_tokens + request.generated - request.computed
            need = int(min(uncomputed, self.budget))
            lacking = math.ceil((request.computed + need) / self.block) - request.blocks
            while lacking > self.free_blocks():
                victim = self.resident.pop()
                self.preempt(victim)
                preempted = True
                if self.is_alone():
                    raise LivelockError
                if victim is request:
                    return preempted
            request.blocks += lacking
            self.grant(request, need)
            position += 1
        return preempted

    def preempt(self, victim: Request) -> None:
        self.budget += victim.granted
        self.recomputed_tokens += victim.computed
        victim.granted = 0
        victim.decodes = False
        victim.blocks = 0
        victim.computed = 0
        victim.evictions += 1
        self.evicted += 1
        self.queue.insert(0, victim)

    def grant(self, request: Request, tokens: int) -> None:
        request.granted = tokens
        self.budget -= tokens

    def admit_from_the_queue(self) -> None:
        watermark_blocks = int(float(self.params.get("watermark", 0.0)) * self.usable_blocks)
        while self.queue and self.budget > 0 and len(self.resident) < self.seats:
            request = self.queue[0]
            sequence = request.input_tokens + request.generated
            kept_free = watermark_blocks if self.resident else 0
            if math.ceil(self.asked(sequence) / self.block) > self.free_blocks() - kept_free:
                return
            tokens = int(min(sequence, self.budget))
            self.queue.pop(0)
            self.resident.append(request)
            request.blocks = math.ceil(tokens / self.block)
            self.grant(request, tokens)

    def asked(self, sequence: int, found: int = 0) -> float:
        """Tokens of a sequence that have to fit at admission, those found included."""
        return min(sequence, found + self.budget) if self.params.get("admission") else sequence

    def kv_held(self, batch: list[Request]) -> int:
        return self.block * sum(request.blocks for request in self.resident)

    def label(self, request: Request) -> int:
        return request.granted

    def execute(self, batch: list[Request]) -> Work:
        for request in batch:
            request.computed += request.granted
        work = Work(
            kv_tokens=sum(request.computed for request in batch),
            prefill_tokens=sum(request.granted for request in batch if request.granted > 1),
            sequences=len(batch),
            prefill_pairs=sum(
                sum(range(request.computed - request.granted + 1, request.computed + 1))
                for request in batch
                if request.granted > 1
            ),
        )
        for request in batch:
            if request.computed == request.input_tokens + request.generated:
                request.generated += 1
                request.decodes = True
                work.emitting.append(request)
                if request.generated == request.decode_tokens:
                    work.leaving.append(request)
        return work


def attended(layout: KvLayout, tokens: int) -> float:
    """Context that a step reads, in tokens of the layers with full attention."""
    kinds = layout.layers
    full = sum(one.count * one.bytes for one in kinds if one.kind is Attention.FULL)
    bounded = [one for one in kinds if one.window]
    unit = full or max((one.count * one.bytes for one in bounded), default=1)
    total = tokens * full / unit
    for one in bounded:
        seen = tokens if one.kind is Attention.WINDOW else (tokens - 1) % one.window + 1
        total += min(seen, one.window) * one.count * one.bytes / unit
    return total


class LayeredVllm(Vllm):
    """With layers of several kinds: a request frees what its windows have passed when its turn comes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        assert self.replica.layout is not None
        self.layout = self.replica.layout
        for request in self.all:
            self.forget(request)

    def forget(self, request: Request) -> None:
        kinds = zip(self.layout.layers, self.layout.groups, strict=True)
        self.tables[request] = [
            (group.copies, None if one.is_state else Allocator(one, group.block_tokens))
            for one, group in kinds
        ]

    @cached_property
    def tables(self) -> dict[Request, list[tuple[int, Allocator | None]]]:
        return {}

    def step(self, request: Request, tokens: int) -> None:
        held = [
            copies * (1 if table is None else table.step(request.computed, tokens, 0))
            for copies, table in self.tables[request]
        ]
        request.blocks = sum(held)

    def whole(self, tokens: int) -> int:
        """Blocks of so many tokens in every group, states as held."""
        kinds = zip(self.layout.layers, self.layout.groups, strict=True)
        return sum(g.copies * (1 if one.is_state else math.ceil(tokens / g.block_tokens)) for one, g in kinds)

    def walk_the_running_list(self) -> bool:
        preempted = False
        position = 0
        while position < len(self.resident) and self.budget > 0:
            request = self.resident[position]
            need = int(min(request.input_tokens + request.generated - request.computed, self.budget))
            self.step(request, need)
            while self.free_blocks() < 0:
                victim = self.resident.pop()
                self.preempt(victim)
                self.forget(victim)
                preempted = True
                if not self.resident:
                    raise LivelockError
                if victim is request:
                    return preempted
            self.grant(request, need)
            position += 1
        return preempted

    def admit_from_the_queue(self) -> None:
        while self.queue and self.budget > 0 and len(self.resident) < self.seats:
            request = self.queue[0]
            sequence = request.input_tokens + request.generated
            if self.whole(int(self.asked(sequence))) > self.free_blocks():
                return
            tokens = int(min(sequence, self.budget))
            self.resident.append(self.queue.pop(0))
            self.step(request, tokens)
            self.grant(request, tokens)

    def execute(self, batch: list[Request]) -> Work:
        work = super().execute(batch)
        work.kv_tokens = sum(attended(self.layout, request.computed) for request in batch)
        return work


class Trtllm(Vllm):
    """With a batch wait."""

    waited = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.usable_blocks = self.replica.memory_tokens // self.block

    def form(self, drain: bool) -> list[Request]:
        wait, tokens = (self.params.get(f"batch_wait_{what}", 0) for what in ("iterations", "tokens"))
        if wait and tokens:
            try:
                batch = deepcopy(self).form_waiting_or_not(waiting=False)
            except LivelockError:
                batch = []
            decodes = sum(request.decodes for request in batch)
            prompts = sum(request.granted for request in batch if not request.decodes)
            if prompts and decodes and decodes + prompts < tokens and self.waited < wait:
                self.waited += 1
                return self.form_waiting_or_not(waiting=True)
            if prompts:
                self.waited = 0
        return self.form_waiting_or_not(waiting=False)

    def form_waiting_or_not(self, waiting: bool) -> list[Request]:
        raise NotImplementedError


class TrtllmMaxUtilization(Trtllm):
    def form_waiting_or_not(self, waiting: bool) -> list[Request]:
        self.budget = self.limit
        for request in self.all:
            request.granted = 0
        listed, position = [*self.resident, *self.queue], 0
        while position < len(listed) and self.budget > 0:
            request = listed[position]
            if waiting and not request.decodes:
                break
            if request not in self.resident and len(self.resident) == self.seats:
                break
            need = int(min(request.input_tokens + request.generated - request.computed, self.budget))
            lacking = math.ceil((request.computed + need) / self.block) - request.blocks
            if lacking <= self.free_blocks():
                if request in self.queue:
                    self.queue.remove(request)
                    self.resident.append(request)
                request.blocks += lacking
                self.grant(request, need)
                position += 1
                continue
            started = [other for other in listed[position:] if other in self.resident]
            if not started:
                break
            listed = listed[: listed.index(started[-1])]
            self.resident.remove(started[-1])
            self.preempt(started[-1])
            if self.is_alone():
                raise LivelockError
        return [request for request in self.resident if request.granted > 0]


class TrtllmNoEvict(Trtllm):
    def form_waiting_or_not(self, waiting: bool) -> list[Request]:
        if not waiting:
            return super(Trtllm, self).form(False)
        for request in self.resident:
            request.granted = int(request.decodes)
            request.blocks = math.ceil((request.computed + request.granted) / self.block)
        return [request for request in self.resident if request.granted]

    def at_its_longest(self, request: Request) -> int:
        """Blocks."""
        return math.ceil((request.input_tokens + self.params["max_new"][request.class_index]) / self.block)

    def preempt(self, victim: Request) -> None:
        raise AssertionError("nobody is preempted")

    def admit_from_the_queue(self) -> None:
        while self.queue and self.budget > 0 and len(self.resident) < self.seats:
            request = self.queue[0]
            if sum(map(self.at_its_longest, [*self.resident, request])) > self.usable_blocks:
                return
            tokens = int(min(request.input_tokens, self.budget))
            self.queue.pop(0)
            self.resident.append(request)
            request.blocks = math.ceil(tokens / self.block)
            self.grant(request, tokens)


class VllmV0(Vllm):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.usable_blocks = self.replica.memory_tokens // self.block

    def form(self, drain: bool) -> list[Request]:
        self.budget = math.inf  # of decodes
        prompts = self.prompts()
        for request in self.all:
            request.granted = request.input_tokens + request.generated if request in prompts else 0
        for request in prompts:
            request.blocks = self.blocks_for(request)
        if prompts:
            return prompts
        while self.resident and sum(map(self.blocks_for, self.resident)) > self.usable_blocks:
            victim = self.resident.pop()
            self.preempt(victim)
            if not self.resident:
                raise LivelockError
        for request in self.resident:
            request.blocks = self.blocks_for(request)
            request.granted = 1
        return list(self.resident)

    def blocks_for(self, request: Request) -> int:
        """Blocks that hold all but the token that comes next."""
        return math.ceil((request.input_tokens + request.generated) / self.block)

    def prompts(self) -> list[Request]:
        """Those that are admitted now."""
        watermark_blocks = int(float(self.params.get("watermark", 0.0)) * self.usable_blocks)
        admitted: list[Request] = []
        held = sum(request.blocks for request in self.resident)
        while self.queue and len(self.resident) < self.seats:
            request = self.queue[0]
            held += self.blocks_for(request)
            kept_free = watermark_blocks if self.resident else 0
            tokens = sum(one.input_tokens + one.generated for one in [*admitted, request])
            if held > self.usable_blocks - kept_free or (admitted and tokens > self.limit):
                break
            admitted.append(self.queue.pop(0))
            self.resident.append(request)
        return admitted


class Sarathi(Vllm):
    t = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.usable_blocks = self.replica.memory_tokens // self.block

    def form(self, drain: bool) -> list[Request]:
        self.budget = self.limit
        for request in self.all:
            request.granted = 0
        self.walk_the_running_list()
        self.admit_from_the_queue()
        return [request for request in self.resident if request.granted > 0]

    def fits(self, request: Request) -> bool:
        return math.ceil((request.input_tokens + request.generated) / self.block) <= self.free_blocks()

    def allowance(self) -> float:
        """Most admissions in this iteration."""
        if "cap" not in self.params:
            return math.inf
        cap = float(self.params["cap"])
        if not self.resident and self.queue and self.fits(self.queue[0]):
            while of_iteration(self.t, cap) == 0:
                self.t += 1
        return of_iteration(self.t, cap)

    def admit_from_the_queue(self) -> None:
        allowance, admitted = self.allowance(), 0
        while self.queue and self.budget > 0 and len(self.resident) < self.seats and admitted < allowance:
            request = self.queue[0]
            if not self.fits(request):
                return
            tokens = int(min(request.input_tokens + request.generated, self.budget))
            self.queue.pop(0)
            self.resident.append(request)
            admitted += 1
            request.blocks = math.ceil(tokens / self.block)
            self.grant(request, tokens)

    def execute(self, batch: list[Request]) -> Work:
        self.t += 1
        return super().execute(batch)


class Sglang(Vllm):
    def __init__(self, requests: Requests, *rest: Any) -> None:
        super().__init__(requests, *rest)
        self.usable_blocks = self.replica.memory_tokens // self.block
        self.first_ratio = min(1.0, 0.7 * self.params["conservativeness"])
        self.ratio = self.first_ratio
        self.begun: Request | None = None  # its prompt is computed in part
        self.steps = math.inf  # that decoded, since it looked for requests
        self.received: set[Request] = set()
        self.owed = 0  # iterations of decodes before prompts are computed again
        self.alone = True

    def max_new(self, request: Request) -> int:
        beside_the_input = self.usable_blocks * self.block - request.input_tokens
        return max(1, min(int(self.params["max_new"][request.class_index]), beside_the_input))

    def remaining(self, request: Request) -> int:
        return min(self.max_new(request) - request.generated, 4096)

    def form(self, drain: bool) -> list[Request]:
        for request in self.all:
            request.granted = 0
        if self.steps >= self.params.get("receive_every_steps", 1) or not self.resident:
            self.received |= set(self.queue)
            self.steps = 0
        unseen = [request for request in self.queue if request not in self.received]
        self.queue = [request for request in self.queue if request in self.received]
        decoding = self.decoding()
        self.owed = 0 if self.alone and not decoding else self.owed
        waits = self.owed > 0
        if waits:
            self.owed -= 1
            self.remember_prompts()
        else:
            self.compute_prompts()
        prompts = any(request.granted > 0 for request in self.resident)
        if not prompts and (decoding or not waits):
            self.decode()
            if self.resident == [self.begun]:
                self.compute_prompts()
                prompts = True
        if prompts:
            self.owed = self.params.get("prefill_interval", 1) - 1
        self.steps = math.inf if prompts or (waits and not decoding) else self.steps + 1
        batch = [request for request in self.resident if request.granted > 0]
        self.queue += unseen
        return batch

    def compute_prompts(self) -> None:
        self.budget = self.limit
        running = [request for request in self.resident if request is not self.begun]
        whole = 0  # to come of those computed in this iteration
        if self.begun is not None:
            whole += self.remaining(self.begun)
            self.compute_some(self.begun)
        while self.queue and self.budget > 0 and len(self.resident) < self.seats:
            request = self.queue[0]
            sequence = request.input_tokens + request.generated
            kept = self.ratio * sum(self.remaining(other) for other in running) + whole
            if sequence + self.remaining(request) > self.free_blocks() * self.block - kept:
                return
            self.queue.pop(0)
            self.resident.append(request)
            whole += self.remaining(request)
            self.compute_some(request)

    def remember_prompts(self) -> None:
        """Nothing, without a cache."""

    def compute_some(self, request: Request) -> None:
        uncomputed = request.input_tokens + request.generated - request.computed
        tokens = int(min(uncomputed, self.budget))
        request.blocks = math.ceil((request.computed + tokens) / self.block)
        self.grant(request, tokens)
        self.begun = request if tokens < uncomputed else None

    def decode(self) -> None:
        self.budget = math.inf
        if not self.resident:
            self.ratio = self.first_ratio
            return
        retracted = False
        while sum(map(self.blocks_after, self.decoding())) + self.begun_blocks() > self.usable_blocks:
            self.retract(max(self.decoding(), key=self.goes_first))
            retracted = True
        for request in self.decoding():
            request.blocks = self.blocks_after(request)
            self.grant(request, 1)
        self.move_ratio(self.decoding(), retracted)

    def decoding(self) -> list[Request]:
        return [request for request in self.resident if request is not self.begun]

    def begun_blocks(self) -> int:
        return 0 if self.begun is None else self.begun.blocks

    def retract(self, victim: Request) -> None:
        self.resident.remove(victim)
        self.preempt(victim)
        self.queue.append(self.queue.pop(0))
        if not self.resident:
            raise LivelockError

    def move_ratio(self, running: list[Request], retracted: bool) -> None:
        if retracted:
            generated = sum(request.generated for request in running)
            longest = sum(map(self.max_new, running))
            self.ratio = min(1.0, (generated + 20 * len(running)) / (longest + 1))
        else:
            least = 0.14 * self.first_ratio
            self.ratio = max(self.ratio - (self.first_ratio - least) / 600, least)

    def blocks_after(self, request: Request) -> int:
        """Blocks that a running request needs to decode once."""
        return math.ceil((request.computed + 1) / self.block)

    def goes_first(self, request: Request) -> tuple[int, int, int]:
        return -request.generated, request.input_tokens, self.resident.index(request)


class LayeredSglang(Sglang):
    """With windows in a pool of their own, kept page by page."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        assert self.replica.layout is not None
        self.layout = self.replica.layout
        (self.windows,) = (one for one in self.layout.layers if one.window)
        (full,) = (one for one in self.layout.layers if not one.window)
        ratio = float(self.params.get("swa_full_tokens_ratio", 0.8))
        self.bytes = full.count * full.bytes, self.windows.count * self.windows.bytes
        memory = self.replica.memory_tokens // self.block * self.layout.block_bytes
        tokens = int(memory / (self.bytes[0] + ratio * self.bytes[1]))
        self.usable_blocks, self.window_blocks = tokens // self.block, int(tokens * ratio) // self.block
        self.tables: dict[Request, Allocator] = {}

    def free_windows(self) -> int:
        return self.window_blocks - sum(len(self.tables[request].blocks) for request in self.resident)

    def hold(self, request: Request, tokens: int) -> None:
        self.tables[request].step(request.computed, tokens, 0)
        request.blocks = math.ceil((request.computed + tokens) / self.block)

    def compute_prompts(self) -> None:
        self.budget = self.limit
        running = [request for request in self.resident if request is not self.begun]
        whole = 0  # to come of those computed in this iteration
        room = self.free_windows() * self.block
        if self.begun is not None:
            begun, uncomputed = self.begun, self.begun.input_tokens + self.begun.generated
            self.budget = min(self.budget, self.most(begun, uncomputed - begun.computed))
            if self.budget == 0:
                return
            whole += self.remaining(begun)
            room -= self.compute_some(begun)
        while self.queue and self.budget > 0 and len(self.resident) < self.seats:
            request = self.queue[0]
            sequence = request.input_tokens + request.generated
            kept = self.ratio * sum(self.remaining(other) for other in running) + whole
            if sequence + self.remaining(request) > self.free_blocks() * self.block - kept:
                return
            if max(min(sequence, self.budget), self.windows.window) > room:
                return
            self.resident.append(self.queue.pop(0))
            self.tables[request] = Allocator(self.windows, self.block)
            whole += self.remaining(request)
            room -= self.compute_some(request)

    def most(self, begun: Request, uncomputed: int) -> int:
        """Of the tokens left of a prompt, as many as fit; all that its last pages have room for where it is cut."""
        most = 0
        others = [request for request in self.resident if request is not begun]
        window_room = self.window_blocks - sum(len(self.tables[request].blocks) for request in others)
        full_room = self.usable_blocks - sum(request.blocks for request in others)
        while True:
            table = Allocator(self.windows, self.block)
            windows = table.step(begun.computed, most + 1, 0)
            if windows > window_room or math.ceil((begun.computed + most + 1) / self.block) > full_room:
                return most
            most += 1
            if most > uncomputed + 10_000:
                return most

    def compute_some(self, request: Request) -> int:
        """Tokens set aside for it in the pool of windows."""
        uncomputed = request.input_tokens + request.generated - request.computed
        tokens = int(min(uncomputed, self.budget))
        self.hold(request, tokens)
        self.grant(request, tokens)
        self.begun = request if tokens < uncomputed else None
        return max(math.ceil(tokens / self.block) * self.block, self.windows.window)

    def decode(self) -> None:
        self.budget = math.inf
        if not self.resident:
            self.ratio = self.first_ratio
            return
        running = self.decoding()
        for request in running:
            self.hold(request, 1)
        retracted = False
        while self.free_blocks() < 0 or self.free_windows() < 0:
            victim = max(running, key=self.goes_first)
            running.remove(victim)
            self.retract(victim)
            retracted = True
        for request in running:
            self.grant(request, 1)
        self.move_ratio(running, retracted)

    def kv_held(self, batch: list[Request]) -> int:
        full = sum(request.blocks for request in self.resident) * self.bytes[0]
        windows = sum(len(self.tables[request].blocks) for request in self.resident) * self.bytes[1]
        return (full + windows) * self.block // (self.layout.block_bytes // self.block)

    def execute(self, batch: list[Request]) -> Work:
        work = super().execute(batch)
        work.kv_tokens = sum(attended(self.layout, request.computed) for request in batch)
        return work


POLICIES: dict[str, type[Run]] = {
    "greedy": Greedy,
    "rate-limited": RateLimited,
    "vllm": Vllm,
    "session-cap": Vllm,  # of requests without turns; `slow_prefix_cache.Capped` has them
    "sglang": Sglang,
    "sarathi": Sarathi,
    "vllm-v0": VllmV0,
    "trtllm-max-utilization": TrtllmMaxUtilization,
    "trtllm-no-evict": TrtllmNoEvict,
    "wait": Wait,
    "nested-wait": NestedWait,
    "flow": Flow,
    "flow-unknown": FlowUnknown,
    "adaptive": Adaptive,
    "alpha-protection": AlphaProtection,
    "mc": Mc,
    "mc-sf": McSf,
    "a-min": AMin,
}


_LAYERED: dict[str, type[Run]] = {"vllm": LayeredVllm, "sglang": LayeredSglang}


def simulate(
    policy: str,
    requests: Requests,
    timing: Timing,
    replica: Replica,
    params: Mapping[str, Any],
    *,
    horizon_s: float | None = None,
    request_overhead_s: float = 0.0,
) -> SlowResult:
    """Run one policy on one list of requests; the module's docstring says how."""
    kind = POLICIES[policy] if replica.layout is None else _LAYERED[policy]
    run = kind(requests, timing, replica, params)
    run.request_overhead_s = request_overhead_s
    return run.run(horizon_s)
