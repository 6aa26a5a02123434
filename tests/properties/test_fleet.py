"""Fleets in simulation: one replica is what it was, several are what an obvious model of them does."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from runs import differing
from tiers import examples

from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.fleet import Fleet, Hardware, Routing
from kvplan.model.gaps import Exponential
from kvplan.model.sessions import Reuse
from kvplan.simulation.experiments.load import Arrivals, Load, generate
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.fleet import run as fleet_run
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.state import Request, State

CHAT = RequestClass("chat", 300, (40, 90), (0.5, 0.5), 4.0)
REPLICA = Replica(6_000, block_tokens=16, max_num_seqs=20, max_num_batched_tokens=400)
MODEL = ServingModel((CHAT,), Timing(0.02, 1e-6, 1e-4, 1e-5), REPLICA)
Spans = tuple[tuple[float, float], ...]  # when each replica takes requests
UNCACHED = {"prefix_caching": (0.0,)}


def simulated(
    model: ServingModel,
    load: Load,
    policy: str = "vllm",
    compile: bool = False,
    seed: int = 1,
    open_s: Spans = (),
    **given: float,
) -> Outcome:
    requests = generate(model, load, seed)
    scenario = Scenario(model, Plan(), requests, tuple(c.name for c in model.classes), seed)
    job = Job(Settings(policy, {k: (v,) for k, v in given.items()}), scenario, load.horizon_s, open_s=open_s)
    return job.run(lambda done: True, None, compile)


LOADS = [
    Load(requests=60),
    Load(requests=None, horizon_s=12.0),
    Load(kind=Arrivals.CLOSED, requests=60, concurrency=9),
    Load(kind=Arrivals.SATURATED, requests=40),
]
KNOWN = {"flow": {"budgets": 2.0}}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fleet_of_one_is_a_replica_to_the_last_bit(policy: str) -> None:
    given = KNOWN.get(policy, {})
    for load in LOADS:
        for routing in (Routing.LEAST_REQUESTS, Routing.RANDOM):
            alone = simulated(MODEL, load, policy, **given)
            fleet = replace(MODEL, fleet=Fleet(replicas=1, routing=routing))
            assert not differing(alone, simulated(fleet, load, policy, **given)), load


AGAIN = replace(CHAT, reuse=Reuse(0.9, 0.8, Exponential(3.0)))


def sites(
    monkeypatch: pytest.MonkeyPatch, model: ServingModel, load: Load, **given: Any
) -> tuple[Outcome, Any]:
    """A run, and the replica that each request came to."""
    seen: list[State] = []
    states = fleet_run._states
    with monkeypatch.context() as patch:
        patch.setattr(fleet_run, "_states", lambda *a: seen.extend(states(*a)) or tuple(seen))
        found = simulated(model, load, **given)
    return found, seen[0].request[:, Request.SITE]


def test_turns_of_a_session_stay_together_and_find_more(monkeypatch: pytest.MonkeyPatch) -> None:
    hits = {}
    for routing in (Routing.SESSION, Routing.LEAST_REQUESTS):
        again = replace(AGAIN, rate_rps=8.0)
        model = replace(MODEL, classes=(again,), fleet=Fleet(replicas=4, routing=routing))
        found, site = sites(monkeypatch, model, Load(requests=300))
        following = generate(model, Load(requests=300), 1).turns.following
        brings = np.flatnonzero(following >= 0)
        assert brings.size > 100
        stays = site[brings] == site[following[brings]]
        assert stays.all() if routing is Routing.SESSION else not stays.all()
        hits[routing] = found.found.hit_tokens.sum()
    assert hits[Routing.SESSION] > 1.5 * hits[Routing.LEAST_REQUESTS]


@dataclass(eq=False)
class One:
    """A request where it is."""

    number: int
    prompt: int
    decode: int
    generated: int = 0
    computed: int = 0
    comes_s: float = 0.0  # its KV, to a decode replica
    preempted: int = 0


class Site:
    """A replica that does everything, or one part: vLLM's scheduler, in the words of its rules."""

    def __init__(self, role: str, model: ServingModel) -> None:
        replica = model.replica
        self.role, self.timing, self.block = role, model.timing, replica.block_tokens
        self.free = replica.memory_tokens // self.block - 1
        self.seats, self.budget = replica.max_num_seqs, replica.max_num_batched_tokens
        self.waiting: list[One] = []
        self.running: list[One] = []
        self.inbox: list[One] = []
        self.coming: list[One] = []
        self.sent: list[tuple[float, int]] = []
        self.handed_over = 0  # whose KV has not gone yet
        self.now, self.ends_s, self.link_s = 0.0, math.inf, 0.0
        self.batch: list[tuple[One, int]] = []
        self.open_s, self.last_s = (0.0, math.inf), 0.0

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block)

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.inbox) + len(self.coming) + self.handed_over

    def preempt(self, one: One) -> None:
        self.running.remove(one)
        self.batch = [(r, n) for r, n in self.batch if r is not one]
        self.free += self.blocks(one.computed)
        one.computed, one.preempted = 0, one.preempted + 1
        self.waiting.insert(0, one)

    def begin(self, now: float) -> None:
        """Form a batch."""
        self.now, self.batch, budget, preempted = now, [], self.budget, False
        for end_s, blocks in [x for x in self.sent if x[0] <= now]:
            self.sent.remove((end_s, blocks))
            self.free += blocks
            self.handed_over -= 1
        for one in [x for x in self.coming if x.comes_s <= now]:
            self.coming.remove(one)
            self.waiting.insert(0, one)
        taken: dict[One, int] = {}
        for one in list(self.running):
            if one not in self.running or budget == 0:
                continue
            need = min(one.prompt + one.generated - one.computed, budget)
            blocks = self.blocks(one.computed + need) - self.blocks(one.computed)
            while blocks > self.free:
                last, preempted = self.running[-1], True
                if last in taken:
                    budget += dict(self.batch)[last]
                    self.free += taken.pop(last)
                self.preempt(last)
                if last is one:
                    break
            if one not in self.running:
                break
            self.free -= blocks
            taken[one] = blocks
            self.batch.append((one, need))
            budget -= need
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.seats:
            one = self.waiting[0]
            whole = one.prompt + one.generated
            if one.computed == 0 and self.blocks(whole) > self.free:
                break
            if one.computed:  # fetched, with room for the next token
                self.free += self.blocks(whole) - self.blocks(one.computed)
            need = min(whole - one.computed, budget)
            self.free -= self.blocks(one.computed + need) - self.blocks(one.computed)
            self.waiting.pop(0)
            self.running.append(one)
            self.batch.append((one, need))
            budget -= need
        if self.batch:
            d0, d1, d2, d3 = self.timing.d0, self.timing.d1, self.timing.d2, self.timing.d3
            context = sum(r.computed + n for r, n in self.batch)
            prompts = sum(n for _, n in self.batch if n > 1)
            self.ends_s = now + d0 + d1 * context + d2 * prompts + d3 * len(self.batch)


