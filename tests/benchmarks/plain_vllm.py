"""The vLLM scheduler as one would write it first: a Python object a request, a walk over all of them an iteration."""

from collections import deque
from dataclasses import dataclass


@dataclass
class Request:
    """A request and its progress, tokens and blocks."""

    prompt: int
    decode: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    finish_s: float = 0.0

    @property
    def left(self) -> int:
        """Tokens of the sequence so far whose KV is not computed."""
        return self.prompt + self.generated - self.computed


def serve(
    requests: list[Request],
    blocks: int,
    block: int,
    max_num_seqs: int,
    max_tokens: int,
    d0: float,
    d1: float,
    d2: float,
) -> tuple[float, int, int]:
    """All requests are there at first; returns makespan in seconds, preemptions, iterations."""
    waiting, running = deque(requests), list[Request]()
    free, now, preempted, iterations = blocks - 1, 0.0, 0, 0

    def grant(request: Request, tokens: int) -> bool:
        nonlocal free
        need = -(-(request.computed + tokens) // block) - request.blocks
        if need > free:
            return False
        free -= need
        request.blocks += need
        return True

    while waiting or running:
        budget, granted, evicted = max_tokens, dict[int, int](), False
        index = 0
        while index < len(running) and budget:
            request = running[index]
            tokens = min(request.left, budget)
            while not grant(request, tokens):
                last = running.pop()
                free += last.blocks
                last.blocks = last.computed = 0
                budget += granted.pop(id(last), 0)
                waiting.appendleft(last)
                preempted, evicted = preempted + 1, True
                if last is request:
                    break
            else:
                granted[id(request)] = tokens
                budget -= tokens
                index += 1
                continue
            break
        while not evicted and waiting and budget and len(running) < max_num_seqs:
            request = waiting[0]
            if -(-(request.prompt + request.generated) // block) > free:
                break
            waiting.popleft()
            tokens = min(request.left, budget)
            grant(request, tokens)
            running.append(request)
            granted[id(request)] = tokens
            budget -= tokens
        kv = prefill = 0
        for request in running:
            tokens = granted.get(id(request), 0)
            if tokens:
                request.computed += tokens
                kv += request.computed
                if tokens > 1:
                    prefill += tokens
        now += d0 + d1 * kv + d2 * prefill
        iterations += 1
        for request in running:
            if granted.get(id(request), 0) and request.left == 0:
                request.generated += 1
                if request.generated == request.decode:
                    request.finish_s = now
                    free += request.blocks
                    request.blocks = 0
        running = [request for request in running if request.generated < request.decode]
    return now, preempted, iterations
