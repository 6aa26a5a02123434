"""Generated requests against the laws that they are drawn from; bounds are six standard deviations or more."""

import math
from dataclasses import replace

import numpy as np
import pytest
from every import every
from strategies import mix_model

from kvplan.model import ArrivalProcess, RequestClass, ServingModel
from kvplan.simulation.experiments.load import Arrivals, Load, generate
from kvplan.simulation.requests import Requests, burst, lengths, poisson, renewal, saturated

TWO = mix_model((10, [3, 5], 3.0), (20, 7, 1.0))
ONE = mix_model((10, 5, 2.0))
SIGMAS = 6.0


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_counts(seen: np.ndarray, expected: np.ndarray) -> None:
    """Pearson's chi-square within six standard deviations of its mean."""
    assert (seen[expected == 0] == 0).all()
    seen, expected = seen[expected > 0], expected[expected > 0]
    statistic = ((seen - expected) ** 2 / expected).sum()
    assert statistic < seen.size + SIGMAS * math.sqrt(2 * seen.size)


def assert_law(sample: np.ndarray, distribution: np.ndarray) -> None:
    """Kolmogorov's distance, at the sorted sample, below what one in 10⁷ samples exceeds."""
    steps = np.arange(sample.size + 1) / sample.size
    distance = max((steps[1:] - distribution).max(), (distribution - steps[:-1]).max())
    assert distance * math.sqrt(sample.size) < 2.9


def assert_shares(requests: Requests, model: ServingModel) -> None:
    """Requests of each class and decode length, and the prompts that go with the class."""
    mix = model.mix
    seen = [
        np.count_nonzero((requests.class_index == c) & (requests.decode_tokens == d))
        for c, d in zip(mix.class_index, mix.decode_tokens, strict=True)
    ]
    assert_counts(np.array(seen), mix.share * requests.class_index.size)
    assert sum(seen) == requests.class_index.size
    inputs = np.array([c.input_tokens for c in model.classes])
    assert (requests.input_tokens == inputs[requests.class_index]).all()


def test_poisson_gaps_are_exponential_and_classes_come_by_share() -> None:
    some = poisson(TWO, generator(), requests=20_000, horizon_s=None)
    gaps = np.sort(np.diff(some.arrival_s, prepend=0.0))
    assert_law(gaps, -np.expm1(-4.0 * gaps))
    assert_shares(some, TWO)
    assert some.clients is None


def test_poisson_arrivals_before_a_horizon_are_uniform_and_as_many_as_chance_wants() -> None:
    counts = [
        poisson(TWO, generator(seed), requests=None, horizon_s=5.0).arrival_s.size for seed in range(2000)
    ]
    assert np.mean(counts) == pytest.approx(20, abs=SIGMAS * math.sqrt(20 / 2000))
    assert np.var(counts) == pytest.approx(20, rel=SIGMAS * math.sqrt(2 / 2000))
    some = poisson(TWO, generator(), requests=None, horizon_s=5000.0)
    assert_law(some.arrival_s, some.arrival_s / 5000)
    assert_shares(some, TWO)


def of_kind(kind: str, requests: int | None, horizon_s: float | None, seed: int = 1) -> Requests:
    match kind:
        case "poisson":
            return poisson(TWO, generator(seed), requests=requests, horizon_s=horizon_s)
        case "renewal":
            return renewal(TWO, generator(seed), cv=2.0, requests=requests, horizon_s=horizon_s)
        case _:
            on = {"high": 2.0, "low": 0.5, "on_s": 3.0, "off_s": 4.0}
            return burst(TWO, generator(seed), **on, requests=requests, horizon_s=horizon_s)


@pytest.mark.parametrize("kind", ["poisson", "renewal", "burst"])
def test_the_earlier_end_counts(kind: str) -> None:
    """With both given, the run of the number of requests alone, cut at the horizon."""
    all_of_them = of_kind(kind, 1000, None)
    assert all_of_them.arrival_s.size == 1000
    assert of_kind(kind, 1000, 1e6).arrival_s.tolist() == all_of_them.arrival_s.tolist()
    cut = of_kind(kind, 1000, 50.0).arrival_s
    assert 0 < cut.size < 1000
    assert cut[-1] < 50.0
    alone = of_kind(kind, None, 50.0).arrival_s
    assert alone[-1] < 50.0
    assert alone.size == pytest.approx(200, abs=SIGMAS * 2.0 * math.sqrt(250))


@pytest.mark.parametrize("kind", ["poisson", "renewal", "burst"])
def test_one_seed_gives_one_run_and_another_seed_another(kind: str) -> None:
    first, again, other = (of_kind(kind, 500, None, seed) for seed in (1, 1, 2))
    assert first.arrival_s.tolist() == again.arrival_s.tolist()
    assert first.class_index.tolist() == again.class_index.tolist()
    assert first.decode_tokens.tolist() == again.decode_tokens.tolist()
    assert first.arrival_s.tolist() != other.arrival_s.tolist()


