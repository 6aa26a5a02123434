"""The rate up to which greedy admission recovers, against a slow version written from theory §3 ("Finite memory").

The slow version sums over every stage and frequency, and integrates adaptively. What the fluid map settles on is taken
from the program: that is compared with explicit layers elsewhere.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from saturated_greedy import EMPTY, Server, measure
from scipy.integrate import quad
from scipy.stats import norm
from shipped import profile
from strategies import mix_model, models, request_rows
from tiers import at_night

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.fluid_map import Cycle
from kvplan.analysis.recovery import recovery
from kvplan.analysis.stability import stability
from kvplan.analysis.worst_cycle import collapsed_cycles, cycle_throughput_rps, simulate_collapsed
from kvplan.model import ServingModel, Timing


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    """Many runs of the fluid map."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvplan.analysis.fluid_map._COMPILE_ABOVE", 0)
        yield


@dataclass(frozen=True)
class Text:
    """The formulas as theory §3 writes them; `rows` are share, input, weights in whole pages, context read."""

    rows: list[tuple[float, int, list[int], list[int]]]
    memory: int
    page: int
    seats: float
    timing: Timing
    computes_prompts: bool

    @classmethod
    def of(cls, model: ServingModel) -> "Text":
        replica, page = model.replica, model.replica.block_tokens
        rows = [
            (float(p), c.input_tokens, [page * -(-w // page) for w in read], read)
            for c, _, read, p in request_rows(model)
        ]
        memory = replica.memory_tokens // page * page
        seats = math.inf if replica.max_num_seqs is None else replica.max_num_seqs
        return cls(rows, memory, page, seats, model.timing, str(replica.prefill) != "disaggregated")

    def mean(self, amounts: list[float]) -> float:
        return math.fsum(p * x for (p, *_), x in zip(self.rows, amounts, strict=True))

    @property
    def footprint(self) -> float:
        return self.mean([sum(w) for _, _, w, _ in self.rows])

    @property
    def read_footprint(self) -> float:
        return self.mean([sum(w) for *_, w in self.rows])

    @property
    def stages(self) -> float:
        return self.mean([len(w) for _, _, w, _ in self.rows])

    @property
    def longest(self) -> int:
        return max(len(w) for _, _, w, _ in self.rows)

    @property
    def n_star(self) -> float:
        return self.memory / self.footprint

    def first(self, power: int = 1) -> float:
        """E[a^power]."""
        return self.mean([w[0] ** power for _, _, w, _ in self.rows])

    @property
    def prompt(self) -> float:
        return self.mean([s for _, s, _, _ in self.rows])

    @property
    def gap(self) -> float:
        """G = E[a²]/(2E[a])."""
        return self.first(2) / (2 * self.first())

    def smooth(self) -> list[np.ndarray]:
        """w(k) + (b - 1)/2, and 0 past the end."""
        size = 2 * self.longest
        return [np.pad(np.array(w) + (self.page - 1) / 2, (0, size - len(w))) for *_, w in self.rows]

    @property
    def evicted_kv(self) -> float:
        """D = ∫ exp(-min_u (x + m(u))²/(2v(u))) dx."""
        u = range(1, self.longest + 1)
        rows, size = self.smooth(), self.longest
        kv = [self.mean([w[k] for w in rows]) for k in range(size)]
        m = self.n_star * np.array([sum(kv[:lag]) for lag in u])
        squares = [[float(((w[lag : lag + size] - w[:size]) ** 2).sum()) for w in rows] for lag in u]
        v = self.n_star * np.array([self.mean(each) for each in squares])

        def integrand(x: float) -> float:
            return math.exp(-float(((x + m) ** 2 / (2 * v)).min()))

        far = float(np.max(10 * np.sqrt(v)))
        edges = [0.0, *np.geomspace(1e-4 * far, far, 25)]  # one scale each, so that nothing is missed
        return sum(
            quad(integrand, a, b, epsabs=1e-9 * far, epsrel=1e-9, limit=200)[0] for a, b in pairwise(edges)
        )

    @property
    def fluctuating_evictions(self) -> float:
        """Requests an iteration that are evicted because admissions and lengths fluctuate."""
        last = [w[-1] + (self.page - 1) / 2 for *_, w in self.rows]
        n = self.n_star
        growing = max(self.stages - 1, self.mean([w[-1] - w[0] for _, _, w, _ in self.rows]))
        leaving = norm(n * self.mean(last), math.sqrt(n * self.mean([w * w for w in last])))
        come = n * (growing + 1)
        excess = (
            quad(leaving.cdf, -np.inf, come, epsabs=0, epsrel=1e-10)[0] if n > 0 else 0.0
        )  # E[(come - C)⁺]
        found = min(excess, n * growing) / self.first()
        return found + (self.negative_admissions if n >= 2 else 0.0)

    @property
    def negative_admissions(self) -> float:
        """E[y⁻], y normal; nothing where its variance is not finite."""
        points = 2 ** math.ceil(math.log2(4 * self.longest))
        h = np.array(
            [
                [
                    sum(w * np.exp(-2j * np.pi * j * k / points) for k, w in enumerate(ws))
                    for j in range(points)
                ]
                for _, _, ws, _ in self.rows
            ]
        )
        p = np.array([share for share, *_ in self.rows])
        mean = np.abs(p @ h) ** 2
        if mean.min() <= 1e-20 * mean.max():
            return 0.0
        gap_variance = self.first(3) / (3 * self.first()) - self.gap**2
        variance = (self.n_star * (p @ np.abs(h) ** 2 / mean - 1) + gap_variance / mean).mean()
        deviation = math.sqrt(max(float(variance), 0.0))
        if deviation == 0:
            return 0.0
        z = self.n_star / deviation
        return deviation * (norm.pdf(z) - z * norm.sf(z))

    @property
    def room_is_left(self) -> bool:
        """M - cap·w̄ - w_max beyond four deviations of the KV of `cap` sequences at random ages."""
        weight = self.footprint / self.stages
        square = self.mean([sum(x * x for x in w) for _, _, w, _ in self.rows]) / self.stages
        spare = self.memory - self.seats * weight - max(w[-1] for _, _, w, _ in self.rows)
        return spare > 4 * math.sqrt(self.seats * max(square - weight**2, 0.0))

    def rate(
        self, kept: float, evicted_prompts: float, noisy: float = 1.15, recomputed: float = 1.5
    ) -> float:
        """0.985·x_low/τ_low of an attractor that keeps r and evicts so many prompt tokens; two factors are fitted."""
        n_star, admitted = self.n_star, min(self.n_star, self.seats / self.stages)
        noise = noisy * (self.gap + self.evicted_kv) / self.memory
        evictions = recomputed * self.fluctuating_evictions
        if math.isinf(self.seats):
            low = n_star * (kept - noise)
        else:
            if self.room_is_left:
                noise = evictions = 0.0
            low = min(admitted * kept, n_star * (1 - noise) - admitted * (1 - kept)) - n_star * noise / 4
        low = max(0.0, low)
        lost = (admitted - low) * self.footprint
        sequences = min(self.seats, self.stages * low + lost / self.first())
        computed = evicted_prompts + self.prompt * (evictions + (low if self.computes_prompts else 0.0))
        law = self.timing
        tau = law.d0 + law.d1 * (low * self.read_footprint + lost) + law.d2 * computed + law.d3 * sequences
        return 0.985 * low / tau


def by_the_text(model: ServingModel) -> tuple[float, float]:
    """recovers_up_to, and the same under a cap."""
    text, local, alpha = Text.of(model), stability(model), sustainable_rate(model)[1]
    largest = max(w[-1] for _, _, w, _ in text.rows)
    if text.seats * largest <= text.memory:
        return alpha, alpha
    if all(w[0] == w[-1] for _, _, w, _ in text.rows):
        firsts = {w[0] for _, _, w, _ in text.rows}
        gap = text.memory % largest if len(firsts) == 1 else largest
        low = min((text.memory - gap) / text.footprint, text.seats / text.stages)
        law, sequences = text.timing, low * text.stages
        prompts = low * text.prompt if text.computes_prompts else 0.0
        tau = law.d0 + law.d1 * low * text.read_footprint + law.d2 * prompts + law.d3 * sequences
        return min(alpha, low / tau), min(alpha, low / tau)
    limit = alpha if model.replica.max_num_batched_tokens is None else 0.985 * alpha
    capped = min(limit, text.rate(1.0, 0.0))
    if local.stable and local.certified and 3 * text.longest * (1 - local.spectral_radius) >= 1:
        return capped, capped
    admitted = min(text.n_star, text.seats / text.stages)
    cycles = collapsed_cycles(model)
    rates = [
        min(
            limit,
            text.rate(min(1.0, cycle.throughput / admitted), cycle.evicted_prompts),
            cycle_throughput_rps(model, cycle),
        )
        for cycle in cycles
    ]
    worst = int(np.argmin(rates))
    return (rates[worst] if cycles[worst].settled else 0.0), capped


@given(models(max_classes=3, max_input=300, max_decode=40, limits=True))
def test_the_rate_is_that_of_the_text(model: ServingModel) -> None:
    """Sums over stages and frequencies, and an adaptive integral, against running sums, an FFT and error functions."""
    found, alpha = recovery(model, stability(model)), sustainable_rate(model)[1]
    assert (found.rate_rps, found.capped_rps) == pytest.approx(by_the_text(model), rel=1e-6, abs=1e-6 * alpha)


@pytest.mark.parametrize(
    "name", ["paper-sic-limit-cycle", "tool-calls-h100", *at_night("two-tier-99-125", "two-tier-100-125")]
)
def test_the_rate_of_shipped_profiles_is_that_of_the_text(name: str) -> None:
    model = profile(name).model
    found = recovery(model, stability(model))
    assert (found.rate_rps, found.capped_rps) == pytest.approx(by_the_text(model), rel=1e-6)


@given(models(max_classes=2, max_input=100, max_decode=20, limits=True))
def test_what_the_rate_is_made_of_is_said(model: ServingModel) -> None:
    """Gap, fluctuations and the state at the rate are those of the text."""
    found, text = recovery(model, stability(model)), Text.of(model)
    if found.fluctuations is None:
        assert found.capped_rps == found.rate_rps
        return
    lossy = found.fluctuations
    assert (lossy.gap_tokens, lossy.evicted_tokens) == pytest.approx((text.gap, text.evicted_kv), rel=1e-6)
    assert 0 <= lossy.kept <= 1
    if found.rate_rps:
        # the worst cycle or the token budget may be below what this state gives
        assert found.rate_rps <= 0.985 * found.throughput / found.iteration_time_s * (1 + 1e-12)
        admitted = min(text.n_star, text.seats / text.stages)
        assert found.lost_tokens == pytest.approx((admitted - found.throughput) * text.footprint)
        assert found.sequences <= text.seats


THREE_LENGTHS = ((100, 20, 0.5), (100, 60, 0.3), (100, 300, 0.2))
PRINTED = [  # mix, α and rate of theory §3, which is careful: factors 1.25 and 1.75, the latter for every eviction
    (
        mix_model(
            (1155, 211, 1.0),
            memory=41_408,
            block_tokens=16,
            prefill="fused",
            timing=Timing(0.0145, 0.25e-6, 85e-6),
        ),
        (3.870, 2.83),
        0.01,
    ),
    (
        mix_model((50, 40, 3.0), (60, 80, 7.0), memory=30_000, prefill="inline", timing=Timing(0.01, 1e-7)),
        (353.3, 282.0),
        3.0,
    ),
    (
        mix_model((1000, 100, 1.0), (2000, 120, 1.0), memory=300_000, timing=Timing(0.012, 0.02e-6, 20e-6)),
        (94.61, 57.3),
        0.1,
    ),
    (mix_model(*THREE_LENGTHS, memory=120_000, prefill="fused", timing=Timing(0.02)), (324.6, 245.5), 0.1),
]


@pytest.mark.parametrize(
    ("model", "printed", "apart"), PRINTED, ids=["one length", "inline", "ready-made", "stuck"]
)
def test_rates_that_theory_prints(model: ServingModel, printed: tuple[float, float], apart: float) -> None:
    """With smaller factors, of fluctuations alone, the rate is no lower, and whole requests still serve more."""
    text, cycles = Text.of(model), simulate_collapsed(model)
    assert sustainable_rate(model)[1] == pytest.approx(printed[0], rel=2e-4)
    kept = min(one.throughput for one in cycles) / text.n_star
    as_printed = text.rate(kept, 1.75 * max(one.evicted_prompts for one in cycles), 1.25, 1.75)
    assert as_printed == pytest.approx(printed[1], abs=apart)
    found = recovery(model, stability(model)).rate_rps
    assert found >= as_printed * (1 - 1e-6)
    served = measure(Server.of(model), EMPTY, 0, completions=1_000_000)
    assert found < served.rate_rps - 2 * served.standard_error_rps


def test_traffic_of_wide_lengths_recovers_from_anything() -> None:
    """Theory §3: 13.138 requests/s, all that is sustainable."""
    chat = mix_model(
        (800, 50, 0.3),
        (800, 250, 0.5),
        (800, 600, 0.2),
        memory=450_000,
        block_tokens=16,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        prefill="fused",
        timing=Timing(0.02, 0.03e-6, 60e-6),
    )
    found = recovery(chat, stability(chat))
    assert found.rate_rps == found.capped_rps == sustainable_rate(chat)[1] == pytest.approx(13.138, abs=5e-4)


def test_the_least_rate_of_all_attractors_counts_not_the_least_throughput(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cycle that keeps more but computes more again is the worse of the two where prompts are expensive."""
    model = mix_model((100, 4, 1.0), (120, 6, 1.0), memory=10_000, timing=Timing(0.01, d2=1e-4))
    local, text = stability(model), Text.of(model)
    keeps, evicts = ((share * text.n_star, prompts) for share, prompts in ((0.8, 10.0), (0.9, 4000.0)))

    def cycle(throughput: float, prompts: float) -> Cycle:
        return Cycle(throughput, prompts / 110, prompts, 90.0, 10_000.0, None)

    for both in (keeps, evicts), (evicts, keeps):
        found = [cycle(*one) for one in both]
        monkeypatch.setattr("kvplan.analysis.recovery.collapsed_cycles", lambda _, found=found: found)
        worse = text.rate(0.9, 4000.0)
        assert text.rate(0.8, 10.0) > worse
        assert recovery(model, local).rate_rps == pytest.approx(worse, rel=1e-6)
        # and nothing is promised where that run has not settled
        unsettled = [one._replace(settled=one.throughput != evicts[0]) for one in found]
        monkeypatch.setattr("kvplan.analysis.recovery.collapsed_cycles", lambda _, found=unsettled: found)
        assert recovery(model, local).rate_rps == 0


def test_no_more_is_promised_than_a_cycle_itself_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock: a cycle of very many small requests in flight can be slower than what is computed from moments."""
    model = mix_model((100, 4, 1.0), (120, 6, 1.0), memory=10_000, timing=Timing(0.01, d3=1e-3))
    throughput = 0.9 * Text.of(model).n_star
    crowded = Cycle(throughput, 0.0, 0.0, 100_000.0, 10_000.0, None)
    monkeypatch.setattr("kvplan.analysis.recovery.collapsed_cycles", lambda _: [crowded])
    served = throughput / (0.01 + 1e-3 * 100_000)
    assert recovery(model, stability(model)).rate_rps == pytest.approx(served, rel=1e-12)


def test_a_token_budget_leaves_a_margin_only_where_eviction_is_possible() -> None:
    """0.985·α at most; α where the longest requests all fit, and where requests never outgrow a page."""
    geometric = tuple(range(1, 41))
    light = {"memory": 400_000, "prefill": "fused", "timing": Timing(0.01)}
    for limits, part in (({}, 1.0), ({"max_num_batched_tokens": 200}, 0.985)):
        wide = mix_model((10, geometric, 1.0), **light, **limits)
        found, alpha = recovery(wide, stability(wide)).rate_rps, sustainable_rate(wide)[1]
        assert found <= part * alpha * (1 + 1e-12)
        if limits:  # which binds long before memory does
            assert found == pytest.approx(part * alpha, rel=1e-12)
            fit = replace(wide, replica=replace(wide.replica, max_num_seqs=8000))
            assert recovery(fit, stability(fit)).rate_rps == sustainable_rate(fit)[1]
            one_page = replace(wide, replica=replace(wide.replica, block_tokens=64))
            assert recovery(one_page, stability(one_page)).rate_rps == sustainable_rate(one_page)[1]


@pytest.mark.parametrize("seats", [None, 40])
def test_weights_that_never_grow_leave_less_than_a_request_empty(seats: int | None) -> None:
    """One weight: what is left over of memory. Two: less than the larger first weight, which whole requests confirm."""
    one = mix_model((5, 9, 1.0), memory=1000, block_tokens=16, max_num_seqs=seats, timing=Timing(1.0))
    assert recovery(one, stability(one)).rate_rps == pytest.approx(min(62, seats or 62) / 9, rel=1e-12)
    two = mix_model(
        (5, 9, 1.0), (30, 2, 2.0), memory=1000, block_tokens=16, max_num_seqs=seats, timing=Timing(1.0)
    )
    promised = min((62 * 16 - 32) / (9 * 16 / 3 + 2 * 2 * 32 / 3), (seats or math.inf) / (9 / 3 + 2 * 2 / 3))
    assert recovery(two, stability(two)).rate_rps == pytest.approx(promised, rel=1e-12)
    assert measure(Server.of(two), EMPTY, 0, completions=50_000).rate_rps >= promised * (1 - 1e-3)
