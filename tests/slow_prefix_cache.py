"""A slow, obvious vLLM with a prefix cache: a block is a number, the pool a dictionary and a deque.

Written from the rules alone, beside `slow_simulator`, whose loop it uses. The tokens of a request are spelt out, and a
block is known by all the tokens up to its end.

`vllm` with `prefix_caching`
    A pool of floor(M/b) - 1 blocks and a queue of free ones, in order of release. Taking a block takes the first of the
    queue, whose hash is forgotten. A block gets a hash once the tokens granted fill it, when they are granted. Where a
    hash is known already the block remains a second copy: the copy with a hash for longest is found. Look-up
    when a request goes from waiting to running: leading blocks with a known hash, at most
    floor((input + generated - 1)/b) of them, count as computed. It is admitted iff ceil((input + generated)/b) - hits
    + hits that nobody holds + watermark (while anything runs) blocks are free. Release, at completion and at
    preemption: blocks that nobody else holds join the end of the queue, the last block of the request first;
    those without a hash its front. K counts the whole context of those scheduled, P grants of more than one token.
    The hits of a request are counted at its first admission; those of a later one are recovered work.

Turns
    What follows a request arrives think time after its completion. Of arrivals at one moment those of lower number
    come first.

`shed_after`
    Before the queue is admitted, and even where it will not be, whoever has never run and has waited longer than that
    since arrival is given up: it is never served. What would have followed it never comes; what comes instead, if
    anything, arrives think time later.
"""

import math
from collections import deque
from typing import Any

from slow_simulator import Request, Vllm

from kvplan.simulation.requests import Requests


class WithTurns(Vllm):
    """Requests that others bring, and shedding."""

    def __init__(self, requests: Requests, *rest: Any) -> None:
        super().__init__(requests, *rest)
        self.turns = requests.turns
        if self.turns is not None:
            for request in self.all:
                if math.isnan(requests.arrival_s[request.index]):
                    request.arrival_s = None
            beside = self.turns.beside
            self.sends: dict[int, list[int]] = {}  # by who sends them out
            for request in [] if beside is None else set(range(len(self.all))) - set(beside.tolist()):
                sent = int(beside[request])
                while sent >= 0:
                    self.sends.setdefault(request, []).append(sent)
                    sent = int(beside[sent])
            self.waits = {int(self.turns.following[r]): 1 + len(sent) for r, sent in self.sends.items()}
            self.due: dict[int, float] = {}

        self.hits = [0 for _ in self.all]
        self.recovered = [0 for _ in self.all]
        self.cached_per_iteration: list[int] = []

    def begin_with(self, request: Request, tokens: int) -> None:
        """Count tokens that a cache has of a request as computed."""
        request.computed = tokens
        if request.evictions == 0:
            self.hits[request.index] = tokens
        else:
            self.recovered[request.index] += tokens

    def next_arrival(self) -> float | None:
        self.to_come.sort(key=lambda r: (math.inf if r.arrival_s is None else r.arrival_s, r.index))
        return super().next_arrival()

    def bring(self, which: int, after: Request) -> None:
        if which >= 0:
            self.waits[which] = self.waits.get(which, 1) - 1
            due = self.now + float(self.turns.think_s[after.index])
            self.due[which] = max(due, self.due.get(which, due))
            if self.waits[which] == 0:
                self.all[which].brought = True
                self.all[which].arrival_s = self.due[which]

    def is_answered(self, request: Request) -> None:
        if self.turns is not None:
            for sent in self.sends.get(request.index, []):
                self.all[sent].brought, self.all[sent].arrival_s = True, self.now
            self.bring(int(self.turns.following[request.index]), request)

    def shed(self) -> None:
        limit = self.params.get("shed_after", math.inf)
        for request in list(self.queue):
            if request.evictions == 0 and self.now - request.arrival_s > limit:
                self.queue.remove(request)
                request.gone = True
                if self.turns is not None:
                    instead = int(self.turns.instead[request.index])
                    lost = int(self.turns.following[request.index])
                    last = request.index
                    while lost not in (-1, instead):
                        self.all[lost].gone = True
                        for never in self.sends.get(last, []):
                            while never != lost:
                                self.all[never].gone = True
                                never = int(self.turns.following[never])
                        last, lost = lost, int(self.turns.following[lost])
                    self.bring(instead, request)

    def form(self, drain: bool) -> list[Request]:
        self.shed()
        return super().form(drain)


def spelt(requests: Requests, request: Request) -> list[tuple[Any, int]]:
    """The tokens of a request, in order, each with the stream that it is of and its place."""
    length = request.input_tokens + request.decode_tokens
    if requests.prefixes is None:
        return [(("alone", request.index), place) for place in range(length)]
    known = requests.prefixes
    way = [int(known.stream[request.index])]
    while known.parent[way[0]] >= 0:
        way.insert(0, int(known.parent[way[0]]))
    tokens: list[tuple[Any, int]] = []
    for stream in way[:-1]:
        tokens += [(stream, place) for place in range(len(tokens), int(known.end_tokens[stream]))]
    return tokens + [(way[-1], place) for place in range(len(tokens), length)]