@pytest.mark.parametrize("cv", [0.2, 1.0, 3.0])
def test_gamma_gaps_have_the_rate_and_the_coefficient_of_variation(cv: float) -> None:
    some = renewal(TWO, generator(), cv=cv, requests=100_000, horizon_s=None)
    assert_shares(some, TWO)
    gaps = np.diff(some.arrival_s) * TWO.total_rate_rps
    error = SIGMAS * cv / math.sqrt(gaps.size)
    assert gaps.mean() == pytest.approx(1.0, abs=error)
    # a gamma variable of variance v about mean 1 has kurtosis 3 + 6 v
    assert gaps.var() == pytest.approx(cv**2, rel=SIGMAS * math.sqrt((2 + 6 * cv**2) / gaps.size) + 2 * error)
    assert np.corrcoef(gaps[1:], gaps[:-1])[0, 1] == pytest.approx(0, abs=SIGMAS / math.sqrt(gaps.size))


def test_gaps_of_a_class_are_geometric_numbers_of_gaps() -> None:
    """So that cv² - 1 falls as the share does; the model says the same of replicas behind a router."""
    some = renewal(TWO, generator(), cv=3.0, requests=400_000, horizon_s=None)
    for index, c in enumerate(TWO.classes):
        gaps = np.diff(some.arrival_s[some.class_index == index])
        cv = ArrivalProcess(3.0).split(TWO.total_rate_rps / c.rate_rps).cv
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=SIGMAS * 5 / math.sqrt(gaps.size))


@pytest.mark.parametrize("cv", [0.3, 4.0])
def test_gamma_arrivals_have_their_rate_from_the_start_on(cv: float) -> None:
    """In every fifth of the first two mean gaps; an arrival at time 0, or a whole first gap, would show."""
    times = np.concatenate(
        [renewal(ONE, generator(seed), cv=cv, requests=None, horizon_s=1.0).arrival_s for seed in range(5000)]
    )
    seen = np.histogram(times, 5, (0.0, 1.0))[0]
    clump = 1 + cv**2  # at most so many times the variance of Poisson counts
    assert np.abs(seen - 2000).max() < SIGMAS * math.sqrt(2000 * clump)


@every(("high", "low"), [(3.0, 0.5), (0.5, 3.0), (2.0, 0.0), (0.0, 2.0)])
def test_bursts_have_their_rate_in_each_window(high: float, low: float) -> None:
    """In quarters of seconds over the period, and from one period to the next; the last is cut after 2.5 s."""
    some = burst(
        TWO, generator(), high=high, low=low, on_s=1.0, off_s=3.0, requests=None, horizon_s=4 * 2000 + 2.5
    )
    quarters = np.repeat([high, low], [4, 12]) * 0.25 * TWO.total_rate_rps
    seen = np.histogram(some.arrival_s % 4.0, 16, (0.0, 4.0))[0]
    whole = np.where(np.arange(16) < 10, 2001, 2000)
    assert_counts(seen, quarters * whole)
    per_period = np.histogram(some.arrival_s, 2000, (0.0, 8000.0))[0]
    assert per_period.var() == pytest.approx(quarters.sum(), rel=0.25)
    assert_shares(some, TWO)


def test_saturated_requests_are_drawn_by_share_and_all_there() -> None:
    some = saturated(TWO, generator(), requests=10_000)
    assert some.clients is None
    assert not some.arrival_s.any()
    assert_shares(some, TWO)


def test_lengths_are_those_of_the_class_whatever_its_rate() -> None:
    rare = RequestClass("rare", 1, (2, 4), (1.0, 3.0), 1e-9)
    model = ServingModel((*TWO.classes, rare), TWO.timing, TWO.replica)
    kind = np.full(10_000, 2)
    decode = lengths(model, kind, generator())
    assert_counts(np.array([np.count_nonzero(decode == d) for d in (2, 4)]), np.array([2500, 7500]))
    assert decode.size == 10_000
    assert set(np.unique(decode).tolist()) == {2, 4}


def test_the_largest_chance_still_draws_a_length_of_the_class() -> None:
    """Added to the number of a class, it rounds up to the next."""

    class Largest(np.random.Generator):
        def random(self, size: int) -> np.ndarray:  # type: ignore[override]
            return np.full(size, np.nextafter(1.0, 0.0))

    many = mix_model(*[(1, [3 * i + 1, 3 * i + 2], 1.0) for i in range(20)])
    drawn = lengths(many, np.arange(20), Largest(np.random.PCG64(0)))
    assert drawn.tolist() == [3 * i + 2 for i in range(20)]


@every("kind", Arrivals)
def test_seeds_differ_where_a_load_says_that_it_is_drawn(kind: Arrivals) -> None:
    for model in (TWO, replace(TWO, classes=TWO.classes[:1]), mix_model((3, 5, 1.0))):
        load = Load(kind, requests=50)
        first, other = (generate(model, load, seed) for seed in (1, 2))
        same = all(
            getattr(first, name).tolist() == getattr(other, name).tolist()
            for name in ("arrival_s", "decode_tokens", "class_index")
        )
        assert load.is_drawn(model) is not same
