"""A law with a knee and attention of prompts: formulas against runs, and prompts in an iteration against a queue."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from tiers import is_night

from kvplan import simulate
from kvplan.analysis.equilibrium import equilibrium, sustainable_rate
from kvplan.model import FloatArray, Prompts, ServingModel
from kvplan.model.lengths import Lengths
from kvplan.profile.reading import Profile, parse_profile

REQUESTS = 30_000
LIGHT = 0.6  # of what is sustainable


def random_profile(seed: int) -> Profile:
    """A replica on which reading the weights takes as long as arithmetic at the knee; lengths vary in every other."""
    rng = np.random.default_rng(seed)
    knee, token_s = int(rng.integers(50, 400)), 10 ** rng.uniform(-5.3, -4)

    def lengths(low: float, high: float) -> str:
        mean = int(10 ** rng.uniform(low, high))
        return (
            f"{{ lognormal = {{ mean = {mean}, cv = {rng.uniform(0.3, 1.2):.2f} }} }}"
            if seed % 2
            else str(mean)
        )

    classes = "".join(
        f"[[classes]]\nname = 'class {i}'\ninput = {lengths(1.5, 3.7)}\ndecode = {lengths(1.3, 3.0)}\n"
        f"rate = {rng.uniform(0.2, 1):.3f}\n"
        for i in range(rng.integers(1, 4))
    )
    text = f"""
schema = 1
name = "a knee"
[gpu]
memory_tokens = 50_000_000
block_tokens = 16
max_num_seqs = {rng.choice([8, 16, 32, 64, 128])}
max_num_batched_tokens = {rng.choice([512, 2048, 8192])}
prefix_caching = false
[timing]
d0 = "{1e3 * knee * token_s * rng.uniform(1.0, 1.6):.5g} ms"
d1 = "{10 ** rng.uniform(-2, -0.5):.4g} us"
d3 = "3 us"
d5 = "{1e6 * token_s:.4g} us"
knee_tokens = {knee}
d6 = "{1e9 * token_s * rng.uniform(1e-5, 6e-5):.4g} ns"
{classes}"""
    return parse_profile(text.encode(), "knee.toml")


def at_rate(profile: Profile, rate_rps: float) -> Profile:
    model = profile.model
    factor = rate_rps / model.total_rate_rps
    classes = tuple(replace(c, rate_rps=c.rate_rps * factor) for c in model.classes)
    return replace(profile, known=replace(model, classes=classes))


class Off(NamedTuple):
    """Relative errors of the iteration time at a light load, and of what is served under a flood."""

    iteration: float
    served: float


def off(seed: int) -> Off:
    profile = random_profile(seed)
    _, sustainable = sustainable_rate(profile.model)
    light, flooded = (at_rate(profile, factor * sustainable) for factor in (LIGHT, 2.5))
    runs = [simulate(p, "vllm", horizon=REQUESTS / sustainable).results[0] for p in (light, flooded)]
    tau = equilibrium(light.model).iteration_time_s
    assert tau is not None
    assert runs[0].figures["iteration_time_s"] is not None
    return Off(
        tau / runs[0].figures["iteration_time_s"] - 1, sustainable / runs[1].figures["throughput_rps"] - 1
    )


def test_formulas_say_what_runs_do() -> None:
    """Iteration times within .5 % in the median, nine in ten within 3 %; little more is served than can be sustained.

    Less is, where a scheduler that admits fewer at a time is faster, and where equal requests stay in step.
    """
    night = is_night()
    errors = [off(seed) for seed in range(100 if night else 10)]
    iterations, served = np.array(errors).T
    assert np.median(np.abs(iterations)) <= (0.005 if night else 0.01)
    assert np.quantile(np.abs(iterations), 0.9) <= 0.03
    assert np.median(np.abs(served)) <= 0.015
    assert served.min() >= -0.02


def queued(count: FloatArray, tokens: FloatArray, most: float, level: float) -> float:
    """E[(P - level)⁺] of an iteration that computes `most` at most of what waits, Poisson prompts arriving in each."""
    rng, waiting, total = np.random.default_rng(0), 0.0, 0.0
    arrivals = rng.poisson(count, (100_000, count.size)) @ tokens
    for tokens_now in arrivals.tolist():
        computed = min(waiting + tokens_now, most)
        waiting += tokens_now - computed
        total += max(computed - level, 0.0)
    return total / arrivals.size


def test_prompts_longer_than_the_budget_fill_iterations_one_after_the_other() -> None:
    """Against a queue: within 2 % of all prefill tokens in the median, and 10 % at worst; as one lump up to 40 %."""
    rng, errors = np.random.default_rng(1), []
    for _ in range(30):
        tokens = np.round(10 ** rng.uniform(1.5, 3.7, rng.integers(1, 4)))
        most = float(rng.choice([300, 500, 2000, 8000]))
        level = most * rng.uniform(0.05, 0.7)
        count = rng.random(tokens.size) / tokens
        count *= most * rng.uniform(0.05, 0.95) / (count @ tokens)
        simulated = queued(count, tokens, most, level)
        errors.append(abs(Prompts(count, tokens, most).excess(level) - simulated) / (count @ tokens))
    assert np.median(errors) <= 0.02
    assert max(errors) <= 0.1


@pytest.mark.parametrize("found", [0, 300])
def test_a_law_of_lengths_has_the_pairs_of_each_length(found: int) -> None:
    """E[Σ_{k ≤ s} k] over the law, by counting; with a shared prompt that is always found, without its own."""
    law = Lengths.uniform(301, 1300)
    shared = f"shared = {found}" if found else ""
    text = f"""
schema = 1
name = "lengths"
[gpu]
memory_tokens = 1_000_000
[timing]
d0 = "10 ms"
d6 = "2 ns"
[[classes]]
name = "a"
input = {{ uniform = [301, 1300] }}
decode = 50
rate = 20
{shared}"""
    model = parse_profile(text.encode(), "lengths.toml").model
    counted = float(np.mean([sum(range(found + 1, s + 1)) for s in law.values.tolist()]))
    assert prompt_s(model) / model.timing.d6 == pytest.approx(counted, rel=2e-3)


def prompt_s(model: ServingModel) -> float:
    """Seconds of a request's prompt, from the equilibrium: τ = d0/(1 - λ·c)."""
    tau = equilibrium(model).iteration_time_s
    assert tau is not None
    return (1 - model.timing.d0 / tau) / model.total_rate_rps
