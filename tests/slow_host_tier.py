"""A slow, obvious host tier behind the prefix cache of `slow_prefix_cache`: a dictionary in order of release.

Written from the rules alone. The host knows blocks by all the tokens up to their ends, as the GPU's pool does, each
once.

Inclusive
    The host reserves a block for each one that requests hold on the GPU; what is left of its blocks keeps what they
    have released, last block of a request first, the longest released thrown away first. Released again it goes last.
Exclusive
    What the GPU throws away goes last. Where there is no room the first is thrown away.
Look-up
    Goes on in the host where the leading blocks on the GPU end. All blocks found leave the host; those that are not on
    the GPU are loaded, into blocks taken like any other. The request counts as having computed them.
Loads
    Take their time of the iteration in which the request is admitted; or, overlapping, the request waits for its load,
    holding what was found, while others run. The link makes one transfer at a time, in order. Once done, and where
    nobody was preempted before, it goes on behind those running; where blocks lack it is preempted, and nobody else
    goes on or is admitted. Who waits counts as resident, but is not preempted by others. At the head of the queue
    whoever has blocks in common with one who waits, that were not on the GPU when its load began, waits for it.
"""

import math
from typing import Any

from slow_prefix_cache import Cached
from slow_simulator import Request


class WithHost(Cached):
    """Both tiers."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        assert self.replica.offload is not None
        self.tier = self.replica.offload
        self.host: dict[int, None] = {}  # by content, first to go first
        self.loading: list[Request] = []
        self.ready_s: dict[Request, float] = {}
        self.coming: dict[Request, set[int]] = {}
        self.link_free_s = self.link_busy_s = self.loads_s = 0.0
        self.loaded = [0 for _ in self.all]

    # -- the host

    def room(self) -> int:
        blocks = self.tier.memory_tokens // self.block
        return max(blocks - self.tier.inclusive * (self.usable_blocks - len(self.free)), 0)

    def put_last(self, content: int) -> None:
        self.host.pop(content, None)
        self.host[content] = None

    def trim(self) -> None:
        while len(self.host) > self.room():
            del self.host[next(iter(self.host))]

    def take(self, request: Request) -> None:
        content = self.hash_of.get(self.free[0])
        super().take(request)
        if content is not None and not self.tier.inclusive:
            self.put_last(content)
        self.trim()

    def give_back(self, request: Request) -> None:
        held = list(self.held[request.index])
        super().give_back(request)
        if self.tier.inclusive:
            for block in reversed(held):
                if self.holders[block] == 0 and block in self.hash_of:
                    self.put_last(self.hash_of[block])
        self.trim()

    # -- the scheduler

    def is_alone(self) -> bool:
        return not self.resident and not self.loading

    def next_event(self) -> float | None:
        coming = super().next_event()
        if not self.loading:
            return coming
        ready = self.ready_s[self.loading[0]]
        return ready if coming is None else min(ready, coming)

    def beside_s(self) -> float:
        return self.loads_s

    def serve_loaded(self) -> bool:
        """Grants tokens to those who are done waiting; whether one gave way."""
        while self.loading and self.ready_s[self.loading[0]] <= self.now and self.budget > 0:
            request = self.loading.pop(0)
            need = int(min(request.input_tokens + request.generated - request.computed, self.budget))
            if math.ceil((request.computed + need) / self.block) - len(self.held[request.index]) > len(
                self.free
            ):
                self.preempt(request)
                return True
            self.resident.append(request)
            self.grant(request, need)
        return False

    def form(self, drain: bool) -> list[Request]:
        self.loads_s = 0.0
        return super().form(drain)

    def admit_from_the_queue(self) -> None:
        if self.serve_loaded():
            return
        spared = int(float(self.params.get("watermark", 0.0)) * self.usable_blocks)
        while self.queue and self.budget > 0 and len(self.resident) + len(self.loading) < self.seats:
            request = self.queue[0]
            sequence = request.input_tokens + request.generated
            names = [self.name(request, place) for place in range((sequence - 1) // self.block)]
            if any(set(names) & self.coming[other] for other in self.loading):
                return
            hits = self.found(request)
            idle = [block for block in hits if self.holders[block] == 0]
            end = len(hits)
            while end < len(names) and names[end] in self.host:
                end += 1
            asked = self.asked(sequence, end * self.block)
            if self.tier.overlap and end > len(hits) and self.params.get("admission"):
                asked = end * self.block  # what is loaded; the rest is granted later
            needed = math.ceil(asked / self.block) - len(hits) + len(idle)
            if needed + (0 if self.is_alone() else spared) > len(self.free):
                return
            self.queue.pop(0)
            self.share(hits)
            self.held[request.index] = list(hits)
            for name in names[:end]:
                self.host.pop(name, None)
            absent = {self.name(request, place) for place in range(len(hits), sequence // self.block)}
            for name in names[len(hits) : end]:
                self.take(request)
                block = self.held[request.index][-1]
                self.hash_of[block] = name
                self.copies.setdefault(name, []).append(block)
            self.trim()
            self.begin_with(request, end * self.block)
            if request.evictions == 0:
                self.loaded[request.index] = (end - len(hits)) * self.block
            seconds = (end - len(hits)) * (self.tier.load_s * self.block)
            self.link_busy_s += seconds
            if seconds > 0 and self.tier.overlap:
                self.link_free_s = max(self.link_free_s, self.now) + seconds
                self.ready_s[request] = self.link_free_s
                self.coming[request] = absent
                self.loading.append(request)
                continue
            self.loads_s += seconds
            self.resident.append(request)
            self.grant(request, int(min(sequence - request.computed, self.budget)))
