"""vLLM's scheduler with `--scheduling-policy priority`, request by request, written after its source and not kvplan's.

`Scheduler.schedule` of `vllm/v1/core/sched/scheduler.py` and `PriorityRequestQueue` of
`vllm/v1/core/sched/request_queue.py`, 0.19: no prefix cache, whole prompts reserved at admission.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Asked:
    """A request, and how far it is."""

    number: int
    priority: int
    arrival_s: float
    prompt: int
    decode: int
    outputs: int = 0
    computed: int = 0
    blocks: int = 0
    first_token_s: float = field(default=float("nan"))
    finish_s: float = field(default=float("nan"))

    @property
    def order(self) -> tuple[int, float, int]:
        return self.priority, self.arrival_s, self.number

    @property
    def tokens(self) -> int:
        return self.prompt + self.outputs


class Scheduler:
    """One engine; an iteration takes what `seconds` says of the requests in it and the tokens granted to each."""

    def __init__(
        self,
        blocks: int,
        block: int,
        seats: int,
        budget: int,
        seconds: Callable[[Sequence[tuple[Asked, int]]], float],
    ) -> None:
        self.free, self.block, self.seats, self.budget = blocks, block, seats, budget
        self.seconds = seconds
        self.waiting: list[tuple[tuple[int, float, int], Asked]] = []
        self.running: list[Asked] = []
        self.preempted: list[int] = []  # in order

    def run(self, requests: Sequence[Asked]) -> None:
        coming, now = sorted(requests, key=lambda r: (r.arrival_s, r.number)), 0.0
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                now = max(now, coming[0].arrival_s)
            while coming and coming[0].arrival_s <= now:
                self._wait(coming.pop(0))
            scheduled = self._schedule()
            if not scheduled:
                continue
            now += self.seconds(scheduled)
            for request, granted in scheduled:
                request.computed += granted
                if request.computed < request.tokens:
                    continue
                request.outputs += 1
                if request.outputs == 1:
                    request.first_token_s = now
                if request.outputs == request.decode:
                    request.finish_s = now
                    self.running.remove(request)
                    self._free(request)

    def _wait(self, request: Asked) -> None:
        heapq.heappush(self.waiting, (request.order, request))

    def _free(self, request: Asked) -> None:
        self.free, request.blocks = self.free + request.blocks, 0

    def _takes(self, request: Asked, until: int) -> int:
        return -(-until // self.block) - request.blocks

    def _preempt(self, request: Asked) -> None:
        self._free(request)
        request.computed = 0
        self.preempted.append(request.number)
        self._wait(request)

    def _schedule(self) -> list[tuple[Asked, int]]:
        granted_to: dict[int, tuple[Asked, int]] = {}
        left, index, anybody = self.budget, 0, False
        while index < len(self.running) and left > 0:
            request = self.running[index]
            granted = min(request.tokens - request.computed, left)
            while (more := self._takes(request, request.computed + granted)) > self.free:
                worst = max(self.running, key=lambda r: r.order)
                if worst.number in granted_to:
                    left += granted_to.pop(worst.number)[1]
                    index -= 1
                self.running.remove(worst)
                self._preempt(worst)
                anybody = True
                if worst is request:
                    return [*granted_to.values()]
            self.free -= more
            request.blocks += more
            granted_to[request.number] = request, granted
            left, index = left - granted, index + 1
        while not anybody and self.waiting and left > 0 and len(self.running) < self.seats:
            request = self.waiting[0][1]
            if self._takes(request, request.tokens) > self.free:
                break
            heapq.heappop(self.waiting)
            granted = min(request.tokens, left)
            more = self._takes(request, granted)
            self.free -= more
            request.blocks += more
            self.running.append(request)
            granted_to[request.number] = request, granted
            left -= granted
        return [*granted_to.values()]