def obvious(
    model: ServingModel, requests: Any, open_s: Spans = ()
) -> tuple[list[float], list[float], list[int], list[float]]:
    """First tokens, ends and preemptions of requests that go where there are the fewest; and when replicas last ran."""
    fleet = model.fleet
    roles = ["prefill"] * fleet.prefill + ["decode"] * fleet.decode + ["whole"] * fleet.replicas
    hardware = {"prefill": fleet.prefill_on, "decode": fleet.decode_on, "whole": None}
    all_sites = [Site(role, model.on(hardware[role])) for role in roles]
    if open_s:
        all_sites = [Site("whole", model) for _ in open_s]
        for site, span in zip(all_sites, open_s, strict=True):
            site.open_s = span
    size = requests.arrival_s.size
    first_s, finish_s, preempted = [math.nan] * size, [math.nan] * size, [0] * size
    arrivals = list(zip(requests.arrival_s.tolist(), range(size), strict=True))
    handed: list[One] = []
    holders: dict[int, Site] = {}

    def least(role: str, now: float) -> Site:
        there = [s for s in all_sites if s.role == role and s.open_s[0] <= now < s.open_s[1]]
        return min(there, key=lambda s: s.load)

    def fetch(site: Site, now: float) -> None:
        while site.inbox and site.blocks(site.inbox[0].prompt + 1) <= site.free:
            one = site.inbox.pop(0)
            sender = holders[one.number]
            site.free -= site.blocks(one.prompt + 1)
            begins = max(now, site.link_s, sender.link_s)
            one.comes_s = begins + fleet.transfer_s(one.prompt)
            site.link_s = sender.link_s = one.comes_s
            first_s[one.number] = one.comes_s
            sender.sent.append((one.comes_s, sender.blocks(one.prompt)))
            site.coming.append(one)

    while arrivals or any(s.load or s.batch for s in all_sites):
        times = [s.ends_s for s in all_sites if s.batch]
        times += [arrivals[0][0]] if arrivals else []
        times += [one.comes_s for s in all_sites if not s.batch for one in s.coming]
        times += [end_s for s in all_sites if not s.batch for end_s, _ in s.sent]
        now = min(times)
        while arrivals and arrivals[0][0] <= now:
            came_s, i = arrivals.pop(0)
            decode = int(requests.decode_tokens[i])
            least("prefill" if fleet.is_split else "whole", came_s).waiting.append(
                One(i, int(requests.input_tokens[i]), decode)
            )
        for site in [s for s in all_sites if s.batch and s.ends_s <= now]:
            for one, need in site.batch:
                one.computed += need
                if one.computed < one.prompt + one.generated:
                    continue
                one.generated += 1
                if math.isnan(first_s[one.number]) and (site.role == "whole" or one.decode == 1):
                    first_s[one.number] = now
                if one.generated == one.decode or site.role == "prefill":
                    site.running.remove(one)
                    preempted[one.number] += one.preempted
                    if one.generated == one.decode:
                        site.free += site.blocks(one.computed)
                        finish_s[one.number] = now
                    else:
                        one.preempted, holders[one.number] = 0, site
                        site.handed_over += 1
                        handed.append(one)
            site.batch, site.ends_s, site.last_s = [], math.inf, now
        for one in sorted(handed, key=lambda one: one.number):
            least("decode", now).inbox.append(one)
        handed.clear()
        for site in all_sites:
            if not site.batch and site.role != "decode":
                site.begin(now)
        for site in all_sites:
            if site.role == "decode" and not site.batch:
                arrived = [x for x in site.coming if x.comes_s <= now]
                for one in arrived:
                    site.coming.remove(one)
                    site.waiting.insert(0, one)
                fetch(site, now)
                site.begin(now)
        for site in all_sites:  # whose KV has gone while this instant lasted
            if site.role == "prefill" and not site.batch and any(end_s <= now for end_s, _ in site.sent):
                site.begin(now)
    return first_s, finish_s, preempted, [site.last_s for site in all_sites]


