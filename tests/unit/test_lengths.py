"""Laws of lengths: as they are defined, however they are written, as formulas count them, and as runs draw them."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats  # type: ignore[import-untyped]

from kvplan.analysis.equilibrium import per_request, sustainable_rate
from kvplan.analysis.stability import stability, survival_weights
from kvplan.ingest.facts import Part, facts, merged, timing_table
from kvplan.model import Knowledge, Origin, Prompt, RequestClass, ServingModel, Timing
from kvplan.model.lengths import Lengths
from kvplan.model.streams import class_streams
from kvplan.profile.reading import Profile, parse_profile
from kvplan.report.assembly import analyze, to_document
from kvplan.show.view import json_text
from kvplan.simulation.experiments.load import Arrivals, Load, generate

PROFILE = """\
schema = 1
name = "laws"
[gpu]
memory_tokens = 400_000
block_tokens = 16
[timing]
d0 = "15 ms"
d1 = "0.03 us"
d2 = "50 us"
[[classes]]
name = "chat"
input = INPUT
decode = DECODE
rate = 1.5
"""
LOGNORMAL = "{ lognormal = { mean = 400, cv = 0.95 } }"


def profile(inputs: str, decode: str = "50", more: str = "") -> Profile:
    text = PROFILE.replace("INPUT", inputs).replace("DECODE", decode) + more
    return parse_profile(text.encode(), "laws.toml")


def law_of(text: str) -> Lengths:
    """What runs draw outputs from."""
    (one,) = profile("100", text).model.classes
    if one.decode_law is not None:
        return one.decode_law
    return Lengths(np.array(one.decode_tokens), np.array(one.decode_weights))


def moment(law: Lengths, order: int) -> float:
    return float(law.probabilities @ law.values.astype(np.float64) ** order)


# ------------------------------------------------------------------------------------------- as they are defined


@pytest.mark.parametrize(("mean", "sigma"), [(400.0, 0.8), (3000.0, 1.2), (37.5, 0.3), (2.0, 1.0)])
def test_a_lognormal_law_is_what_is_left_below_its_quantile_scaled_and_rounded(
    mean: float, sigma: float
) -> None:
    free = stats.lognorm(sigma, scale=mean * math.exp(-(sigma**2) / 2))
    end = free.ppf(0.9999)
    left, _ = integrate.quad(lambda x: x * free.pdf(x), 0, end, points=[mean, mean / 3], epsabs=0, limit=400)
    scale = mean / (left / 0.9999)
    law = Lengths.lognormal(mean, sigma)
    assert law.longest == math.floor(end * scale + 0.5)
    for place in np.linspace(0, law.values.size - 1, 9).astype(int).tolist():
        k = int(law.values[place])
        low, high = (0.0 if k == 1 else (k - 0.5) / scale), min((k + 0.5) / scale, end)
        expected, _ = integrate.quad(free.pdf, low, high, epsabs=0)
        assert law.probabilities[place] == pytest.approx(expected / 0.9999, rel=1e-6, abs=1e-13)


@given(st.floats(20, 3000), st.floats(0.05, 1.3))
def test_a_lognormal_law_has_the_mean_that_is_stated(mean: float, sigma: float) -> None:
    law = Lengths.lognormal(mean, sigma)
    assert law.mean == pytest.approx(mean, rel=1e-3)
    assert law.shortest >= 1
    assert law.probabilities.sum() == pytest.approx(1)


def test_uniform_and_geometric_laws_are_exact() -> None:
    values = range(37, 1200)
    exact = [Fraction(sum(v**k for v in values), len(values)) for k in (1, 2, 3)]
    assert [moment(Lengths.uniform(37, 1199), k) for k in (1, 2, 3)] == pytest.approx(
        [float(m) for m in exact], rel=1e-12
    )
    going = 1 - Fraction(2, 13)  # mean 6.5
    law = Lengths.geometric(6.5)
    assert law.values.tolist() == list(range(1, law.longest + 1))
    assert law.probabilities[:40].tolist() == pytest.approx(
        [float(going ** (k - 1) * Fraction(2, 13)) for k in range(1, 41)], rel=1e-12
    )
    assert going**law.longest <= Fraction(1, 10**15)


# ----------------------------------------------------------------------------------------- however they are written


def report(text: str, inputs: str = "700") -> str:
    given = profile(inputs, text)
    model = replace(given.model, replica=replace(given.model.replica, memory_tokens=40_000))
    found = to_document(analyze(model, name="", sha256="", plan=given.plan))
    del found["profile"]  # its hash is of the text
    return json_text(found)


SIGMA = math.sqrt(math.log1p(0.95**2))
SPELLINGS = {
    "number": ["7", "{ 7 = 0.3 }", "{ uniform = [7, 7] }"],
    "mean": ["{ geometric = 1 }", "1"],
    "few": ["{ uniform = [4, 6] }", "{ 4 = 1, 5 = 1, 6 = 1 }", "{ 6 = 0.7, 4 = 0.7, 5 = 0.7 }"],
    "weights": ["{ 50 = 0.2, 200 = 0.5, 400 = 0.3 }", "{ 50 = 20, 200 = 50, 400 = 30 }"],
    "sevenths": ["{ 50 = 1, 200 = 6 }", "{ 200 = 0.6, 50 = 0.1 }"],
    "many": ["{ uniform = [31, 700] }", f"{{ {', '.join(f'{n} = 0.25' for n in range(31, 701))} }}"],
    "lognormal": [
        LOGNORMAL,
        f"{{ lognormal = {{ median = {400 * math.exp(-(SIGMA**2) / 2)!r}, sigma = {SIGMA!r} }} }}",
    ],
}


@pytest.mark.parametrize("spellings", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("of_input", [False, True], ids=["decode", "input"])
def test_the_figures_are_the_same_however_a_law_is_written(spellings: list[str], of_input: bool) -> None:
    first, *others = (profile(text) if of_input else profile("700", text) for text in spellings)
    for other in others:
        assert other.model == first.model
        for load in (Load(requests=50), Load(Arrivals.SATURATED, requests=50)):
            mine, same = generate(other.model, load, 3), generate(first.model, load, 3)
            assert mine.input_tokens.tolist() == same.input_tokens.tolist()
            assert mine.decode_tokens.tolist() == same.decode_tokens.tolist()


# -------------------------------------------------------------------------------------------- as formulas count them


@st.composite
def weighted(draw: st.DrawFn) -> Lengths:
    values = draw(st.lists(st.integers(1, 5000), min_size=17, max_size=200, unique=True))
    return Lengths.of({v: draw(st.integers(1, 50)) * draw(st.sampled_from([1.0, 1e-3])) for v in values})


@given(weighted(), st.sampled_from([2, 4, 8, 16]))
def test_fewer_lengths_keep_mean_and_longest_and_never_vary_less(law: Lengths, points: int) -> None:
    fewer = law.at_most(points)
    assert fewer.values.size <= points
    assert (np.diff(fewer.values) > 0).all()
    assert law.shortest <= fewer.shortest
    assert fewer.longest == law.longest
    assert fewer.mean == pytest.approx(law.mean, rel=1e-9)
    assert moment(fewer, 2) >= moment(law, 2) * (1 - 1e-9)
    for theta in np.array([0.1, 1.0, 10.0]) / law.longest:  # so that Chernoff's bound of sums stays one
        grown, exact = (float(one.probabilities @ np.exp(theta * one.values)) for one in (fewer, law))
        assert grown >= exact * (1 - 1e-9)


WIDE = {
    "lognormal": Lengths.lognormal(400.0, 0.8),
    "long": Lengths.lognormal(12_000.0, 0.83),
    "heavy": Lengths.lognormal(3000.0, 1.3),
    "uniform": Lengths.uniform(100, 4000),
    "geometric": Lengths.geometric(300.0),
}


@pytest.mark.parametrize("law", WIDE.values(), ids=WIDE)
@pytest.mark.parametrize(("points", "second", "third"), [(16, 4e-4, 1.2e-2), (256, 2e-5, 3e-5)])
def test_moments_of_what_formulas_count(law: Lengths, points: int, second: float, third: float) -> None:
    fewer = law.at_most(points)
    assert moment(fewer, 2) == pytest.approx(moment(law, 2), rel=second)
    assert moment(fewer, 3) == pytest.approx(moment(law, 3), rel=third)


def whole(model: ServingModel, inputs: Lengths, decode: Lengths) -> ServingModel:
    """The model with every pair of an input and an output."""
    prompts = zip(inputs.values.tolist(), inputs.probabilities.tolist(), strict=True)
    c = RequestClass(
        "chat",
        round(inputs.mean),
        tuple(decode.values.tolist()),
        tuple(decode.weights.tolist()),
        1.5,
        prompts=tuple(Prompt(*p) for p in prompts),
    )
    return ServingModel((c,), model.timing, model.replica)


@pytest.mark.parametrize(
    ("inputs", "decode", "close"),
    [
        ("{ uniform = [100, 700] }", "{ uniform = [1, 400] }", 3e-5),
        (LOGNORMAL.replace("400", "50"), LOGNORMAL.replace("400", "40"), 6e-4),  # of few pages each
        ("{ geometric = 20 }", "300", 3e-4),
    ],
)
def test_load_and_equilibrium_are_those_of_every_pair(inputs: str, decode: str, close: float) -> None:
    model = profile(inputs, decode).model
    every = whole(model, law_of(inputs), law_of(decode))
    assert sustainable_rate(model)[1] == pytest.approx(sustainable_rate(every)[1], rel=close)
    assert per_request(model).held == pytest.approx(per_request(every).held, rel=close)
    assert survival_weights(model) == pytest.approx(every.mix.held.survival(every.mix.share), rel=1e-11)
    mine, exact = stability(model), stability(every)
    assert mine.spectral_radius == pytest.approx(exact.spectral_radius, abs=1e-9)
    assert (mine.gcd, mine.stable, mine.unstable_modes) == (exact.gcd, exact.stable, exact.unstable_modes)
    assert mine.min_stable_input_tokens == exact.min_stable_input_tokens


def test_what_is_shared_is_found_in_prompts_that_vary() -> None:
    laws = {50: 0.25, 70: 0.5, 130: 0.25}, {3: 0.5, 20: 0.5}
    inputs, decode = ("{ " + ", ".join(f"{n} = {w}" for n, w in law.items()) + " }" for law in laws)
    (stream,) = class_streams(profile(inputs, decode, "shared = 40\n").model)
    left = [
        (p * w, (s + d - 1) // 16 * 16 - 32)  # 40 tokens are two whole pages
        for s, p in laws[0].items()
        for d, w in laws[1].items()
    ]
    assert stream.left == pytest.approx(sum(p * n for p, n in left))
    assert stream.left_squares == pytest.approx(sum(p * n**2 for p, n in left))
    assert stream.prompt == pytest.approx(80)
    assert stream.prompt_squares == pytest.approx(0.25 * 50**2 + 0.5 * 70**2 + 0.25 * 130**2)
    assert sum(kind.share * kind.tokens for kind in stream.prompts) == pytest.approx(80)


# ------------------------------------------------------------------------------------------------- as runs draw them


@pytest.mark.parametrize("load", [Load(requests=200_000), Load(Arrivals.SATURATED, requests=200_000)])
def test_runs_draw_both_laws_in_full_and_independently(load: Load) -> None:
    model = profile(LOGNORMAL.replace("400", "3000"), "{ geometric = 200 }").model
    drawn = generate(model, load, 5)
    for tokens, law in (
        (drawn.input_tokens, Lengths.lognormal(3000.0, float(f"{SIGMA:.12g}"))),
        (drawn.decode_tokens, Lengths.geometric(200.0)),
    ):
        upto = np.bincount(law.values, law.probabilities).cumsum()
        seen = np.bincount(tokens, minlength=upto.size).cumsum() / tokens.size
        assert np.abs(seen - upto).max() * math.sqrt(tokens.size) < 2.9  # Kolmogorov: one in 10⁷
        deviation = math.sqrt(moment(law, 2) - law.mean**2)
        assert abs(tokens.mean() - law.mean) < 5 * deviation / math.sqrt(tokens.size)
        assert np.unique(tokens).size > 1000
    correlation = np.corrcoef(drawn.input_tokens, drawn.decode_tokens)[0, 1]
    assert abs(correlation) * math.sqrt(drawn.input_tokens.size) < 5
    again, other = generate(model, load, 5), generate(model, load, 6)
    assert again.input_tokens.tolist() == drawn.input_tokens.tolist()
    assert again.decode_tokens.tolist() == drawn.decode_tokens.tolist()
    assert other.input_tokens.tolist() != drawn.input_tokens.tolist()


def test_sessions_draw_the_same_laws() -> None:
    text = PROFILE.partition("[[classes]]")[0] + (
        '[[sessions]]\nname = "agent"\nrate = 1\nfirst = { lognormal = { mean = 900, cv = 0.7 } }\nuser = 1\n'
        f'decode = {LOGNORMAL}\nturns = 1\nthink = {{ law = "fixed", value = 1 }}\n'
    )
    model = parse_profile(text.encode(), "x").model
    drawn = generate(model, Load(requests=50_000), 2)
    law = model.classes[0].sessions
    assert law is not None
    for tokens, own in ((drawn.input_tokens, law.first), (drawn.decode_tokens, law.decode)):
        deviation = math.sqrt(moment(own, 2) - own.mean**2)
        assert abs(tokens.mean() - own.mean) < 5 * deviation / math.sqrt(tokens.size)


# ------------------------------------------------------------------------------------------------------ written back


def test_a_base_keeps_its_laws_as_they_were_written() -> None:
    base = profile(LOGNORMAL, "{ geometric = 200.5 }")
    timing = Part("timing", facts("timing", timing_table(Timing(0.02)), Origin(Knowledge.STATED)))
    kept = merged(base, [timing], source="x")
    assert kept.model.classes == base.model.classes
    assert "lognormal = { mean = 400, cv = 0.95 }" in kept.text
