"""A second vLLM for conversations that share nothing, fast enough for large replicas: written from the rules alone.

What a turn leaves is released last block first, and thrown away in that order. So of each conversation a memory has
leading blocks, and their number says which: no block is walked. Rules are those of `slow_prefix_cache` and
`slow_host_tier`, whole prompts admitted at once, without a watermark; the host is inclusive and loads overlap.
"""

import heapq
import math
from collections import OrderedDict, deque
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray, IntArray, Replica, Timing
from kvplan.simulation.requests import Requests


class Kept:
    """How many leading blocks of each conversation a memory has, the one released longest ago first."""

    def __init__(self) -> None:
        self.of: OrderedDict[int, int] = OrderedDict()
        self.blocks = 0

    def pop(self, conversation: int) -> None:
        self.blocks -= self.of.pop(conversation, 0)

    def put_last(self, conversation: int, blocks: int) -> None:
        self.pop(conversation)
        if blocks:
            self.of[conversation] = blocks
            self.blocks += blocks

    def throw_away(self, blocks: int) -> None:
        while blocks > 0:
            oldest = next(iter(self.of))
            thrown = min(self.of[oldest], blocks)
            self.blocks -= thrown
            blocks -= thrown
            self.of[oldest] -= thrown
            if not self.of[oldest]:
                del self.of[oldest]


class Run(NamedTuple):
    """Times in seconds, NaN where there is none, and prompt tokens found, of each request."""

    first_token_s: FloatArray
    finish_s: FloatArray
    hit_tokens: IntArray