FAST = Hardware(
    Timing(0.011, 3e-6, 4e-5, 2e-5), replace(REPLICA, memory_tokens=3200, max_num_batched_tokens=700)
)
SMALL = Hardware(Timing(0.029, 1e-6, 2e-4), replace(REPLICA, memory_tokens=1600, max_num_seqs=7))


@examples(12)
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([2.0, 4.0, 7.0]),
    st.sampled_from([None, 2e6, 2e5]),
    st.sampled_from([1200, 2400, 6000]),
    st.sampled_from([(None, None), (FAST, None), (None, FAST), (FAST, SMALL), (SMALL, FAST)]),
)
@example(1, 2, 2, 7.0, 2e5, 6000, (FAST, SMALL))
@example(2, 2, 3, 7.0, None, 2400, (SMALL, FAST))
def test_fleets_do_what_an_obvious_model_of_them_does(
    seed: int,
    prefill: int,
    decode: int,
    rate: float,
    bandwidth: float | None,
    memory: int,
    sides: tuple[Hardware | None, Hardware | None],
) -> None:
    fleet = Fleet(
        prefill,
        decode,
        transfer_bytes_per_s=bandwidth,
        bytes_per_token=100.0,
        prefill_on=sides[0],
        decode_on=sides[1],
    )
    if decode == 0:
        fleet = Fleet(replicas=prefill)
    kinds = (
        replace(CHAT, rate_rps=rate * fleet.size / 2),
        RequestClass("short", 90, (1, 7), (0.5, 0.5), rate * fleet.size / 2),
    )
    model = replace(MODEL, classes=kinds, fleet=fleet, replica=replace(REPLICA, memory_tokens=memory))
    requests = generate(model, Load(requests=60), seed)
    scenario = Scenario(model, Plan(), requests, ("chat", "short"), seed)
    found = Job(Settings("vllm", UNCACHED), scenario).run(lambda done: True, None, False)
    assert found.ending is Ending.FINISHED
    first_s, finish_s, preempted, last_s = obvious(model, requests)
    np.testing.assert_allclose(found.first_token_s, first_s, rtol=1e-9)
    np.testing.assert_allclose(found.finish_s, finish_s, rtol=1e-9)
    assert found.evictions.tolist() == preempted
    if not fleet.is_split:  # whose clocks go on to the ends of transfers
        np.testing.assert_allclose(found.replica_end_s, last_s, rtol=1e-9)
    assert found.kv_peak <= max([memory, *(one.replica.memory_tokens for one in sides if one is not None)])


