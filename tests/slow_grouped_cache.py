"""A slow, obvious vLLM with a prefix cache beside windows and chunks: blocks are numbers, tables are lists.

Written from the rules alone, beside `slow_prefix_cache`, whose pool and names of blocks it uses; a name here begins
with the group. Every copy of a group of layers has a table of its own; all draw on one pool.

A group needs, of a prompt of which L tokens are found, the blocks with a token that the next one reads: all of full
attention, of a window of W those of the last W - 1 tokens, of a chunk those since its last multiple. Found is the
largest L, in whole blocks and below the length, for which every group has all that it needs. Before tokens are granted
each group gives back what the next token does not read, from the last such block on; then blocks are taken, group by
group. Admission asks for the blocks of the whole sequence in every group (or of the part granted), less those found,
and for those found that nobody holds. A state with checkpoints is read at the last of L tokens, and nobody is admitted
who would find one that has become known in this iteration.
"""

import math
from typing import Any

from slow_prefix_cache import Cached
from slow_simulator import LivelockError, Request, Work, attended

from kvplan.model.kv_layout import Attention, Group


class Grouped(Cached):
    """A table for each group, of blocks or None."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        assert self.replica.layout is not None
        self.layout = self.replica.layout
        self.groups: list[Group] = []
        for group in self.replica.layout.groups:
            self.groups += [group] * group.copies
        self.new_states: set[Any] = set()  # of this iteration
        self.tables: list[list[list[int | None]]] = [[[] for _ in self.groups] for _ in self.all]

    def first_read(self, group: Group, tokens: int) -> int:
        """First token that one behind so many reads."""
        if group.kind is Attention.WINDOW:
            assert group.window is not None
            return max(0, tokens - group.window + 1)
        if group.kind is Attention.CHUNK:
            assert group.window is not None
            return max(start for start in range(0, tokens + 1, group.window))
        if group.kind is Attention.STATE:
            return max(0, tokens - 1)
        return 0

    def form(self, drain: bool) -> list[Request]:
        self.new_states.clear()
        return super().form(drain)

    def needed(self, group: Group, tokens: int) -> range:
        """Places of the blocks of so many tokens that the next one reads."""
        first = self.first_read(group, tokens)
        return range(first // self.block, tokens // self.block)

    def known(self, at: int, request: Request, place: int) -> list[int]:
        return self.copies.get((at, self.name(request, place)), [])

    def found_blocks(self, request: Request) -> int:
        if not self.params.get("prefix_caching", True):
            return 0
        most = (request.input_tokens + request.generated - 1) // self.block
        for blocks in range(most, 0, -1):
            if all(
                self.known(at, request, place)
                for at, group in enumerate(self.groups)
                for place in self.needed(group, blocks * self.block)
            ):
                return blocks
        return 0

    def drop(self, block: int) -> None:
        self.holders[block] -= 1
        if self.holders[block] == 0:
            if block in self.hash_of:
                self.free.append(block)
            else:
                self.free.appendleft(block)

    def let_pass(self, request: Request) -> None:
        for group, table in zip(self.groups, self.tables[request.index], strict=True):
            gone = self.first_read(group, request.computed) // self.block
            for place in reversed(range(min(gone, len(table)))):
                block, table[place] = table[place], None
                if block is not None:
                    self.drop(block)

    def give_back(self, request: Request) -> None:
        for table in self.tables[request.index]:
            for block in reversed(table):
                if block is not None:
                    self.drop(block)
            table.clear()
        request.blocks = 0

    def lacking(self, request: Request, tokens: int) -> int:
        places = math.ceil((request.computed + tokens) / self.block)
        return sum(places - len(table) for table in self.tables[request.index])

    def grant(self, request: Request, tokens: int) -> None:
        request.granted = tokens
        self.budget -= tokens
        places = math.ceil((request.computed + tokens) / self.block)
        for table in self.tables[request.index]:
            while len(table) < places:
                block = self.free.popleft()
                if block in self.hash_of:
                    name = self.hash_of.pop(block)
                    self.copies[name].remove(block)
                self.holders[block] = 1
                table.append(block)
        for at, table in enumerate(self.tables[request.index]):
            for place in range((request.computed + tokens) // self.block):
                block_there = table[place]
                if block_there is not None and block_there not in self.hash_of:
                    name = at, self.name(request, place)
                    self.hash_of[block_there] = name
                    self.copies.setdefault(name, []).append(block_there)
                    if self.groups[at].kind is Attention.STATE:
                        self.new_states.add(name)

    def walk_the_running_list(self) -> bool:
        preempted, position = False, 0
        while position < len(self.resident) and self.budget > 0:
            request = self.resident[position]
            uncomputed = request.input_tokens + request.generated - request.computed
            need = int(min(uncomputed, self.budget))
            self.let_pass(request)
            while self.lacking(request, need) > len(self.free):
                victim = self.resident.pop()
                self.preempt(victim)
                preempted = True
                if self.is_alone():
                    raise LivelockError
                if victim is request:
                    return preempted
            self.grant(request, need)
            position += 1
        return preempted

    def admit_from_the_queue(self) -> None:
        spared = int(float(self.params.get("watermark", 0.0)) * self.usable_blocks)
        while self.queue and self.budget > 0 and len(self.resident) < self.seats:
            request = self.queue[0]
            sequence, found = request.input_tokens + request.generated, self.found_blocks(request)
            tables: list[list[int | None]] = []
            ends = {(at, self.name(request, found - 1)) for at in range(len(self.groups)) if found > 0}
            if ends & self.new_states:
                return
            for at, group in enumerate(self.groups):
                read = self.needed(group, found * self.block)
                tables.append([self.known(at, request, p)[0] if p in read else None for p in range(found)])
            idle = [b for table in tables for b in table if b is not None and self.holders[b] == 0]
            places = math.ceil(self.asked(sequence, found * self.block) / self.block) - found
            if places * len(self.groups) + len(idle) + (spared if self.resident else 0) > len(self.free):
                return
            self.queue.pop(0)
            self.resident.append(request)
            self.share([block for table in tables for block in table if block is not None])
            self.tables[request.index] = tables
            self.begin_with(request, found * self.block)
            self.grant(request, int(min(sequence - request.computed, self.budget)))

    def execute(self, batch: list[Request]) -> Work:
        work = super().execute(batch)
        work.kv_tokens = sum(attended(self.layout, request.computed) for request in batch)
        return work
