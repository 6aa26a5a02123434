"""Speculative decoding: the renewal of accepted tokens against draws, published numbers, and the verdicts."""

from dataclasses import replace

import numpy as np
import pytest
import small_runs
from every import every
from hypothesis import given
from hypothesis import strategies as st
from small_runs import Case, bytes_of
from tiers import examples

from kvplan.analysis.equilibrium import equilibrium, per_request, sustainable_rate
from kvplan.analysis.speculative import Pays, break_even, speculative, with_drafts
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.drafts import Drafts, stays
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.simulation.experiments import options, study
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.requests import Requests
from kvplan.simulation.requests import with_drafts as with_what_they_emit

LAW = Timing(8e-3, d1=4e-8, d2=25e-6, d3=15e-6)


def accepted(chance: float, tokens: int) -> tuple[float, ...]:
    return tuple(chance**i for i in range(1, tokens + 1))


def drawn(drafts: Drafts, decode: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Iterations of requests, and the tokens that they had emitted before each of these, summed."""
    rng = np.random.default_rng(1)
    stages, total = np.ones(count), np.zeros(count)
    emitted = np.ones(count)
    while (running := emitted < decode).any():
        stages += running
        total += np.where(running, emitted, 0)
        chances = rng.random(count)
        step = 1 + sum((chances < r).astype(int) for r in drafts.accepted[: drafts.tokens])
        emitted += np.where(running, step, 0)
    return stages, total


@given(st.integers(1, 6), st.floats(0.1, 0.95), st.integers(2, 300))
@examples(10)
def test_stays_are_those_of_requests_that_are_drawn(tokens: int, chance: float, decode: int) -> None:
    drafts = Drafts(tokens, accepted(chance, tokens))
    law = stays(drafts, (decode,), (1.0,), np.arange(float(decode))[None])
    stages, total = drawn(drafts, decode, 40_000)
    mean = float(law.share @ law.stages)
    assert mean == pytest.approx(stages.mean(), rel=0.003, abs=0.02)
    variance = float(law.share @ (law.stages - mean) ** 2)
    assert variance == pytest.approx(stages.var(), rel=0.06, abs=0.02)
    alive = [float(law.share[law.stages > k].sum()) for k in range(int(law.stages.max()))]
    assert float(np.dot(alive, law.means[0])) == pytest.approx(total.mean(), rel=0.005, abs=0.2)


def test_lengths_share_one_process() -> None:
    """Weights of a mix are those of its lengths alone, by their shares; requests emit as many tokens."""
    drafts, lengths, parts = Drafts(3, accepted(0.7, 3)), (1, 2, 9, 30), (0.1, 0.2, 0.3, 0.4)

    def law(lengths: tuple[int, ...], weights: tuple[float, ...]) -> tuple[np.ndarray, float]:
        one = RequestClass("a", 50, lengths, weights, 1.0)
        mix = ServingModel((one,), LAW, Replica(10**6, 16), drafts=drafts).mix
        found = np.zeros(30)
        found[: mix.stages.max()] = mix.held.survival(mix.share)
        return found, mix.mean(mix.decode_tokens)

    together, tokens = law(lengths, parts)
    apart = [law((d,), (1.0,)) for d in lengths]
    expected = sum(p * found for p, (found, _) in zip(parts, apart, strict=True))
    assert together == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert tokens == pytest.approx(0.1 * 1 + 0.2 * 2 + 0.3 * 9 + 0.4 * 30, rel=1e-12)


def example(input_tokens: int = 1000, memory: int = 120_000) -> ServingModel:
    """Theory §11: of the drafts 0.7, 0.49 and 0.343 are accepted."""
    drafts = Drafts(3, accepted(0.7, 3), draft_s=0.9e-3, verify_s=8e-6)
    one = RequestClass("a", input_tokens, (200,), (1.0,), 15.0)
    return ServingModel((one,), drafts.slowed(LAW), Replica(memory), drafts=drafts)


def test_the_published_example() -> None:
    model = example()
    cost, found = per_request(model), speculative(model)
    assert found.tokens_per_iteration == pytest.approx(2.533)
    assert cost.iterations == pytest.approx(79.985, abs=5e-4)
    assert (cost.held, cost.read) == (pytest.approx(88_395.6, abs=0.05), pytest.approx(87_921.7, abs=0.05))
    assert sustainable_rate(with_drafts(model, 0))[1] == pytest.approx(19.426, abs=5e-4)
    assert sustainable_rate(model)[1] == pytest.approx(25.320, abs=5e-4)


def test_no_drafts_are_those_of_a_profile_without_any() -> None:
    """A state takes a block more for each draft: 4 of 7 with three drafts, 1 of 4 without."""
    layers = (Layers(Attention.STATE, 3, 100_000), Layers(Attention.FULL, 3, 4096))

    def rate(states: int, drafts: Drafts | None, law: Timing) -> float:
        replica = Replica(4000 * 1024, 1024, layout=KvLayout(layers, 1024, states))
        return sustainable_rate(replace(example(), timing=law, replica=replica, drafts=drafts))[1]

    drafted = example()
    with_states = replace(drafted, replica=Replica(4000 * 1024, 1024, layout=KvLayout(layers, 1024, 4)))
    found = speculative(with_states)
    expected = rate(4, drafted.drafts, drafted.timing) / rate(1, None, LAW)
    assert found.speed_up == pytest.approx(expected, rel=1e-12)


@every(
    ("chance", "tokens", "draft_s", "verify_s", "law", "pays"),
    [
        (0.5, 5, 0.9e-3, 25e-6, LAW, Pays.BELOW),  # theory §11: 45.3
        (0.7, 3, 0.9e-3, 25e-6, LAW, Pays.ALWAYS),
        (0.2, 5, 2.0e-3, 60e-6, LAW, Pays.NEVER),
        (0.5, 2, 4.0e-3, 10e-6, replace(LAW, d3=1e-4), Pays.ABOVE),
    ],
)
def test_drafting_pays_where_a_scan_of_batches_says(
    chance: float, tokens: int, draft_s: float, verify_s: float, law: Timing, pays: Pays
) -> None:
    """Tokens a second with drafts and without, batch by batch, requests of 1,000 tokens of context."""
    drafts = Drafts(tokens, accepted(chance, tokens), draft_s, verify_s)
    plain = ServingModel((RequestClass("a", 999, (1,), (1.0,), 1.0),), law, Replica(10**6))
    found, said = break_even(drafts, plain)
    batches = np.arange(1.0, 3001.0)
    without = batches / law(1000 * batches, 0 * batches, batches)
    time = law(1000 * batches, 0 * batches, batches) + tokens * draft_s + tokens * verify_s * batches
    better = drafts.mean * batches / time > without
    assert said is pays
    if pays in (Pays.ALWAYS, Pays.NEVER):
        assert found is None
        assert better.all() if pays is Pays.ALWAYS else not better.any()
        return
    change = int(np.flatnonzero(better != better[0])[0])
    assert found == pytest.approx(batches[change] - 0.5, rel=0.02)
    assert better[0] == (pays is Pays.BELOW)


def test_a_run_by_hand() -> None:
    """One draft that is always accepted: tokens 1, 3, 5 and 6 of 6 in four iterations, the first without drafts."""
    drafts = Drafts(1, (1.0,), draft_s=0.5, verify_s=0.25)
    law = drafts.slowed(Timing(1.0, d1=0.01, d2=0.001))
    one = Requests(np.zeros(1), np.array([100]), np.array([6]), np.zeros(1, dtype=np.int64))
    case = Case(with_what_they_emit(one, drafts, np.random.default_rng(0)), law, Replica(200), {})
    found = small_runs.run("vllm", case)
    context = (100, 101, 103, 105)
    times = [1.5 + 0.01 * t + (0.1 if i == 0 else 0.25) for i, t in enumerate(context)]
    assert found.iterations == 4
    assert found.first_token_s[0] == pytest.approx(times[0])
    assert found.finish_s[0] == pytest.approx(sum(times))
    assert found.series.kv_tokens.tolist() == [100, 103, 105, 107]  # with a draft and a slot ahead


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_iterations_are_those_simulated(load: float) -> None:
    full = example(memory=10**6)
    model = replace(full, classes=(replace(full.classes[0], rate_rps=load * sustainable_rate(full)[1]),))
    runs = study.study(model, Plan(), Load(requests=20_000), options.chosen(["vllm"], []), [0, 1])
    tau = equilibrium(model).iteration_time_s
    assert np.mean([r.figures["iteration_time_s"] for r in runs.results]) == pytest.approx(tau, rel=0.015)


def test_the_interval_of_itl_counts_iterations() -> None:
    """Drafts that are always accepted: 41 tokens in the iterations of 21 without."""
    drafts, law = Drafts(1, (1.0,)), Timing(8e-3, d2=25e-6)

    def itl(decode: int, drafts: Drafts | None) -> tuple[float, float]:
        one = RequestClass("a", 500, (decode,), (1.0,), 20.0)
        model = ServingModel((one,), law, Replica(10**7), drafts=drafts)
        runs = study.study(model, Plan(), Load(requests=5_000), options.chosen(["vllm"], []), [0])
        return runs.results[0].ci95["itl_s.mean"]

    assert itl(41, drafts) == pytest.approx(itl(21, None))


@given(st.integers(0, 100), st.integers(1, 4), st.integers(120, 900), st.sampled_from(["vllm", "greedy"]))
@examples(10)
def test_compiled_and_plain_runs_leave_the_same_bytes(seed: int, tokens: int, memory: int, name: str) -> None:
    rng, drafts = np.random.default_rng(seed), Drafts(tokens, accepted(0.6, tokens), verify_s=0.1)
    some = Requests(
        np.cumsum(rng.exponential(2.0, 12)),
        rng.integers(1, 60, 12),
        rng.integers(1, 40, 12),
        np.zeros(12, dtype=np.int64),
    )
    replica = Replica(memory, block_tokens=4, max_num_batched_tokens=50)
    case = Case(with_what_they_emit(some, drafts, rng), drafts.slowed(Timing(1.0, d1=0.01)), replica, {})
    assert bytes_of(small_runs.run(name, case)) == bytes_of(small_runs.run(name, case, compile=True))
