"""Split or together: the formulas against plain searches, and the theorem of theory §12 on random cases."""

import math
from dataclasses import replace

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from strategies import mix_model, models, one_class

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.split import (
    Side,
    Sides,
    best_split,
    crossing,
    decode_side,
    not_covered,
    prefill_side,
    served,
    sides,
    together_rps,
)
from kvplan.model import FloatArray, Prefill, Replica, ServingModel, Timing
from kvplan.model.drafts import Drafts
from kvplan.model.fleet import Fleet
from kvplan.model.gaps import Exponential
from kvplan.model.sessions import Reuse

CASES = 10_000
NEAR = 1e-9
LAW = Timing(8e-3, 0.04e-6, 25e-6, 15e-6)
PROMPT, OUTPUT, BUDGET = 2000, 200, 8192


def unrounded_rps(found: Sides, gpus: float, itl_s: float = math.inf) -> float:
    """What so many GPUs would serve, split in the best proportion, if replicas came in parts."""
    one, other = served(found.prefill), served(found.decode, itl_s)
    if not one.rate_rps or not other.rate_rps:
        return 0.0
    return gpus / (found.prefill.gpus / one.rate_rps + found.decode.gpus / other.rate_rps)


def of_theory(
    law: Timing,
    prompt: float,
    output: float,
    budget: float,
    *,
    memory: float = math.inf,
    hold_s: float = 0.0,
    whole_budget: float = math.inf,
) -> Sides:
    """The amounts of theory §12: KV that the prompt's own iteration reads, and its sequence, are left out."""
    n = output - 1
    context = prompt * n + output * n / 2
    return Sides(
        Side(
            law,
            prefill_tokens=prompt,
            held=prompt * max(1.0, prompt / budget),
            waiting=prompt * hold_s,
            computed_tokens=prompt,
            memory_tokens=memory,
            max_num_batched_tokens=budget,
        ),
        Side(law, read=context, sequences=n, held=context, waiting=prompt * hold_s, memory_tokens=memory),
        Side(
            law,
            read=context,
            prefill_tokens=prompt,
            sequences=n,
            held=context,
            computed_tokens=prompt + n,
            memory_tokens=memory,
            max_num_batched_tokens=whole_budget,
        ),
    )


@every(
    ("itl_s", "ratio", "of_eight"),
    [
        (0.02, 1.370, 1.327),
        (0.04, 1.138, 1.048),
        (0.1, 1.033, 0.911),
        (0.25, 0.996, 0.884),
        (math.inf, 0.973, 0.884),
    ],
)
def test_the_example_of_theory(itl_s: float, ratio: float, of_eight: float) -> None:
    found = of_theory(LAW, PROMPT, OUTPUT, BUDGET)
    both = together_rps(found, 8, itl_s)
    best = best_split(found, 8, itl_s)
    assert round(unrounded_rps(found, 8, itl_s) / both, 3) == ratio
    assert round(best.rate_rps / both, 3) == of_eight
    if itl_s == 0.02:
        assert (best.prefill, best.decode) == (5, 3)


