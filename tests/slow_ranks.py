"""A slow, obvious model of replicas whose data-parallel ranks step together: an event after the other.

Ranks are the plain engines of `slow_simulator`, or those with a prefix cache, which form and execute batches; nothing
else of it is used, and no kernel. The law is that of a rank, as a profile has it: its time is that of the rank that
reads most, and of the one that computes longest, and every token of all ranks adds `all_ranks` to it.

A request goes to the replica with the fewest requests, waiting or running, the first of equals, and there to such a
rank, when it comes: with `vllm` who waits counts four times, with `sglang` one rank is taken after the other, and
where `turns_stay` a turn goes to the rank of the one before it. Who comes as an iteration ends finds those who leave
with it still there. What an answer brings comes after the iteration that begins as the answer ends.
"""

import math
from bisect import insort
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from slow_prefix_cache import Cached
from slow_radix_cache import Radix
from slow_simulator import POLICIES, LivelockError, Request, Run, Sglang, Work

from kvplan.model import Replica, Timing
from kvplan.simulation.requests import Requests


@dataclass
class Found:
    """What a run left behind; NaN where something has not happened."""

    first_token_s: list[float]
    finish_s: list[float]
    evictions: list[int]
    iterations: int = 0
    busy_s: float = 0.0
    kv_peak: int = 0  # of a replica
    prefill_peak: int = 0
    hit_tokens: list[int] = field(default_factory=list)  # with a prefix cache


class Site:
    """A replica."""

    def __init__(self, ranks: list[Any], law: Timing, balance: int) -> None:
        self.ranks, self.law, self.balance, self.waited = ranks, law, balance, 0
        self.ends_s = math.inf
        self.works: list[Work] = []
        self.sent = self.iterations = 0

    def load(self) -> int:
        return sum(map(load, self.ranks))

    def form(self) -> list[list[Request]]:
        """Form the batch of each rank."""
        if not self.balance:
            self.keep_pace()
            return [rank.form(False) for rank in self.ranks]
        tried = [deepcopy(rank).form(False) for rank in self.ranks]
        decodes = [sum(request.decodes for request in batch) for batch in tried]
        prompts = [len(batch) - n for batch, n in zip(tried, decodes, strict=True)]
        if not any(map(load, self.ranks)):
            return [[] for _ in self.ranks]
        ready = all(
            p > 0 and n < (rank.replica.max_num_seqs or math.inf)
            for p, n, rank in zip(prompts, decodes, self.ranks, strict=True)
        )
        lonely = any(n == 0 and load(rank) > 0 for n, rank in zip(decodes, self.ranks, strict=True))
        self.waited += 1
        waits = not (ready or lonely or self.waited >= self.balance)
        self.waited = self.waited if waits else 0
        return [rank.form_waiting_or_not(waiting=waits) for rank in self.ranks]

    def keep_pace(self) -> None:
        """Count iterations for vLLM's ranks; SGLang's decode as long as who computed prompts last, if any does."""
        for rank in self.ranks:
            rank.before = self.iterations
        ranks = [rank for rank in self.ranks if isinstance(rank, Sglang)]
        owed = max((rank.owed for rank in ranks), default=0) if any(rank.decoding() for rank in ranks) else 0
        for rank in ranks:
            rank.alone, rank.owed = False, owed

    def begin(self, now: float) -> None:
        """Let all ranks begin an iteration, if any has a batch."""
        batches = self.form()
        if not any(batches):
            return
        self.held = sum(rank.kv_held(batch) for rank, batch in zip(self.ranks, batches, strict=True))
        self.works = [rank.execute(batch) for rank, batch in zip(self.ranks, batches, strict=True)]
        law, ranks, shared = self.law, len(self.ranks), self.law.d5_all_ranks
        busiest = max(work.prefill_tokens + work.sequences for work in self.works)
        prompts, requests = (
            sum(getattr(w, name) for w in self.works) for name in ("prefill_tokens", "sequences")
        )
        self.tau = (
            law.d0
            + law.d1 * max(work.kv_tokens for work in self.works)
            + max(
                law.d2 * work.prefill_tokens + law.d3 * work.sequences + law.d6 * work.prefill_pairs
                for work in self.works
            )
            + law.all_ranks * (prompts + requests)
            + law.d4 * math.sqrt(requests)
            + max(
                0.0,
                law.d5 * busiest
                + shared * (prompts + requests)
                - (law.d5 + shared * ranks) * law.knee_tokens,
            )
            + law.experts * (1 - (1 - law.chosen) ** (prompts + requests))
        )
        self.ends_s = now + self.tau

    def end(self, found: Found) -> list[int]:
        """End the iteration, and tell who is done."""
        self.iterations += 1
        found.iterations, found.busy_s = found.iterations + 1, found.busy_s + self.tau
        found.kv_peak = max(found.kv_peak, self.held)
        found.prefill_peak = max(found.prefill_peak, sum(work.prefill_tokens for work in self.works))
        for rank, work in zip(self.ranks, self.works, strict=True):
            for request in work.emitting:
                if math.isnan(found.first_token_s[request.index]):
                    found.first_token_s[request.index] = self.ends_s
            for request in work.leaving:
                rank.resident.remove(request)
                rank.is_answered(request)
                found.finish_s[request.index] = self.ends_s
        done = [request.index for work in self.works for request in work.leaving]
        self.works, self.ends_s = [], math.inf
        return done


