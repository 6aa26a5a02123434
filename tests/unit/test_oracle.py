"""The oracle against the slow simulator on small cases, request by request, and its own ways of counting."""

import math
from dataclasses import replace

import numpy as np
import pytest
import slow_simulator
from oracle import System, live, replay, truth

from kvplan.engine import Admission
from kvplan.model import ArrivalProcess, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.requests import Requests

LAW = Timing(0.01, 1e-6, 2e-5, 1e-4, 3e-4, 4e-5, 40)


def model(prefill: Prefill, rng: np.random.Generator) -> ServingModel:
    """Some traffic on a small replica, on which it fits."""
    block = int(rng.choice([1, 4, 16]))
    classes = tuple(
        RequestClass(
            f"c{i}",
            int(rng.integers(0 if prefill is not Prefill.FUSED else 1, 60)),
            tuple(sorted({int(d) for d in rng.integers(1, 50, size=3)})),
            (1.0,) * 3,
            1.0,
        )
        for i in range(int(rng.integers(1, 4)))
    )
    classes = tuple(replace(c, decode_weights=(1.0,) * len(c.decode_tokens)) for c in classes)
    longest = max(c.max_tokens for c in classes)
    memory = int((longest + 2 * block) * rng.uniform(1, 4)) + 2 * block
    seats = int(rng.integers(3, 20)) if rng.random() < 0.5 else None
    budget = int(rng.integers(20, 80)) if prefill is Prefill.FUSED and rng.random() < 0.7 else None
    if budget is not None and seats is None:
        seats = 20
    replica = Replica(memory, block, prefill, seats, budget, prefix_caching=False)
    return ServingModel(classes, LAW, replica)


@pytest.mark.parametrize("prefill", list(Prefill))
def test_requests_fare_as_in_the_slow_simulator(prefill: Prefill) -> None:
    """Times of the first and the last token, evictions of each, iterations, tokens lost."""
    evictions = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        some = model(prefill, rng)
        watermark = float(rng.choice([0.0, 0.1])) if prefill is Prefill.FUSED else 0.0
        system = System.of(some, watermark=watermark)
        row = rng.choice(system.share.size, 60, p=system.share)
        arrivals = np.cumsum(rng.exponential(rng.choice([0.0, 0.02, 0.2]), 60))
        inputs, decodes = some.mix.input_tokens[row], some.mix.decode_tokens[row]
        ended, first, finish, evicted = replay(system, arrivals, system.tokens[row], system.iterations[row])
        requests = Requests(arrivals, inputs, np.asarray(decodes), np.zeros(60, np.int64))
        policy = "vllm" if prefill is Prefill.FUSED else "greedy"
        settings = {"watermark": watermark} if policy == "vllm" else {}
        expected = slow_simulator.simulate(policy, requests, LAW, some.replica, settings)
        assert evicted.tolist() == expected.evictions, seed
        assert (ended.iterations, ended.lost_tokens) == (expected.iterations, expected.recomputed_tokens)
        np.testing.assert_allclose(first, np.array(expected.first_token_s, float), rtol=1e-9)
        np.testing.assert_allclose(finish, np.array(expected.finish_s, float), rtol=1e-9)
        evictions += sum(expected.evictions)
    assert evictions > 1000


class FirstChunk(slow_simulator.Vllm):
    """Only what is granted at once has to fit."""

    def admit_from_the_queue(self) -> None:
        seats = self.replica.max_num_seqs or math.inf
        while self.queue and self.budget > 0 and len(self.resident) < seats:
            request = self.queue[0]
            chunk = int(min(request.input_tokens + request.generated, self.budget))
            blocks = math.ceil(chunk / self.block)
            if blocks > self.free_blocks():
                return
            self.resident.append(self.queue.pop(0))
            request.blocks = blocks
            self.grant(request, chunk)


def test_requests_fare_as_in_the_slow_simulator_where_the_first_chunk_is_admitted() -> None:
    evictions, differ = 0, 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        some = model(Prefill.FUSED, rng)
        system = System.of(some, admission=Admission.FIRST_CHUNK)
        row = rng.choice(system.share.size, 40, p=system.share)
        arrivals = np.cumsum(rng.exponential(0.01, 40))
        ended, _, finish, evicted = replay(system, arrivals, system.tokens[row], system.iterations[row])
        inputs, decodes = some.mix.input_tokens[row], np.asarray(some.mix.decode_tokens)[row]
        requests = Requests(arrivals, inputs, decodes, np.zeros(40, np.int64))
        expected = FirstChunk(requests, LAW, some.replica, {}).run(None)
        assert evicted.tolist() == expected.evictions, seed
        assert (ended.iterations, ended.lost_tokens) == (expected.iterations, expected.recomputed_tokens)
        np.testing.assert_allclose(finish, np.array(expected.finish_s, float), rtol=1e-9)
        evictions += ended.evictions
        whole = replay(System.of(some), arrivals, system.tokens[row], system.iterations[row])[0]
        differ += whole.evictions != ended.evictions
    assert evictions > 500
    assert differ > 10


def test_one_length_keeps_the_worst_cycle_of_the_papers() -> None:
    """s = 2, d = 3: M/(d(s + d)) an iteration (SIC), from every start."""
    some = ServingModel(
        (RequestClass("a", 2, (3,), (1.0,), 1.0),), Timing(1.0), Replica(6000, 1, Prefill.DISAGGREGATED)
    )
    assert truth(System.of(some)).rate_rps == pytest.approx(400, rel=1e-9)


def test_a_replica_with_one_seat_is_a_queue_with_one_server() -> None:
    """Mean waits of M/D/1, and of deterministic arrivals none."""
    some = ServingModel(
        (RequestClass("a", 3, (10,), (1.0,), 1.0),), Timing(0.01), Replica(1000, 1, max_num_seqs=1)
    )
    load, service = 0.6, 0.1
    wait = load * service / (2 * (1 - load))
    seen = live(System.of(some), rate_rps=load / service, requests=300_000)
    assert seen.figures["ttft_s.mean"] == pytest.approx(wait + 0.01, rel=0.03)
    assert seen.figures["tpot_s.p99"] == pytest.approx(0.01)
    regular = replace(some, arrivals=ArrivalProcess(cv=0.0))
    assert live(System.of(regular), rate_rps=load / service).figures["ttft_s.p99"] == pytest.approx(0.01)
