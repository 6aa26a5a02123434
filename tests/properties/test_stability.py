"""Stability of the equilibrium: exact counts, float traps, smallest stable input, and where the map really goes."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from every import every
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import RootCount, count_roots, stage_weights, survival_polynomial
from strategies import mix_model, request_rows

from kvplan.analysis.fluid_map import fluid_map, run
from kvplan.analysis.stability import exact_survival_weights, min_stable_input, model_spectrum, stability
from kvplan.model import ServingModel


def polynomial(model: ServingModel) -> list[int]:
    """Exact integers proportional to the survival weights, in whole pages, from the definition."""
    page = model.replica.block_tokens
    return survival_polynomial(
        [([page * -(-w // page) for w in weights], share) for _, _, weights, share in request_rows(model)]
    )


def exact_count(model: ServingModel) -> RootCount:
    return count_roots(polynomial(model))


def two_lengths(
    short: int, long: int, input_tokens: int, p: Fraction, prefill: str = "disaggregated"
) -> ServingModel:
    """Two lengths, one input, share p of the shorter; rates are whole numbers, so shares are exact."""
    return mix_model(
        (input_tokens, short, float(p.numerator)),
        (input_tokens, long, float(p.denominator - p.numerator)),
        prefill=prefill,
    )


@st.composite
def small_mixes(
    draw: st.DrawFn, *, max_input: int = 60, max_decode: int = 12, pages: tuple[int, ...] = (1, 1, 3, 16)
) -> ServingModel:
    """Up to four classes with whole-number rates, in pages of some size; some have several decode lengths."""
    prefill = draw(st.sampled_from(["disaggregated", "inline", "fused"]))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        lengths = draw(st.lists(st.integers(1, max_decode), min_size=1, max_size=3, unique=True))
        rate = float(draw(st.integers(1, 9)))
        rows.append((draw(st.integers(1, max_input)), tuple(sorted(lengths)), rate))
    return mix_model(*rows, prefill=prefill, block_tokens=draw(st.sampled_from(pages)))


@given(small_mixes())
def test_survival_weights_are_those_of_the_definition(model: ServingModel) -> None:
    """W_k = Σ p_i w_i(k) in whole pages, and the exact integers are proportional to them."""
    rows, page = request_rows(model), model.replica.block_tokens
    exact = [
        sum(p * page * math.ceil(Fraction(weights[k], page)) for *_, weights, p in rows if k < len(weights))
        for k in range(max(len(weights) for *_, weights, _ in rows))
    ]
    w = model.mix.held.survival(model.mix.share)
    assert w == pytest.approx([float(x) for x in exact], rel=1e-13)
    integers = exact_survival_weights(model)
    assert [Fraction(x, integers[0]) for x in integers] == [x / exact[0] for x in exact]


@given(small_mixes())
def test_verdict_and_count_agree_with_exact_arithmetic(model: ServingModel) -> None:
    """`stable` iff every root is inside; `unstable_modes` counts those outside; both certified."""
    exact, found = exact_count(model), stability(model)
    assert found.certified
    assert found.stable == (exact.on == 0 and exact.outside == 0)
    # a multiple root on the circle can be too near for the count further out
    assert found.unstable_modes == exact.outside or (exact.on > 1 and found.unstable_modes is None)
    assert found.gcd == math.gcd(*(len(weights) for _, _, weights, _ in request_rows(model)))
    if found.stable:
        assert found.spectral_radius < 1
        assert found.recovery_iterations == pytest.approx(1 / (1 - found.spectral_radius), rel=1e-12)
    else:
        assert found.spectral_radius >= 1
        assert found.recovery_iterations is None


@given(small_mixes(max_decode=40))
def test_the_spectral_radius_agrees_with_eigenvalues(model: ServingModel) -> None:
    w = np.array([float(x) for x in polynomial(model)])
    expected = float(np.abs(np.roots(w / w[0])).max(initial=0.0))
    found = model_spectrum(model)
    # multiple roots are ill-conditioned for both
    assert found.radius == pytest.approx(expected, rel=1e-7 if found.radius_certified else 1e-3, abs=1e-12)


TRAPS = [  # lengths, input, share of the shorter, roots on the circle
    (2, 3, 1, Fraction(1, 2), 2),  # 2z² + 3z + 2
    (2, 3, 2, Fraction(4, 5), 1),  # 3z² + 4z + 1: -1 and -1/3
    (1, 3, 7, Fraction(1, 5), 2),  # 10z² + 9z + 10
]


@every(("short", "long", "input_tokens", "p", "on"), TRAPS)
@every("decimal", [False, True])
def test_a_root_exactly_on_the_circle_is_not_stable_and_no_mode(
    short: int, long: int, input_tokens: int, p: Fraction, on: int, decimal: bool
) -> None:
    """Rates as whole numbers, or as decimals that binary floats cannot hold: proved unstable, no root outside."""
    model = two_lengths(short, long, input_tokens, p)
    if decimal:
        shares = (float(p), float(1 - p))
        model = replace(
            model, classes=tuple(replace(c, rate_rps=r) for c, r in zip(model.classes, shares, strict=True))
        )
    assert exact_count(model) == RootCount(inside=2 - on, on=on, outside=0)
    found = stability(model)
    assert (found.stable, found.certified, found.unstable_modes) == (False, True, 0)
    assert found.spectral_radius == pytest.approx(1, abs=1e-12)
    assert found.spectral_radius >= 1
    above = stability(two_lengths(short, long, input_tokens + 1, p))
    assert (above.stable, above.certified, above.unstable_modes) == (True, True, 0)


@every(
    ("shorter", "longer", "stable"),
    [
        (0.8, 0.2000000000000001, True),
        (0.8, 0.2, False),
        (0.8000000000000002, 0.2, False),
        (8e14, 2e14 + 1, True),
    ],
)
def test_a_root_nearer_to_the_circle_than_floats_can_tell_is_decided_exactly(
    shorter: float, longer: float, stable: bool
) -> None:
    """3z² + 4z + 1 with its last digit changed: the decimals written in the profile decide, not their rounding."""
    model = mix_model((2, 2, shorter), (2, 3, longer))
    exact = exact_count(model)
    assert (exact.on == exact.outside == 0) == stable
    found = stability(model)
    assert (found.stable, found.certified) == (stable, True)
    assert (found.spectral_radius < 1) == stable


@given(small_mixes(max_input=40, max_decode=9), st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 0.05]))
def test_the_verdict_is_where_the_map_goes_from_a_disturbed_equilibrium(
    model: ServingModel, seed: int, size: float
) -> None:
    """Twenty recovery times: back at n* without evictions if stable, evicting if a root is outside."""
    found = stability(model)
    gap = abs(found.spectral_radius - 1)
    assume(found.spectral_radius == 0 or gap > 4e-4)
    mix = model.mix
    system = fluid_map(mix.held, mix.share, mix.input_tokens.astype(float), 1e4)
    n_star = system.eviction_free_throughput
    weights = np.array([float(w) for w in polynomial(model)])
    start = 1 + size * np.random.default_rng(seed).uniform(-1, 1, weights.size)
    start *= n_star * float(weights.sum()) / float(start @ weights)
    iterations = math.ceil(20 / gap) + 40 * weights.size
    history = run(system, start, iterations)
    last = slice(-4 * weights.size, None)
    evicts = history.evicted[last].sum() > 1e-6 * n_star
    away = np.abs(history.throughput[last] - n_star).max()
    if found.stable:
        assert not evicts
        assert away < 1e-6 * n_star
    else:
        assert away > 1e-3 * n_star
        assert history.evicted[iterations // 2 :].sum() > 1e-6 * n_star


def brute_force_min_input(
    short: int, long: int, p: Fraction, highest: int, prefill: str
) -> tuple[int, list[bool]]:
    """Verdict of the exact count for every input up to `highest`, and the first from which all are stable."""
    verdicts = []
    for s in range(highest + 1):
        if prefill == "inline" and s == 0:
            verdicts.append(False)
            continue
        rows = [(stage_weights(prefill, s, d), q) for d, q in ((short, p), (long, 1 - p))]
        exact = count_roots(survival_polynomial(rows))
        verdicts.append(exact.on == exact.outside == 0)
    unstable = [s for s, stable in enumerate(verdicts) if not stable]
    return (unstable[-1] + 1 if unstable else 0), verdicts


@given(
    st.integers(1, 7),
    st.integers(1, 4),
    st.sampled_from([Fraction(1, 2), Fraction(1, 5), Fraction(4, 5), Fraction(1, 3), Fraction(9, 10)]),
    st.sampled_from(["disaggregated", "inline", "fused"]),
)
def test_the_smallest_stable_input_is_that_of_a_linear_search(
    short: int, apart: int, p: Fraction, prefill: str
) -> None:
    """Exact counts for every input: all below are unstable (no stable islands), all from there on stable."""
    stages = [short + apart + (prefill == "inline"), short + (prefill == "inline")]
    model = two_lengths(short, short + apart, 5, p, prefill)
    found = min_stable_input(model)
    if math.gcd(*stages) > 1:
        assert (found.exact, found.asymptotic) == (None, None)
        return
    smallest, verdicts = brute_force_min_input(short, short + apart, p, found.exact + 12, prefill)
    assert found.exact == max(smallest, int(prefill == "inline"))
    assert not any(verdicts[: found.exact])


@every(("short", "long"), [(5, 6), (9, 10), (20, 21), (30, 31), (13, 21)])
@every("p", [Fraction(1, 2), Fraction(1, 5)])
def test_the_asymptote_of_sic_13_is_within_the_longer_length(short: int, long: int, p: Fraction) -> None:
    """(p·d1 + (1-p)·d2)³/(2π²p(1-p)), error O(d2)."""
    found = min_stable_input(two_lengths(short, long, 100, p))
    mean = float(p * short + (1 - p) * long)
    assert found.asymptotic == pytest.approx(mean**3 / (2 * math.pi**2 * float(p * (1 - p))), rel=1e-12)
    inline = min_stable_input(two_lengths(short - 1, long - 1, 100, p, "inline"))
    assert inline.asymptotic == pytest.approx(found.asymptotic + 1, rel=1e-12)
    if long - short == 1:
        assert abs(found.exact - found.asymptotic) < 2 * long / float(4 * p * (1 - p))


@every(
    ("lengths", "shares"),
    [
        ((7, 9, 11), (1, 1, 1)),
        ((3, 12, 17), (3, 7, 2)),
        ((5, 6, 18), (1, 8, 8)),
        ((2, 5, 7, 9), (1, 2, 3, 4)),
    ],
)
def test_the_asymptote_of_many_lengths_is_the_least_of_all_whole_turns(
    lengths: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    """In exact fractions, θ such that the phases d·θ - 2π·k have mean 0, for every k that is not all or nothing."""
    p = [Fraction(share, sum(shares)) for share in shares]
    mean = sum(x * d for x, d in zip(p, lengths, strict=True))

    def squares(k: tuple[int, ...]) -> Fraction:
        turn = sum(x * n for x, n in zip(p, k, strict=True)) / mean
        return sum((x * (d * turn - n) ** 2 for x, d, n in zip(p, lengths, k, strict=True)), Fraction(0))

    least = min(s for k in itertools.product(*(range(d + 1) for d in lengths)) if (s := squares(k)) > 0)
    rows = [(50, d, float(share)) for d, share in zip(lengths, shares, strict=True)]
    found = min_stable_input(mix_model(*rows))
    assert found.asymptotic == pytest.approx(float(mean / (2 * least)) / math.pi**2, rel=1e-9)
    assert abs(found.exact - found.asymptotic) < 2 * max(lengths) / float(min(p) * (1 - min(p)))


@every(("lengths", "asymptote"), [((7, 9, 11), 55.4), ((20, 21, 23), 316.2), ((30, 41, 57), 792.9)])
def test_three_lengths_need_about_the_input_of_their_asymptote(
    lengths: tuple[int, ...], asymptote: float
) -> None:
    found = min_stable_input(mix_model(*((50, d, 1.0) for d in lengths)))
    assert found.asymptotic == pytest.approx(asymptote, abs=0.06)
    assert found.exact == pytest.approx(asymptote, rel=0.14)


def test_advice_names_a_change_that_does_stabilise() -> None:
    """(2, 4) at input 100 has a common divisor; the change proposed is proved by an exact count to remove it."""
    model = mix_model((100, 2, 1.0), (100, 4, 1.0))
    found = stability(model)
    assert not found.stable
    assert found.stabilising_change in found.advice
    # the smallest change is of one token; which class and direction is read off the sentence
    words = found.stabilising_change.split()
    old, new = (int(words[i].replace(",", "")) for i in (words.index("from") + 1, words.index("to") + 1))
    assert abs(old - new) == 1
    which = int(words[words.index("class") + 2])
    changed = [2, 4]
    assert changed[which] == old
    changed[which] = new
    exact = count_roots(
        survival_polynomial([([100 + k + 1 for k in range(d)], Fraction(1, 2)) for d in changed])
    )
    assert exact.on == exact.outside == 0