def load(rank: Run) -> int:
    return len(rank.queue) + len(rank.resident)


class Door:
    """Who comes when, to which replica and rank."""

    def __init__(self, policy: str, requests: Requests, sites: list[Site], turns_stay: bool) -> None:
        self.policy, self.requests, self.sites, self.turns_stay = policy, requests, sites, turns_stay
        size = requests.arrival_s.size
        self.sent = size if requests.clients is None else min(requests.clients, size)
        times = requests.arrival_s.tolist() if requests.clients is None else [0.0] * self.sent
        self.coming = [(time, i) for i, time in enumerate(times) if not math.isnan(time)]
        self.stays: dict[int, int] = {}  # of a turn to come, the rank of the one before it

    def rank_at(self, site: Site, request: int) -> int:
        if request in self.stays:
            return self.stays[request]
        if self.policy == "sglang":
            site.sent += 1
            return (site.sent - 1) % len(site.ranks)
        weight = 4 if self.policy == "vllm" else 1
        loads = [weight * len(rank.queue) + len(rank.resident) for rank in site.ranks]
        return loads.index(min(loads))

    def hand_out(self, now: float) -> None:
        """Send whoever has come by now."""
        while self.coming and self.coming[0][0] <= now:
            site, (_, request) = min(self.sites, key=Site.load), self.coming.pop(0)
            number = self.rank_at(site, request)
            there = site.ranks[number].all[request]
            there.arrival_s = now
            site.ranks[number].queue.append(there)
            if self.turns_stay and self.requests.turns is not None:
                self.stays[int(self.requests.turns.following[request])] = number

    def bring(self, now: float, done: list[int]) -> None:
        """Let those come whom answers bring."""
        if self.requests.clients is not None:
            upto = min(self.sent + len(done), self.requests.arrival_s.size)
            self.coming += [(now, i) for i in range(self.sent, upto)]
            self.sent = upto
        for request in done if self.requests.turns is not None else []:
            following = int(self.requests.turns.following[request])
            if following >= 0:
                insort(self.coming, (now + float(self.requests.turns.think_s[request]), following))


def step_together(
    policy: str,
    requests: Requests,
    law: Timing,
    replica: Replica,
    ranks: int,
    replicas: int,
    params: Mapping[str, Any],
    *,
    turns_stay: bool = False,
) -> Found:
    """Run requests on replicas of so many ranks; `law` and `replica` are those of a rank."""
    size, balance, strangers = (
        requests.arrival_s.size,
        params.get("balance_iterations", 0),
        replace(requests, turns=None),
    )
    kind = {"vllm": Cached, "sglang": Radix}[policy] if replica.prefix_caching else POLICIES[policy]
    sites = [
        Site([kind(strangers, law, replica, params) for _ in range(ranks)], law, balance)
        for _ in range(replicas)
    ]
    found = Found([math.nan] * size, [math.nan] * size, [0] * size)
    door = Door(policy, requests, sites, turns_stay)

    def begin(now: float) -> None:
        for site in sites:
            if not site.works:
                site.begin(now)

    try:
        while door.coming or any(site.works for site in sites):
            now = min([site.ends_s for site in sites] + [time for time, _ in door.coming[:1]])
            door.hand_out(now)
            done = [request for site in sites if site.ends_s <= now for request in site.end(found)]
            door.bring(now, done)
            begin(now)
            door.hand_out(now)
            begin(now)
    except LivelockError:
        pass
    for rank in (rank for site in sites for rank in site.ranks):
        for request in rank.all:
            found.evictions[request.index] += request.evictions
    if replica.prefix_caching:
        of_ranks = (rank.hits for site in sites for rank in site.ranks)
        found.hit_tokens = [sum(hits) for hits in zip(*of_ranks, strict=True)]
    return found
