"""A replica that serves whoever arrives in the next iteration, with room for all: slow, obvious, not from the code."""

import heapq
from dataclasses import dataclass

import numpy as np

from kvplan.model import FloatArray, IntArray, Timing


@dataclass(frozen=True)
class Served:
    """Times of every request, and the length of every iteration with the tokens but first ones of each class in it."""

    ttft_s: FloatArray
    e2e_s: FloatArray
    iteration_s: FloatArray
    later_tokens: IntArray

    def gap(self, quantile: float, kind: int | None = None) -> float:
        """Percentile of the times between two tokens of a class, or of all."""
        number = self.later_tokens.sum(axis=1) if kind is None else self.later_tokens[:, kind]
        order = np.argsort(self.iteration_s)
        below = np.cumsum(number[order])
        return float(self.iteration_s[order][np.searchsorted(below, quantile * below[-1])])


def serve(
    arrival_s: FloatArray,
    input_tokens: IntArray,
    decode_tokens: IntArray,
    kind: IntArray,
    timing: Timing,
    budget: int = 10**12,
) -> Served:
    """Iterations of so many tokens, without an end of memory or sequences; an idle replica starts with an arrival.

    Who decodes comes first; of the prompts what is left is computed in the order of their arrivals.
    """
    arrival, prompt, decode, kinds = (x.tolist() for x in (arrival_s, input_tokens, decode_tokens, kind))
    n = len(arrival)
    first, last = np.zeros(n), np.zeros(n)
    leaving: list[tuple[int, int]] = []  # iteration of the last token, and whose
    running = [0] * (max(kinds) + 1)
    durations, later = [], []
    waiting: list[int] = []
    computed = [0] * n
    now, context, iteration, next_one = 0.0, 0, 0, 0
    while next_one < n or leaving or waiting:
        if not leaving and not waiting:
            now = max(now, arrival[next_one])
        context += len(leaving)
        while next_one < n and arrival[next_one] <= now:
            waiting.append(next_one)
            next_one += 1
        tokens, prefill, scheduled, read = 0, 0, len(leaving), context
        fresh = []
        while waiting and len(leaving) + tokens < budget:
            i = waiting[0]
            part = min(prompt[i] - computed[i], budget - len(leaving) - tokens)
            tokens += part
            prefill += part if part > 1 else 0  # a single token is as good as a decode's
            scheduled += 1
            computed[i] += part
            read += computed[i]
            if computed[i] == prompt[i]:
                fresh.append(waiting.pop(0))
        duration = timing(float(read), float(prefill), float(scheduled))
        durations.append(duration)
        later.append(list(running))
        now += duration
        for i in fresh:
            first[i] = now
            heapq.heappush(leaving, (iteration + decode[i] - 1, i))
            context += prompt[i]
            running[kinds[i]] += 1
        while leaving and leaving[0][0] == iteration:
            i = heapq.heappop(leaving)[1]
            last[i] = now
            context -= prompt[i] + decode[i] - 1
            running[kinds[i]] -= 1
        iteration += 1
    return Served(first - arrival_s, last - arrival_s, np.array(durations), np.array(later))
