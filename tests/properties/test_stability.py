"""Stability of the equilibrium: exact counts, float traps, smallest stable input, and where the map really goes."""

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
from kvplan.analysis.stability import (
    exact_survival_weights,
    min_stable_input,
    model_spectrum,
    spectrum,
    stability,
)
from kvplan.analysis.worst_cycle import worst_cycle
from kvplan.model import FloatArray, Prefill, ServingModel
from kvplan.model.kv_layout import Attention, KvLayout, Layers


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


@given(st.integers(1, 40), st.integers(2, 30))
def test_one_class_has_every_root_outside(input_tokens: int, decode: int) -> None:
    """All d - 1 roots, for every input: the equilibrium of one length is never stable (SIC)."""
    found = stability(mix_model((input_tokens, decode, 1.0)))
    assert (found.stable, found.certified, found.unstable_modes) == (False, True, decode - 1)


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
            model,
            classes=tuple(replace(c, rate_rps=r) for c, r in zip(model.classes, shares, strict=True)),
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


@pytest.mark.parametrize("rows", [((0, 2, 2.0), (0, 3, 1.0)), ((0, 1, 1.0), (0, 2, 1.0))])
def test_roots_of_minus_one_are_on_the_circle_however_many(rows: tuple[tuple[int, int, float], ...]) -> None:
    """z² + 2z + 1 and z + 1: a double root is no reason to fail, nor to call the mix stable."""
    found = stability(mix_model(*rows))
    assert (found.stable, found.certified) == (False, True)
    assert found.unstable_modes in (0, None)
    assert found.spectral_radius == pytest.approx(1, abs=1e-6)


def test_without_exact_weights_a_root_on_the_circle_is_left_uncertified() -> None:
    found = spectrum(np.array([2.0, 3.0, 2.0]))
    assert (found.stable, found.certified, found.unstable_modes) == (False, False, None)


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


NEVER_GROW = {  # 12 tokens and up to 40 more: a prompt held whole and then its window, or blocks of 1,024 beside states
    "windows": KvLayout((Layers(Attention.WINDOW, 4, 64, 9),), 1),
    "states": KvLayout((Layers(Attention.STATE, 4, 640), Layers(Attention.FULL, 2, 64)), 1024),
}


@given(
    st.sampled_from(sorted(NEVER_GROW)),
    st.lists(st.tuples(st.integers(1, 13), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_without_growth_every_root_is_in_the_closed_disc(
    layout: str, rows: list[tuple[int, int]], common: int
) -> None:
    """Eneström-Kakeya, and the eigenvalues: on the circle iff all that falls does so at multiples of one number."""
    model = mix_model(*((12, common * d, float(rate)) for d, rate in rows), block_tokens=1)
    kv = NEVER_GROW[layout]
    replica = replace(model.replica, memory_tokens=10**6, block_tokens=kv.block_tokens, layout=kv)
    found = model_spectrum(replace(model, replica=replica))
    held = {"windows": [13] + [9] * 40, "states": [3 * 1024] * 41}[layout]
    weights = [held[k] * sum(rate for d, rate in rows if common * d > k) for k in range(41)]
    w = np.array([x for x in weights if x])
    moduli = np.abs(np.roots(w))
    on = int(np.count_nonzero(moduli > 1 - 1e-6))
    assert moduli.max(initial=0) < 1 + 1e-6
    assert on == (math.gcd(*(common * d for d, _ in rows)) - 1 if layout == "states" or w.size == 1 else 0)
    assert (found.stable, found.certified, found.unstable_modes) == (on == 0, True, 0)
    assert found.radius == pytest.approx(moduli.max(initial=0), abs=1e-6)
    assert (found.radius < 1) == found.stable


def test_no_growth_is_decided_however_long_the_outputs() -> None:
    """Where neither floats nor integers are asked: 100,000 and 150,000 stages, and one more."""
    kv = KvLayout((Layers(Attention.STATE, 4, 640), Layers(Attention.FULL, 2, 64)), 1 << 20)
    for other, gcd in ((150_000, 50_000), (150_001, 1)):
        model = mix_model((100, 100_000, 1.0), (100, other, 1.0))
        replica = replace(model.replica, memory_tokens=1 << 26, block_tokens=1 << 20, layout=kv)
        found = stability(replace(model, replica=replica))
        assert (found.gcd, found.stable, found.certified) == (gcd, gcd == 1, True)
        assert (found.spectral_radius < 1) == (gcd == 1)


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
    assert found.exact is not None
    smallest, verdicts = brute_force_min_input(short, short + apart, p, found.exact + 12, prefill)
    assert found.exact == max(smallest, int(prefill == "inline"))
    assert not any(verdicts[: found.exact])


@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(1, 5)), min_size=2, max_size=4),
    st.sampled_from([1, 1, 4, 16]),
)
def test_several_classes_are_searched_on_the_common_scale_of_their_inputs(
    rows: list[tuple[int, int, int]], page: int
) -> None:
    """Inputs c_i·m/Σp c in exact fractions, mean m: stable at the value found and above, not one token below.

    Pages count by their mean, which is half a page less half a token more for each request.
    """
    assume(math.gcd(*(d for d, _, _ in rows)) == 1)
    model = mix_model(*((c * 100, d, float(rate)) for d, c, rate in rows), block_tokens=page)
    found = min_stable_input(model)
    assert found.exact is not None
    total = sum(rate for _, _, rate in rows)
    mean = Fraction(sum(c * rate for _, c, rate in rows), total)

    def stable(mean_input: int) -> bool:
        scaled = [
            ([mean_input * c / mean + k + 1 + Fraction(page - 1, 2) for k in range(d)], Fraction(rate, total))
            for d, c, rate in rows
        ]
        exact = count_roots(survival_polynomial(scaled))
        return exact.on == exact.outside == 0

    assert all(stable(found.exact + more) for more in (0, 1, 2, 7, 50, 1000))
    assert found.exact == 0 or not stable(found.exact - 1)


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


