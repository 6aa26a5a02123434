"""Constants of a law are found again in logs that it made, in every format with times, or called undetermined."""

import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_files import FORWARD_PASS
from tiers import examples

from kvplan.ingest.timing.fit import fit_measured
from kvplan.ingest.timing.reading import read_groups
from kvplan.model import Timing

CAPACITY, LINES, FULL = 400_000, 2_000, 256
Row = tuple[int, int, int, float]  # KV tokens, prefill tokens, sequences, seconds


def decades(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(np.log(low), np.log(high)).map(lambda x: float(np.exp(x)))


LAWS = st.builds(
    Timing, d0=decades(5e-3, 5e-2), d1=decades(3e-8, 1e-6), d2=decades(2e-5, 3e-4), d3=decades(1e-5, 3e-4)
)


def rows(law: Timing, rng: np.random.Generator, noise: float, *, prompts: bool) -> list[Row]:
    """Iterations from one request to a full batch, half of them with prompts."""
    sequences = np.exp(rng.uniform(0, np.log(FULL), LINES)).round().astype(int)
    prefill = np.where(rng.random(LINES) < 0.5 * prompts, rng.integers(1, 1500, LINES), 0)
    lengths = rng.uniform(200, 3000, LINES)
    kv_tokens = np.clip((sequences * lengths).round().astype(int), prefill, CAPACITY)
    seconds = law.d0 + law.d1 * kv_tokens + law.d2 * prefill + law.d3 * sequences
    noisy = seconds * np.exp(noise * rng.standard_normal(LINES))
    columns = (kv_tokens, prefill, sequences, noisy)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def vllm(some: list[Row]) -> Iterator[str]:
    yield "INFO 07-28 06:40:00 [api_server.py:1839] vLLM API server version 0.19.0"
    for k, p, b, tau in some:
        yield (
            f"INFO 07-28 06:40:59 [loggers.py:118] Engine 000: Avg prompt throughput: {p / tau:.1f} tokens/s, Avg "
            f"generation throughput: {b / tau:.1f} tokens/s, Running: {b} reqs, Waiting: 0 reqs, GPU KV cache usage: "
            f"{100 * k / CAPACITY:.1f}%, Prefix cache hit rate: 0.0%"
        )


def vllm_v0(some: list[Row]) -> Iterator[str]:
    for k, p, b, tau in some:
        yield (
            f"INFO 02-19 10:00:00 metrics.py:455] Avg prompt throughput: {p / tau:.1f} tokens/s, Avg generation "
            f"throughput: {b / tau:.1f} tokens/s, Running: {b} reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache "
            f"usage: {100 * k / CAPACITY:.1f}%, CPU KV cache usage: 0.0%."
        )


def vllm_iterations(some: list[Row]) -> Iterator[str]:
    for number, (k, p, b, tau) in enumerate(some):
        context = int(p > 0)
        yield (
            f"(EngineCore_DP0 pid=1) INFO 07-08 00:00:02 [core.py:359] Iteration({number}): {context} context "
            f"requests, {p} context tokens, {b - context} generation requests, {b - context} generation tokens, "
            f"iteration elapsed time: {1e3 * tau:.2f} ms, GPU KV cache usage: {100 * k / CAPACITY:.1f}%"
        )


def sglang(some: list[Row]) -> Iterator[str]:
    """Forty decode batches from line to line, and eight that prefill where there are prompts."""
    for k, p, b, tau in some:
        prefills = 8 * (p > 0)
        for _ in range(prefills):
            new = p * (40 + prefills) // prefills
            yield f"[2026-04-08 14:05:20 TP0] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: 0"
        rate = 40 * b / (tau * (40 + prefills))
        yield (
            f"[2026-04-08 14:05:21 TP0] Decode batch, #running-req: {b}, #token: {k}, token usage: "
            f"{k / CAPACITY:.2f}, cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0"
        )


def table(some: list[Row]) -> Iterator[str]:
    yield "kv_tokens,prefill_tokens,sequences,iteration_ms"
    yield from (f"{k},{p},{b},{1e3 * tau:.4f}" for k, p, b, tau in some)


def objects(some: list[Row]) -> Iterator[str]:
    for k, p, b, tau in some:
        yield json.dumps({"kv_tokens": k, "prefill_tokens": p, "sequences": b, "iteration_ms": 1e3 * tau})


def series(some: list[Row]) -> Iterator[str]:
    yield "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct"
    for second, (k, p, b, tau) in enumerate(some):
        yield f"{second},{p / tau:.2f},{b / tau:.2f},{b},0,{100 * k / CAPACITY:.2f}"


def forward_passes(some: list[Row]) -> Iterator[str]:
    for k, p, b, tau in some:
        scheduled = FORWARD_PASS["scheduled_requests"] | {
            "num_prefill_requests": 0,
            "sum_prefill_tokens": p,
            "sum_prefill_kv_tokens": 0,
            "num_decode_requests": b,
            "sum_decode_kv_tokens": k - p,
        }
        yield json.dumps(FORWARD_PASS | {"scheduled_requests": scheduled, "wall_time": tau})


FORMATS: tuple[Callable[[list[Row]], Iterator[str]], ...] = (
    vllm,
    vllm_v0,
    vllm_iterations,
    sglang,
    table,
    objects,
    series,
    forward_passes,
)


@pytest.mark.parametrize("written", FORMATS, ids=lambda written: written.__name__)
@examples(2)
@given(law=LAWS, seed=st.integers(0, 2**32 - 1), noise=st.sampled_from([0.0, 0.1]), prompts=st.booleans())
def test_every_constant_is_found_or_called_undetermined(
    written: Callable[[list[Row]], Iterator[str]],
    tmp_path_factory: pytest.TempPathFactory,
    law: Timing,
    seed: int,
    noise: float,
    prompts: bool,
) -> None:
    path = tmp_path_factory.mktemp("log") / "measured"
    some = rows(law, np.random.default_rng(seed), noise, prompts=prompts)
    path.write_text("".join(f"{line}\n" for line in written(some)))
    (measured,) = read_groups([path], capacity_tokens=CAPACITY)
    fit = fit_measured(measured, None)
    for name in ("d0", "d1", "d2", "d3"):
        if name not in fit.undetermined:
            assert getattr(fit.timing, name) == pytest.approx(getattr(law, name), rel=0.05 if noise else 0.02)
    assert ("d2" in fit.undetermined) >= (not prompts)
    assert "d0" not in fit.undetermined or law.d0 < 0.3 * np.mean([tau for *_, tau in some])