class Cases:
    """Random numbers of theory §12, each of shape (CASES,), and what a plain search makes of them."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)

        def log(low: float, high: float) -> FloatArray:
            return np.exp(rng.uniform(math.log(low), math.log(high), CASES))

        self.d0, self.d1, self.d2, self.d3 = log(1e-3, 0.1), log(1e-9, 1e-6), log(1e-6, 1e-3), log(1e-6, 1e-3)
        self.s, self.d = np.rint(log(10, 20_000)), np.rint(log(2, 3000))
        self.budget = np.rint(log(64, 32_768))
        self.n = self.d - 1
        self.context = self.s * self.n + self.d * self.n / 2
        self.longest = self.d0 * log(1.01, 300)  # ITL
        self.memory = (self.s + self.d) * log(1.5, 3000)
        self.hold_s = self.s * log(1e-9, 1e-4)
        self.decode_s = self.d1 * self.context + self.d3 * self.n
        self.prompt_s = self.d2 * self.s

    def __len__(self) -> int:
        return CASES

    def at(self, i: int, *, limited: bool) -> Sides:
        law = Timing(*(float(d[i]) for d in (self.d0, self.d1, self.d2, self.d3)))
        more = {"memory": float(self.memory[i]), "hold_s": float(self.hold_s[i])} if limited else {}
        return of_theory(law, float(self.s[i]), float(self.d[i]), float(self.budget[i]), **more)

    def largest(
        self, work_s: FloatArray, *checks: tuple[FloatArray | float, FloatArray | float, FloatArray]
    ) -> FloatArray:
        """By halving: the largest rate with rate·(a·τ + b) ≤ limit for each (a, b, limit), τ = d0/(1 - rate·work)."""
        low, high = np.zeros(CASES), 1 / work_s
        for _ in range(80):
            rate = (low + high) / 2
            tau = self.d0 / np.maximum(1 - rate * work_s, 1e-300)
            fits = np.ones(CASES, dtype=bool)
            for a, b, limit in checks:
                fits &= rate * (a * tau + b) <= limit
            low, high = np.where(fits, rate, low), np.where(fits, high, rate)
        return low

    def rates(self, itl_s: FloatArray, *, limited: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Requests/s of a prefill replica, of a decode replica, and of one that does both."""
        memory = self.memory if limited else np.full(CASES, np.inf)
        hold = self.hold_s if limited else np.zeros(CASES)

        def in_time(work_s: FloatArray) -> tuple[FloatArray, float, FloatArray]:
            # τ ≤ ITL, written as rate·τ ≤ (1/work)·(ITL - d0)/1: in requests an iteration
            return np.ones(CASES), 0.0, (itl_s - self.d0) / work_s

        both_s = self.decode_s + self.prompt_s
        chunks = np.maximum(1, self.s / self.budget)
        return (
            self.largest(self.prompt_s, (self.s, 0.0, self.budget), (self.s * chunks, self.s * hold, memory)),
            self.largest(self.decode_s, (self.context, self.s * hold, memory), in_time(self.decode_s)),
            self.largest(both_s, (self.context, 0.0, memory), in_time(both_s)),
        )

    def computed(self, itl_s: FloatArray, *, limited: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The same by kvplan."""
        rates = []
        for i, longest in enumerate(itl_s.tolist()):
            found = self.at(i, limited=limited)
            rates.append(
                (served(found.prefill), served(found.decode, longest), served(found.together, longest))
            )
        p, d, t = (np.array([row[k].rate_rps for row in rates]) for k in range(3))
        return p, d, t


ENDLESS = np.full(CASES, np.inf)


@pytest.fixture(scope="module")
def cases() -> Cases:
    return Cases(12)


@pytest.mark.parametrize("limited", [False, True])
def test_rates_are_those_of_a_plain_search(cases: Cases, limited: bool) -> None:
    for itl in (cases.longest, ENDLESS):
        for found, expected in zip(
            cases.computed(itl, limited=limited), cases.rates(itl, limited=limited), strict=True
        ):
            assert np.allclose(found, expected, rtol=1e-7, atol=0)


def random_sides(rng: np.random.Generator, law: Timing) -> Sides:
    """A request's amounts cut in two, on replicas with every limit of a real one."""
    cut = {name: rng.uniform(0, 1) for name in ("read", "held")}
    whole = {name: float(np.exp(rng.uniform(3, 14))) for name in cut}
    prompt, stages = float(np.rint(np.exp(rng.uniform(2, 9)))), float(rng.integers(2, 2000))
    limits = {
        "memory_tokens": whole["held"] * float(np.exp(rng.uniform(-1, 6))),
        "max_num_seqs": float(np.exp(rng.uniform(1, 8))),
        "max_num_batched_tokens": float(np.exp(rng.uniform(4, 10))),
    }
    waiting = whole["held"] * float(np.exp(rng.uniform(-9, 0)))
    return Sides(
        Side(
            law,
            prefill_tokens=prompt,
            sequences=1.0,
            computed_tokens=prompt,
            waiting=waiting,
            **{name: whole[name] * cut[name] for name in cut},
            **limits,
        ),
        Side(
            law,
            sequences=stages - 1,
            computed_tokens=stages - 1,
            waiting=waiting,
            **{name: whole[name] * (1 - cut[name]) for name in cut},
            **limits,
        ),
        Side(
            law,
            prefill_tokens=prompt,
            sequences=stages,
            computed_tokens=prompt + stages - 1,
            **whole,
            **limits,
        ),
    )


def random_law(rng: np.random.Generator, **more: float) -> Timing:
    d0, d1, d2, d3 = np.exp([rng.uniform(*ends) for ends in ((-7, -2), (-20, -14), (-14, -7), (-14, -7))])
    return Timing(float(d0), float(d1), float(d2), float(d3), **more)


@given(st.integers(0, 10**6), st.booleans())
def test_what_a_law_that_is_not_linear_allows_is_used_up(seed: int, convex: bool) -> None:
    """At the rate found some limit is met and none is broken; past the knee, no smaller batch is served faster."""
    rng = np.random.default_rng(seed)
    more = {"d5": 2e-5, "knee_tokens": 700.0} if convex else {"d4": 3e-3}
    for side in random_sides(rng, random_law(rng, **more)):
        itl_s = side.timing.d0 * float(np.exp(rng.uniform(0.1, 4)))
        found = served(side, itl_s)
        x = found.rate_rps * found.iteration_time_s
        amounts = x * side.read, x * side.prefill_tokens, x * side.sequences
        assert found.iteration_time_s == pytest.approx(side.timing(*amounts), rel=1e-9)
        used = {
            "kv_memory": (x * side.held + found.rate_rps * side.waiting) / side.memory_tokens,
            "max_num_seqs": x * side.sequences / side.max_num_seqs,
            "max_num_batched_tokens": x * side.computed_tokens / side.max_num_batched_tokens,
            "itl": found.iteration_time_s / itl_s,
        }
        assert max(used.values()) <= 1 + 1e-9
        if found.binding == "compute":
            assert convex
            for factor in (0.9, 1.1):
                assert factor * x / side.iteration_time(factor * x) <= found.rate_rps * (1 + NEAR)
        else:
            assert used[found.binding] == pytest.approx(1, rel=1e-6)


def test_hardware_that_differs_is_counted_in_gpus() -> None:
    """Of twelve GPUs, prompts on replicas of 2 and decoding on replicas of 4: every pair that fits, by hand."""
    found = of_theory(LAW, PROMPT, OUTPUT, BUDGET)
    fast = replace(LAW, d0=4e-3, d2=6e-6)
    other = of_theory(fast, PROMPT, OUTPUT, BUDGET)
    mixed = Sides(replace(other.prefill, gpus=2), replace(found.decode, gpus=4), found.together)
    one, two = served(mixed.prefill).rate_rps, served(mixed.decode, 0.03).rate_rps
    best = best_split(mixed, 12, 0.03)
    assert best.rate_rps == max(min(x * one, y * two) for x, y in ((1, 2), (2, 2), (3, 1), (4, 1)))
    assert (best.prefill, best.decode) == (1, 2)
    assert unrounded_rps(mixed, 12, 0.03) == pytest.approx(12 / (2 / one + 4 / two))
    assert best_split(mixed, 5, 0.03) is None
    three = found._replace(together=replace(found.together, gpus=3))
    assert together_rps(three, 14, 0.03) == 4 * served(found.together, 0.03).rate_rps


@pytest.mark.parametrize("decode", [1, 3, 4])
def test_crossing_of_a_linear_law(decode: int) -> None:
    """Split is the lesser of a and b·u, together B·u, u = 1 - d0/ITL: they meet at u = a/B if b > B; else never."""
    found = of_theory(LAW, PROMPT, OUTPUT, BUDGET)
    prefill = 8 - decode
    a, b = prefill * served(found.prefill).rate_rps, decode / found.decode.work_s
    both = 8 / found.together.work_s
    crossed = crossing(found, prefill, decode, 8)
    if b < both:
        assert crossed is None
        return
    assert crossed.split_wins_below
    assert crossed.itl_s == pytest.approx(LAW.d0 / (1 - a / both), rel=1e-9)


@given(models(limits=True).filter(lambda m: m.replica.prefill is not Prefill.DISAGGREGATED))
def test_the_sides_of_a_model_do_its_work_between_them(model: ServingModel) -> None:
    found = sides(model, Fleet(1, 1))
    for name in ("read", "prefill_tokens", "sequences", "computed_tokens", "work_s"):
        parts = getattr(found.prefill, name) + getattr(found.decode, name)
        assert parts == pytest.approx(getattr(found.together, name), rel=1e-9, abs=1e-12)
    assert found.prefill.held + found.decode.held >= found.together.held * (1 - NEAR)
    binding, rate = sustainable_rate(model)
    at = served(found.together)
    assert at.rate_rps == pytest.approx(rate, rel=1e-9)
    assert binding in (at.binding, "compute")


def test_sides_of_requests_by_hand() -> None:
    """Prompts of 20 and outputs of 3 and 1 in pages of 8; 100 bytes a token at 50 kB/s: 40 ms for a prompt.

    Stages of the long ones: 21, 22, 23 tokens in 24 held each; of the short ones 21 alone.
    """
    one = one_class(20, (1, 3))
    replica = Replica(800, 8, max_num_batched_tokens=10)
    model = ServingModel((one,), LAW, replica)
    fleet = Fleet(1, 1, transfer_bytes_per_s=50e3, bytes_per_token=100)
    prompts, rest = prefill_side(model, fleet), decode_side(model, fleet)
    assert prompts.read == 10 + 21  # in two iterations
    assert (prompts.prefill_tokens, prompts.sequences, prompts.computed_tokens) == (20, 2, 20)
    assert prompts.held == 24 * 2  # two iterations for twice the budget
    assert prompts.waiting == rest.waiting == pytest.approx(0.5 * 24 * 0.04)
    assert (rest.read, rest.sequences, rest.computed_tokens, rest.held) == (22.5, 1, 1, 24)


def test_what_the_formulas_do_not_cover() -> None:
    plain = mix_model((100, 20, 1.0), prefill="fused")
    assert not_covered(plain) is None
    drafts = replace(plain, drafts=Drafts(1, (0.5,)))
    again = replace(plain.classes[0], reuse=Reuse(50, 0.5, Exponential(1.0)))
    assert not_covered(drafts) == "speculative decoding"
    assert "prefix cache" in str(not_covered(replace(plain, classes=(again,))))
    assert "ready-made" in str(not_covered(mix_model((100, 20, 1.0))))
    assert "empty" in str(not_covered(mix_model((0, 20, 1.0), prefill="fused")))