@given(small_mixes(max_decode=5))
def test_inline_is_disaggregated_with_a_token_less_and_a_stage_more(model: ServingModel) -> None:
    """`inline` (s, d) and `disaggregated` (s-1, d+1): spectrum, cycle and map alike, least input one token more."""
    inline = replace(model, replica=replace(model.replica, prefill=Prefill.INLINE))
    ready = replace(
        model,
        classes=tuple(
            replace(
                c,
                input_tokens=c.input_tokens - 1,
                decode_tokens=tuple(d + 1 for d in c.decode_tokens),
            )
            for c in model.classes
        ),
        replica=replace(model.replica, prefill=Prefill.DISAGGREGATED),
    )
    a, b = stability(inline), stability(ready)
    assert a._replace(
        min_stable_input_tokens=b.min_stable_input_tokens, advice="", stabilising_change=None
    ) == b._replace(advice="", stabilising_change=None)
    one_input = len({c.input_tokens for c in model.classes}) == 1
    if (
        one_input
        and a.min_stable_input_tokens.exact is not None
        and b.min_stable_input_tokens.exact is not None
    ):
        assert a.min_stable_input_tokens.exact == b.min_stable_input_tokens.exact + 1
        if a.min_stable_input_tokens.asymptotic is not None:
            assert a.min_stable_input_tokens.asymptotic == b.min_stable_input_tokens.asymptotic + 1
    x, y = worst_cycle(inline, a, None), worst_cycle(ready, b, None)
    assert (x.kind, x.throughput_per_iteration, x.loss) == (y.kind, y.throughput_per_iteration, y.loss)
    assert (x.evictions_per_iteration, x.period) == (y.evictions_per_iteration, y.period)
    maps = [fluid_map(m.mix.held, m.mix.share, np.zeros(m.mix.share.size), 1e4) for m in (inline, ready)]
    completed = [run(system, np.zeros(system.size), 60).completed.tolist() for system in maps]
    assert completed[0] == completed[1]


@given(st.integers(2, 5), small_mixes(max_decode=4, pages=(1,)), st.sampled_from([10**5, 10**7]))
def test_large_inputs_leave_exactly_gcd_minus_one_roots_outside(
    g: int, model: ServingModel, scale: int
) -> None:
    """SIC Theorem 3 and Lemma 15, `disaggregated`, by the program's count and the exact one."""
    classes = tuple(
        replace(c, input_tokens=c.input_tokens * scale, decode_tokens=tuple(g * d for d in c.decode_tokens))
        for c in model.classes
    )
    model = replace(
        model,
        classes=classes,
        replica=replace(model.replica, memory_tokens=10**12, prefill=Prefill.DISAGGREGATED),
    )
    assume(len({d for c in classes for d in c.decode_tokens}) > 1)
    found = stability(model)
    assert found.unstable_modes == found.gcd - 1 == exact_count(model).outside


def uniform_weights(low: int, high: int, input_tokens: int) -> FloatArray:
    """W_k of decode lengths equally likely from low to high, summed length by length (`disaggregated`)."""
    w = np.zeros(high)
    for d in range(low, high + 1):
        w[:d] += (input_tokens + np.arange(d) + 1) / (high - low + 1)
    return w


@every("input_tokens", [0, 10, 100, 1000])
def test_a_distribution_counts_like_its_lengths_as_classes(input_tokens: int) -> None:
    """One class with 21 decode lengths is the same system as 21 classes with one each."""
    one = stability(mix_model((input_tokens, tuple(range(20, 41)), 21.0)))
    many = stability(mix_model(*((input_tokens, d, 1.0) for d in range(20, 41))))
    w = uniform_weights(20, 40, input_tokens)
    assert one.spectral_radius == pytest.approx(float(np.abs(np.roots(w)).max()), rel=1e-9)
    assert many.spectral_radius == pytest.approx(one.spectral_radius, rel=1e-9)
    assert (one.stable, one.unstable_modes) == (many.stable, many.unstable_modes)


def test_advice_names_a_change_that_does_stabilise() -> None:
    """(2, 4) at input 100 has a common divisor; the change proposed is proved by an exact count to remove it."""
    model = mix_model((100, 2, 1.0), (100, 4, 1.0))
    found = stability(model)
    assert not found.stable
    assert found.stabilising_change is not None
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