class Conversations:
    """A replica; with a cap turns of conversations in flight go first, and so many are in flight at most."""

    def __init__(self, requests: Requests, timing: Timing, replica: Replica, cap: float = math.inf) -> None:
        assert requests.turns is not None
        assert requests.prefixes is not None
        self.timing, self.block, self.cap = timing, replica.block_tokens, cap
        self.usable = replica.memory_tokens // self.block - 1
        self.tier = replica.offload
        self.inputs, self.decodes = requests.input_tokens.tolist(), requests.decode_tokens.tolist()
        self.conversation = requests.prefixes.stream.tolist()
        self.then, self.think_s = requests.turns.following.tolist(), requests.turns.think_s.tolist()
        # a user begins another conversation after the last turn of one
        of = self.conversation
        self.turns = {after for i, after in enumerate(self.then) if after >= 0 and of[after] == of[i]}
        self.to_come = [(s, i) for i, s in enumerate(requests.arrival_s.tolist()) if not math.isnan(s)]
        heapq.heapify(self.to_come)
        size = len(self.inputs)
        self.first_s, self.finish_s = [math.nan] * size, [math.nan] * size
        self.computed, self.generated, self.held, self.hits = [0] * size, [0] * size, [0] * size, [-1] * size
        self.gpu, self.host, self.used = Kept(), Kept(), 0  # used: blocks that requests hold
        self.queues: tuple[deque[int], deque[int]] = (deque(), deque())  # the second one of those that begin
        self.running: list[int] = []
        self.loading: deque[tuple[float, int]] = deque()
        self.now = self.link_free_s = 0.0
        self.in_flight = 0

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def queue_of(self, request: int) -> deque[int]:
        return self.queues[self.cap < math.inf and request not in self.turns]

    # -- memory

    def trim(self) -> None:
        if self.tier is not None:
            room = max(self.tier.memory_tokens // self.block - self.used, 0)
            self.host.throw_away(self.host.blocks - room)

    def take(self, request: int, blocks: int) -> None:
        self.gpu.throw_away(blocks - (self.usable - self.used - self.gpu.blocks))
        self.used += blocks
        self.held[request] += blocks
        self.trim()

    def give_back(self, request: int) -> None:
        full = self.computed[request] // self.block
        self.used -= self.held[request]
        self.held[request] = 0
        self.gpu.put_last(self.conversation[request], full)
        if self.tier is not None:
            self.host.put_last(self.conversation[request], full)
        self.trim()

    def preempt(self, request: int) -> None:
        self.give_back(request)
        self.computed[request] = 0
        self.queue_of(request).appendleft(request)

    # -- the scheduler

    def form(self) -> list[tuple[int, int]]:
        """The requests of an iteration and the tokens granted to each."""
        batch: list[tuple[int, int]] = []
        before = len(self.running)
        while len(batch) < len(self.running):
            request = self.running[len(batch)]
            lacking = self.blocks(self.computed[request] + 1) - self.held[request]
            if lacking > self.usable - self.used:
                self.preempt(self.running.pop())
                continue
            if lacking:
                self.take(request, lacking)
            batch.append((request, 1))
        if len(self.running) == before and self.goes_on_with_loaded(batch):
            for queue in self.queues:
                while queue and self.admits(queue[0], batch):
                    queue.popleft()
                if queue:
                    break
        return batch

    def goes_on_with_loaded(self, batch: list[tuple[int, int]]) -> bool:
        while self.loading and self.loading[0][0] <= self.now:
            _, request = self.loading.popleft()
            sequence = self.inputs[request] + self.generated[request]
            lacking = self.blocks(sequence) - self.held[request]
            if lacking > self.usable - self.used:
                self.preempt(request)
                return False
            self.take(request, lacking)
            self.running.append(request)
            batch.append((request, sequence - self.computed[request]))
        return True

    def admits(self, request: int, batch: list[tuple[int, int]]) -> bool:
        """Whether there is room; and whoever is admitted takes what is there of its conversation."""
        conversation, sequence = self.conversation[request], self.inputs[request] + self.generated[request]
        begins = request not in self.turns and self.hits[request] < 0
        if (begins and self.in_flight >= self.cap) or self.blocks(sequence) > self.usable - self.used:
            return False
        most = (sequence - 1) // self.block
        here = min(self.gpu.of.get(conversation, 0), most)
        found = max(here, min(self.host.of.get(conversation, 0), most))
        self.in_flight += begins
        self.gpu.pop(conversation)
        self.host.pop(conversation)
        if self.hits[request] < 0:
            self.hits[request] = found * self.block
        self.computed[request] = found * self.block
        self.take(request, here)
        if found > here:
            assert self.tier is not None
            self.take(request, found - here)
            load_s = (found - here) * self.block * self.tier.load_s
            self.link_free_s = max(self.link_free_s, self.now) + load_s
            self.loading.append((self.link_free_s, request))
        else:
            self.take(request, self.blocks(sequence) - here)
            self.running.append(request)
            batch.append((request, sequence - self.computed[request]))
        return True

    # -- the loop

    def run(self, end_s: float) -> Run:
        law = self.timing
        while self.now < end_s:
            while self.to_come and self.to_come[0][0] <= self.now:
                request = heapq.heappop(self.to_come)[1]
                self.queue_of(request).append(request)
            batch = self.form()
            if not batch:
                self.now = min([end_s, *(events[0][0] for events in (self.to_come, self.loading) if events)])
                continue
            prompts = sum(tokens for _, tokens in batch if tokens > 1)
            for request, tokens in batch:
                self.computed[request] += tokens
            context = sum(self.computed[request] for request, _ in batch)
            self.now += law.d0 + law.d1 * context + law.d2 * prompts + law.d3 * len(batch)
            if self.now <= end_s:
                self.emit([request for request, _ in batch])
        hits = np.maximum(np.array(self.hits), 0)
        return Run(np.array(self.first_s), np.array(self.finish_s), hits)

    def emit(self, batch: list[int]) -> None:
        for request in batch:
            self.generated[request] += 1
            if self.generated[request] == 1:
                self.first_s[request] = self.now
            if self.generated[request] == self.decodes[request]:
                self.finish_s[request] = self.now
                self.running.remove(request)
                self.give_back(request)
                if (after := self.then[request]) >= 0:
                    heapq.heappush(self.to_come, (self.now + self.think_s[request], after))
                if after not in self.turns:
                    self.in_flight -= 1