class Cached(WithTurns):
    """The pool of blocks."""

    def __init__(self, requests: Requests, *rest: Any) -> None:
        super().__init__(requests, *rest)
        self.spelt = [spelt(requests, request) for request in self.all]
        self.free = deque(range(self.usable_blocks))
        self.hash_of: dict[int, Any] = {}  # of a block
        self.copies: dict[Any, list[int]] = {}  # of a hash, blocks in order of registration
        self.holders = [0] * self.usable_blocks
        self.held: list[list[int]] = [[] for _ in self.all]
        self.numbers: dict[Any, int] = {}  # of what blocks can hold
        self.names: list[list[int]] = [[] for _ in self.all]  # of the blocks of a request

    def name(self, request: Request, place: int) -> int:
        """What a block of a request is known by: a number for what is in it and all that is before it."""
        known = self.names[request.index]
        for at in range(len(known), place + 1):
            inside = tuple(self.spelt[request.index][at * self.block : (at + 1) * self.block])
            known.append(self.numbers.setdefault((known[-1] if at else -1, inside), len(self.numbers)))
        return known[place]

    # -- the pool

    def free_blocks(self) -> int:
        return len(self.free)

    def take(self, request: Request) -> None:
        block = self.free.popleft()
        if block in self.hash_of:
            known_by = self.hash_of.pop(block)
            self.copies[known_by].remove(block)
            if not self.copies[known_by]:
                del self.copies[known_by]
        self.holders[block] = 1
        self.held[request.index].append(block)

    def share(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.holders[block] == 0:
                self.free.remove(block)
            self.holders[block] += 1

    def give_back(self, request: Request) -> None:
        for block in reversed(self.held[request.index]):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                if block in self.hash_of:
                    self.free.append(block)
                else:
                    self.free.appendleft(block)
        self.held[request.index] = []
        request.blocks = 0

    def grant(self, request: Request, tokens: int) -> None:
        """Takes the blocks, and gives those that will be full their hash."""
        super().grant(request, tokens)
        held = self.held[request.index]
        while len(held) < math.ceil((request.computed + tokens) / self.block):
            self.take(request)
        request.blocks = len(held)
        for place in range((request.computed + tokens) // self.block):
            if held[place] not in self.hash_of:
                self.hash_of[held[place]] = self.name(request, place)
                self.copies.setdefault(self.name(request, place), []).append(held[place])

    def found(self, request: Request) -> list[int]:
        """Leading blocks of the sequence so far that are there."""
        blocks: list[int] = []
        if not self.params.get("prefix_caching", True):
            return blocks
        for place in range((request.input_tokens + request.generated - 1) // self.block):
            if self.name(request, place) not in self.copies:
                break
            blocks.append(self.copies[self.name(request, place)][0])
        return blocks

    # -- the scheduler

    def preempt(self, victim: Request) -> None:
        self.give_back(victim)
        super().preempt(victim)

    def admit_from_the_queue(self) -> None:
        spared = int(float(self.params.get("watermark", 0.0)) * self.usable_blocks)
        while self.queue and self.budget > 0 and len(self.resident) < self.seats:
            request = self.queue[0]
            sequence = request.input_tokens + request.generated
            hits = self.found(request)
            idle = [block for block in hits if self.holders[block] == 0]
            asked = self.asked(sequence, len(hits) * self.block)
            needed = math.ceil(asked / self.block) - len(hits) + len(idle)
            if needed + (spared if self.resident else 0) > len(self.free):
                return
            self.queue.pop(0)
            self.resident.append(request)
            self.share(hits)
            self.held[request.index] = list(hits)
            self.begin_with(request, len(hits) * self.block)
            self.grant(request, int(min(sequence - request.computed, self.budget)))

    def kv_held(self, batch: list[Request]) -> int:
        self.cached_per_iteration.append(self.block * sum(1 for block in self.free if block in self.hash_of))
        return self.block * (self.usable_blocks - len(self.free))

    def is_answered(self, request: Request) -> None:
        self.give_back(request)
        super().is_answered(request)


class Capped(Cached):
    """At most `cap` sessions in flight, from a first admission to the end of a last turn; their turns go first."""

    def __init__(self, requests: Requests, *rest: Any) -> None:
        super().__init__(requests, *rest)
        self.in_flight, self.turn = 0, set[int]()
        for before, then in enumerate(requests.turns.following.tolist()):
            if then >= 0 and then != requests.turns.instead[before]:
                self.turn.add(then)
        self.turn.update(*self.sends.values())

    def admit_from_the_queue(self) -> None:
        waiting, self.queue = sorted(self.queue, key=lambda r: r.index not in self.turn), []
        while waiting:
            request = waiting[0]
            begins = request.index not in self.turn and request.evictions == 0
            if begins and self.in_flight >= self.params["cap"]:
                break
            self.queue = waiting[:1]
            super().admit_from_the_queue()
            if self.queue:
                break
            waiting.pop(0)
            self.in_flight += begins
        self.queue = waiting

    def is_answered(self, request: Request) -> None:
        super().is_answered(request)
        if int(self.turns.following[request.index]) not in self.turn:
            self.in_flight -= 1