SPANS = st.lists(
    st.tuples(st.floats(0.1, 8.0), st.floats(0.1, 6.0)).map(lambda one: (one[0], one[0] + one[1])), max_size=4
).map(lambda some: ((0.0, math.inf), *some))


@examples(8)
@given(st.integers(0, 10**6), SPANS, st.sampled_from([2.0, 6.0, 12.0]), st.sampled_from([1200, 6000]))
def test_replicas_that_come_and_go_do_what_an_obvious_model_of_them_does(
    seed: int, spans: Spans, rate: float, memory: int
) -> None:
    model = replace(
        MODEL,
        classes=(replace(CHAT, rate_rps=rate),),
        fleet=Fleet(replicas=9),
        replica=replace(REPLICA, memory_tokens=memory),
    )
    requests = generate(model, Load(requests=60), seed)
    scenario = Scenario(model, Plan(), requests, ("chat",), seed)
    job = Job(Settings("vllm", UNCACHED), scenario, open_s=spans)
    found = job.run(lambda done: True, None, False)
    assert found.ending is Ending.FINISHED, "nobody is lost"
    first_s, finish_s, preempted, last_s = obvious(model, requests, spans)
    np.testing.assert_allclose(found.first_token_s, first_s, rtol=1e-9)
    np.testing.assert_allclose(found.finish_s, finish_s, rtol=1e-9)
    assert found.evictions.tolist() == preempted
    np.testing.assert_allclose(found.replica_end_s, last_s, rtol=1e-9)


@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(replicas=5),
        Fleet(replicas=3, routing=Routing.LEAST_KV),
        Fleet(2, 3, transfer_bytes_per_s=1e6, bytes_per_token=100.0),
        Fleet(1, 2, transfer_bytes_per_s=1e6, bytes_per_token=100.0, routing=Routing.ROUND_ROBIN),
        Fleet(2, 3, prefill_on=FAST, decode_on=SMALL),
    ],
    ids=["least requests", "least KV", "split", "split, in turn", "split, unlike sides"],
)
def test_compiled_fleets_leave_the_same_bytes(fleet: Fleet) -> None:
    for classes, memory in (
        ((replace(CHAT, rate_rps=12.0),), 2400),
        ((replace(AGAIN, rate_rps=10.0),), 6000),
    ):
        model = replace(MODEL, classes=classes, fleet=fleet, replica=replace(REPLICA, memory_tokens=memory))
        come_and_go = ((0.0, math.inf), (2.0, 8.0), (5.0, math.inf)) if not fleet.is_split else ()
        for open_s in {(), come_and_go}:
            plain = simulated(model, Load(requests=150), open_s=open_s)
            assert plain.ending is Ending.FINISHED
            assert not differing(plain, simulated(model, Load(requests=150), compile=True, open_s=open_s))


def test_prompts_that_wait_for_a_link_count_where_the_router_looks() -> None:
    """Else the first replica, whose prompts are always done first, would have all of them wait for its one link."""
    model = replace(
        MODEL, classes=(replace(CHAT, rate_rps=2.0),), replica=replace(REPLICA, memory_tokens=10**5)
    )
    links = Fleet(4, 4, transfer_bytes_per_s=3e5, bytes_per_token=1000)  # a prompt in a second
    least, random = (
        float(
            np.mean(
                simulated(replace(model, fleet=replace(links, routing=routing)), Load(requests=300)).ttft_s
            )
        )
        for routing in (Routing.LEAST_REQUESTS, Routing.RANDOM)
    )
    assert 1 < least < random
