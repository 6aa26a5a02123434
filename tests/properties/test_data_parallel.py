"""Data-parallel ranks that step together, against an obvious model of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from runs import counts, differing
from slow_ranks import Found, step_together
from tiers import at_night, is_night

from kvplan.engine import Engine, EngineName
from kvplan.errors import UsageError
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.drafts import Drafts
from kvplan.model.fleet import Fleet
from kvplan.model.gaps import Exponential, Quantiles
from kvplan.model.lengths import Lengths
from kvplan.model.parallelism import Parallelism
from kvplan.model.replica import Offload
from kvplan.model.sessions import Reuse, Sessions
from kvplan.options import Arrivals
from kvplan.simulation import engine, initial_state
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.fleet import run as fleet_run
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests, with_drafts
from kvplan.simulation.sessions import stream_of_sessions
from kvplan.simulation.state import GAPS_IN_E, SHORTEST_GAP_S, Fixed

POLICIES = ("vllm", "sglang", "trtllm-no-evict", "trtllm-max-utilization", "sarathi", "vllm-v0")
HORIZON_S = 3.0


def of_ranks(rank: Replica, ranks: int) -> Replica:
    """All ranks together."""
    return replace(
        rank,
        memory_tokens=ranks * rank.memory_tokens,
        max_num_seqs=rank.max_num_seqs and ranks * rank.max_num_seqs,
        max_num_batched_tokens=rank.max_num_batched_tokens and ranks * rank.max_num_batched_tokens,
        parallelism=Parallelism(data=ranks),
    )


def simulated(
    model: ServingModel, requests: Requests, policy: str, given: dict[str, Any], compile: bool
) -> Outcome:
    names = tuple(c.name for c in model.classes)
    settings = Settings(policy, {key: (float(value),) for key, value in given.items()})
    horizon_s = HORIZON_S if requests.more_later else None
    return Job(settings, Scenario(model, Plan(), requests, names), horizon_s).run(None, None, compile)


def check(seed: int, policies: tuple[str, ...] = POLICIES) -> str:
    """Compare one random case; returns which policy it has."""
    rng = np.random.default_rng(seed)
    policy, ranks, replicas = policies[seed % len(policies)], int(rng.integers(1, 9)), int(rng.integers(1, 4))
    lengths = tuple(np.unique(rng.integers(1, 40, size=3)).tolist())
    kinds = tuple(
        RequestClass(name, int(rng.integers(0, 90)), lengths, (1.0,) * len(lengths), 1.0) for name in "ab"
    )
    block = int(rng.choice([1, 4, 16]))
    longest = max(c.input_tokens for c in kinds) + lengths[-1]
    rank = Replica(
        (-(-longest // block) + 2) * block + int(rng.choice([0, 40, 150, 600])),
        block_tokens=block,
        max_num_seqs=int(rng.integers(1, 9)) if rng.random() < 0.7 else None,
        max_num_batched_tokens=int(rng.integers(16, 120)) if rng.random() < 0.7 else None,
        prefix_caching=False,
    )
    d0, d1, d2, d3, each, d4, d5, d6, shared = rng.random(9) * [
        *(0.02, 2e-5, 1e-3, 1e-3, 2e-4),
        *(1e-3, 1e-4, 1e-6, 1e-4),
    ]
    if rng.random() < 0.5:
        d4 = d5 = d6 = shared = 0.0
    knee, chosen = float(rng.integers(0, 40)), 0.03 * float(rng.random() < 0.5)
    experts: dict[str, Any] = {"experts": 0.01, "chosen": chosen}
    beyond = {"d5": d5, "knee_tokens": knee, "d5_all_ranks": shared}
    law = Timing(d0 + 1e-3, d1, d2, d3, d4, d6=d6, all_ranks=each, **experts, **beyond)
    fleet = None if replicas == 1 and rng.random() < 0.5 else Fleet(replicas=replicas)
    rate = rng.choice([2.0, 8.0, 30.0]) * ranks * replicas
    model = ServingModel(
        tuple(replace(c, rate_rps=rate / 2) for c in kinds),
        law.of_ranks(ranks),
        of_ranks(rank, ranks),
        fleet=fleet,
    )
    load = Load(requests=int(rng.integers(1, 60)))
    if replicas == 1 and rng.random() < 0.5:
        load = load._replace(kind=Arrivals.CLOSED, concurrency=int(rng.integers(1, 30)))
    requests = generate(model, load, seed)
    given: dict[str, Any] = {}
    known: dict[str, Any] = {"max_new": (lengths[-1],) * 2, "conservativeness": 1.0}
    if policy.startswith("trtllm"):
        given["balance_iterations"] = known["balance_iterations"] = int(rng.choice([0, 1, 3, 20]))
    if ranks == 1:
        known["balance_iterations"] = 0
    if policy in ("vllm", "sglang"):
        known["prefill_interval"] = int(rng.choice([1, 2, 5]))
        served = Engine(EngineName(policy), prefill_interval=known["prefill_interval"])
        model = replace(model, engine=served)
    found = simulated(model, requests, policy, given, compile=False)
    slow = step_together(policy, requests, law, rank, ranks, replicas, known)
    agree(found, slow)
    return policy


def agree(found: Outcome, slow: Found) -> None:
    near = {"rel": 1e-9, "abs": 1e-9, "nan_ok": True}
    assert found.first_token_s.tolist() == pytest.approx(slow.first_token_s, **near)
    assert found.finish_s.tolist() == pytest.approx(slow.finish_s, **near)
    assert found.evictions.tolist() == slow.evictions
    assert (found.iterations, found.prefill_peak) == (slow.iterations, slow.prefill_peak)
    assert found.kv_peak == slow.kv_peak
    assert found.busy_s == pytest.approx(slow.busy_s, **near)


def check_sessions(seed: int) -> bool:
    """Compare a random case of sessions whose ranks have prefix caches; tells whether anything was found there."""
    rng = np.random.default_rng([seed, 1])
    policy, ranks, replicas = ("vllm", "sglang")[seed % 2], int(rng.integers(2, 9)), int(rng.integers(1, 4))
    some, block = Lengths.uniform(1, 12), int(rng.choice([1, 4, 16]))
    turns, shared = Lengths.uniform(1, int(rng.integers(2, 7))), int(rng.choice([0, 20, 48]))
    think = Exponential(0.3) if replicas > 1 or rng.random() < 0.5 else Quantiles((0.0, 0.2))
    talk = Sessions(Lengths.uniform(1, 60), some, some, turns, think, shared)
    rank = Replica(
        (-(-talk.longest // block) + 2) * block + int(rng.choice([0, 100, 600])),
        block_tokens=block,
        max_num_seqs=int(rng.integers(1, 9)) if rng.random() < 0.7 else None,
        max_num_batched_tokens=int(rng.integers(16, 120)) if rng.random() < 0.7 else None,
    )
    law = Timing(*(rng.random(4) * [0.02, 2e-5, 1e-3, 1e-3] + [1e-3, 0, 0, 0]), all_ranks=1e-4)
    stay = bool(rng.random() < 0.4)
    whole = replace(of_ranks(rank, ranks), turns_stay=stay)
    answers = RequestClass("talk", 30, (12,), (1.0,), 1.0)
    model = ServingModel((answers,), law.of_ranks(ranks), whole, fleet=Fleet(replicas=replicas))
    if replicas == 1 and rng.random() < 0.5:
        model = replace(model, fleet=None)
    rate = rng.choice([1.0, 6.0]) * ranks * replicas
    requests = stream_of_sessions([talk], [rate], rng, requests=int(rng.integers(2, 100)), horizon_s=None)
    given = {"prefill_interval": int(rng.choice([1, 3]))} if policy == "sglang" else {}
    found = simulated(model, requests, policy, given, compile=False)
    known = {"max_new": (12,), "conservativeness": 1.0, **given}
    slow = step_together(policy, requests, law, rank, ranks, replicas, known, turns_stay=stay)
    agree(found, slow)
    assert found.found is not None
    assert found.found.hit_tokens.tolist() == slow.hit_tokens
    return any(slow.hit_tokens)


def test_ranks_do_what_an_obvious_model_of_them_does() -> None:
    for seed in range(120 if is_night() else 6):
        check(seed)
    assert sum(check_sessions(seed) for seed in range(200 if is_night() else 10)) > 5


CHAT = RequestClass("chat", 300, (40, 90), (0.5, 0.5), 24.0)
RANK = Replica(2_000, block_tokens=16, max_num_seqs=8, max_num_batched_tokens=400)
MODEL = ServingModel((CHAT,), Timing(0.02, 1e-6, 1e-4, 1e-5, all_ranks=1e-5).of_ranks(4), of_ranks(RANK, 4))
AGAIN = replace(
    MODEL,
    classes=(replace(CHAT, reuse=Reuse(0.9, 0.8, Exponential(3.0))),),
    replica=replace(MODEL.replica, turns_stay=True),
)
DRAFTS = Drafts(2, (0.6, 0.4), 1e-3, 1e-5)
LOADS = (
    Load(requests=60),
    Load(requests=None, horizon_s=HORIZON_S),
    Load(Arrivals.CLOSED, 60, concurrency=19),
)


def test_an_engine_alone_is_a_rank_of_one_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = initial_state._fixed

    def ranked(*given: Any) -> Any:
        made = fixed(*given)
        made[Fixed.PARALLEL], made[Fixed.COASTS] = 1, 0
        return made

    model = replace(MODEL, replica=RANK, classes=(replace(CHAT, rate_rps=6.0),))
    again = replace(model, classes=(replace(CHAT, rate_rps=6.0, reuse=Reuse(0.9, 0.8, Exponential(3.0))),))
    cases = [(served, load) for served in (model, again) for load in LOADS]
    # at a horizon an engine alone has counted the drafts of the iteration that is cut off
    cases += [(replace(model, drafts=DRAFTS), load) for load in (LOADS[0], LOADS[2])]
    for served, load in cases:
        for fleet in (None, Fleet(replicas=1)):
            served = replace(served, fleet=fleet)
            requests = generate(served, load, 1)
            alone = simulated(served, requests, "vllm", {}, False)
            with monkeypatch.context() as patch:
                patch.setattr(initial_state, "_fixed", ranked)
                assert not differing(alone, simulated(served, requests, "vllm", {}, False)), (load, fleet)


@pytest.mark.parametrize("policy", [*at_night("vllm", "sglang", "trtllm-max-utilization"), "trtllm-no-evict"])
def test_compiled_ranks_leave_the_same_bytes_alone_and_in_fleets(policy: str) -> None:
    given = {"balance_iterations": 5} if policy.startswith("trtllm") else {}
    more = [(LOADS[1], AGAIN)]
    if policy == "vllm" and is_night():
        more.append((LOADS[1], replace(MODEL, drafts=DRAFTS.of_ranks(4))))
    for fleet in (None, Fleet(replicas=3)):
        for load, served in [*((load, MODEL) for load in LOADS), *more]:
            model = replace(served, fleet=fleet)
            requests = generate(model, load, 1)
            one, other = (simulated(model, requests, policy, given, compile) for compile in (False, True))
            assert np.isfinite(one.finish_s).any()
            assert not differing(one, other)


def test_requests_whose_rows_are_refilled_go_where_they_would(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(requests=300)
    for fleet in (None, Fleet(replicas=2)):
        model = replace(MODEL, fleet=fleet)
        requests = generate(model, load, 1)
        whole = simulated(model, requests, "vllm", {}, False)
        with monkeypatch.context() as patch:
            for module, name in ((engine, "ROWS"), (fleet_run, "_ROWS")):
                patch.setattr(module, name, 40)
            assert not differing(whole, simulated(model, requests, "vllm", {}, False))


def test_the_busiest_rank_of_eight_has_three_quarters_of_the_prompt_tokens() -> None:
    """183 of 238 in an iteration of 256 clients, 1k in and out as InferenceMAX draws them, 10 requests a client."""
    lengths = tuple(range(820, 1025))
    rank = Replica(10**7, max_num_batched_tokens=8192, prefix_caching=False)
    answers = RequestClass("1k", 1024, lengths, (1.0,) * len(lengths), 1.0)
    law = Timing(1.0, d2=1e-6)  # a second, and a microsecond for a prompt token of the busiest
    model = ServingModel((answers,), law.of_ranks(8), of_ranks(rank, 8))
    requests = generate(model, Load(Arrivals.CLOSED, 2560, concurrency=256), 1)
    prompts = np.random.default_rng(1).choice(lengths, size=2560)
    found = simulated(model, replace(requests, input_tokens=prompts), "vllm", {}, True)
    busiest = (found.busy_s - found.iterations) / 1e-6 / found.iterations
    assert busiest == pytest.approx(183, rel=0.06)
    assert prompts.sum() / found.iterations == pytest.approx(238, rel=0.06)


def test_drafts_of_ranks_by_hand() -> None:
    """Each decode has a draft that is accepted; the iteration of a prompt has none."""
    drafts, answers = Drafts(1, (1.0,), verify_s=0.2).of_ranks(2), counts(5, 3, 1)
    law = drafts.slowed(Timing(1.0, d2=0.01, d3=0.1).of_ranks(2))
    model = ServingModel((CHAT,), law, of_ranks(Replica(1_000), 2), drafts=drafts)
    arrive = np.array([0.0, 0.0, 1.05])  # the third finds a request at either rank, and goes to the first
    given = Requests(arrive, counts(10, 10, 10), answers, counts(0, 0, 0))
    found = simulated(model, with_drafts(given, drafts, np.random.default_rng()), "vllm", {}, False)
    # 1 + 0.1 + 0.1; the first rank decodes, verifies and computes a prompt, 1 + 0.2 + 0.2 + 0.1; and 1 + 0.1 + 0.2
    assert found.finish_s.tolist() == pytest.approx([4.0, 2.7, 2.7], rel=1e-12)
    assert found.computed_tokens == 3 * (10 + 1) + 2 * 2 + 2


def test_ranks_are_refused_beside_what_they_are_not_simulated_with() -> None:
    requests = generate(MODEL, LOADS[0], 1)
    with pytest.raises(UsageError, match="policy greedy: not modelled beside data-parallel ranks; there are"):
        simulated(MODEL, requests, "greedy", {}, False)
    offload = replace(MODEL, replica=replace(MODEL.replica, offload=Offload(10_000, 1e-6)))
    with pytest.raises(UsageError, match="data-parallel ranks are not simulated beside a host tier"):
        simulated(offload, requests, "vllm", {}, False)
    apart = replace(MODEL, fleet=Fleet(1, 1))
    with pytest.raises(
        UsageError, match="prefill and decode apart are not modelled beside data-parallel ranks"
    ):
        simulated(apart, requests, "vllm", {}, False)


@pytest.mark.parametrize(
    ("interval", "seats", "expected"),
    [(1, 8, [1, 2, 3, 3, 3, 3]), (3, 8, [1, 2, 4, 4, 4, 4]), (3, 2, [1, 2, 4, 4, 9, 10])],
)
def test_prompts_wait_for_the_iteration_of_the_interval(
    interval: int, seats: int, expected: list[float]
) -> None:
    """Two ranks, iterations of a second. The first two requests find a rank each where nobody decodes: none waits.

    The others come at 1.5 s, two to each rank: they begin in iteration 2, of an interval of three in iteration 3. Where
    the second finds no seat then, it begins once one is free, in iterations 8 and 9: nobody defers what has waited.
    """
    requests = Requests(
        np.array([0.0, 0.5, 1.5, 1.5, 1.5, 1.5]), counts(*[2] * 6), counts(*[8] * 6), counts(*[0] * 6)
    )
    rank = Replica(1_000, 16, max_num_seqs=seats, max_num_batched_tokens=64, prefix_caching=False)
    one = RequestClass("a", 2, (8,), (1.0,), 1.0)
    model = ServingModel((one,), Timing(1.0), of_ranks(rank, 2), engine=Engine(prefill_interval=interval))
    for compile in (False, True):
        found = simulated(model, requests, "vllm", {}, compile)
        assert found.first_token_s.tolist() == expected


def test_the_median_gap_of_eight_ranks_falls_as_it_was_measured() -> None:
    """DeepSeek-R1 on eight ranks, 24 requests/s of 1,000 and 200 tokens: 275 ms without, 32 ms at an interval of 2.

    So vLLM's pull request 44558 measured. The law was looked for until the median falls like that; without an interval
    most iterations have a prompt of some rank, and with one every other has none.
    """
    rank = Replica(600_000, 16, max_num_seqs=256, max_num_batched_tokens=8192, prefix_caching=False)
    one = RequestClass("a", 1_000, (200,), (1.0,), 24.0)
    law = Timing(0.03, d2=2e-4).of_ranks(8)
    median_s = []
    for interval in (1, 2):
        model = ServingModel((one,), law, of_ranks(rank, 8), engine=Engine(prefill_interval=interval))
        found = simulated(model, generate(model, Load(requests=1_500), 1), "vllm", {}, True)
        shares = np.cumsum(found.gap_histogram) / found.gap_histogram.sum()
        median_s.append(SHORTEST_GAP_S * np.exp(np.searchsorted(shares, 0.5) / GAPS_IN_E))
    assert median_s == pytest.approx([0.275, 0.032], rel=0.25)


@pytest.mark.parametrize("ranks", [1, 2])
def test_decodes_follow_prompts_in_sglang(ranks: int) -> None:
    """Iterations of a second, and an interval of three: after one with a prompt come two without, of any rank.

    Alone, the second request comes while the first decodes, after a prompt at 0 s: it begins at 3 s. Where only prompts
    are left to compute, one goes on in every iteration: the third comes when nobody decodes, in parts of 64 tokens.
    """
    requests = Requests(np.array([0.0, 0.5, 20.0]), counts(2, 2, 192), counts(8, 8, 1), counts(0, 0, 0))
    rank = Replica(1_000, 16, max_num_batched_tokens=64, prefix_caching=False)
    one = RequestClass("a", 2, (8,), (1.0,), 1.0)
    served = Engine(EngineName.SGLANG, prefill_interval=3)
    model = ServingModel((one,), Timing(1.0), of_ranks(rank, ranks), engine=served)
    for compile in (False, True):
        found = simulated(model, requests, "sglang", {}, compile)
        assert found.first_token_s.tolist() == [1, 4, 23]
