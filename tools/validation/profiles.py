"""Profiles to judge: those of a directory, and plausible ones that follow from a number."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from kvplan.engine import Engine
from kvplan.model import Prefill, ServingModel
from kvplan.profile.reading import load_profile, parse_profile

RANDOM = "random"


@dataclass(frozen=True)
class Case:
    """A profile, and a digest of its text, by which its truths are kept."""

    name: str
    model: ServingModel
    digest: str


def of_engine(cases: Iterable[Case], engine: Engine) -> Iterator[Case]:
    """Those whose prompts an engine computes, on another one."""
    for case in cases:
        if case.model.replica.prefill is Prefill.FUSED:
            yield replace(
                case, name=f"{case.name}:{engine.admission}", model=replace(case.model, engine=engine)
            )


def in_directory(directory: Path) -> Iterator[Case]:
    """Every profile of a directory, by name."""
    for path in sorted(directory.glob("*.toml")):
        model = load_profile(str(path), stdin=BytesIO()).model
        yield Case(path.stem, model, _digest(path.read_text("utf-8")))


def random_cases(first: int, many: int) -> Iterator[Case]:
    """The random profiles of numbers from `first` on."""
    for number in range(first, first + many):
        written = text(number)
        model = parse_profile(written.encode(), f"{RANDOM}-{number}").model
        yield Case(f"{RANDOM}-{number}", model, _digest(written))


def text(number: int) -> str:
    """A profile in TOML: an engine's limits, memory for 3 to 600 mean requests, and one to six classes."""
    rng = np.random.default_rng([39, number])
    convention = str(rng.choice(["fused", "inline", "disaggregated"], p=[0.7, 0.15, 0.15]))
    block = int(rng.choice([1, 16, 32, 64], p=[0.15, 0.6, 0.15, 0.1]))
    seats = int(rng.choice([0, 64, 128, 256, 1024]))
    budget = int(rng.choice([0, 2048, 4096, 8192, 16384])) if convention == "fused" else 0
    classes = [_class(rng) for _ in range(int(rng.integers(1, 7)))]
    shares = rng.dirichlet(np.full(len(classes), 1.5))
    peak = max(s + max(decode) for s, decode in classes)
    held = sum(p * _held(s, decode) for p, (s, decode) in zip(shares, classes, strict=True))
    memory = max(int(held * _log_uniform(rng, 3, 600)), int(1.2 * peak)) + 3 * block
    d0 = _log_uniform(rng, 0.004, 0.06)
    per_prompt = _log_uniform(rng, 5e-6, 3e-4)
    timing = {"d0": d0, "d1": _log_uniform(rng, 1e-8, 6e-7), "d2": per_prompt}
    if rng.random() < 0.7:
        timing["d3"] = _log_uniform(rng, 5e-6, 1e-4)
    if rng.random() < 0.15:
        timing["d4"] = d0 * rng.uniform(0.02, 0.2)
    if rng.random() < 0.15:
        timing |= {"d5": per_prompt * rng.uniform(0.3, 2), "knee_tokens": int(rng.integers(64, 1024))}
    lines = ["schema = 1", f'name = "{RANDOM} {number}"', "[gpu]"]
    gpu = {
        "memory_tokens": memory,
        "block_tokens": block,
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget,
    }
    lines += [f"{key} = {value}" for key, value in gpu.items() if value]
    lines += ["prefix_caching = false", f'prefill = "{convention}"', "[timing]"]
    lines += [f"{key} = {value!r}" for key, value in timing.items()]
    lines += ["[workload]", "rate = 1.0"]
    for i, (p, (s, decode)) in enumerate(zip(_sum_to_one(shares), classes, strict=True)):
        table = "{ " + ", ".join(f"{d} = {w}" for d, w in decode.items()) + " }"
        written = str(next(iter(decode))) if len(decode) == 1 else table
        lines += ["[[classes]]", f'name = "c{i}"', f"input = {s}", f"decode = {written}", f"share = {p!r}"]
    return "\n".join(lines) + "\n"


def _class(rng: np.random.Generator) -> tuple[int, dict[int, int]]:
    """Prompt and answers: a number, a few atoms, a grid of a lognormal law's quantiles, or equal steps."""
    prompt = int(_log_uniform(rng, 20, 16_000))
    typical = _log_uniform(rng, 4, 1_500)
    kind = rng.choice(["number", "atoms", "quantiles", "steps"], p=[0.2, 0.25, 0.4, 0.15])
    if kind == "number":
        return prompt, {max(1, int(typical)): 1}
    if kind == "atoms":
        lengths = typical * np.exp(rng.normal(0, 0.8, int(rng.integers(2, 6))))
        return prompt, {max(1, round(float(d))): int(rng.integers(1, 10)) for d in lengths}
    if kind == "steps":
        step = max(1, int(typical / 3))
        return prompt, {step * (i + 1): int(rng.integers(1, 10)) for i in range(int(rng.integers(2, 7)))}
    many = int(rng.integers(6, 25))
    at = ndtri((np.arange(many) + 0.5) / many)
    lengths = typical * np.exp(rng.uniform(0.3, 1.2) * at)
    return prompt, dict.fromkeys(sorted({max(1, round(float(d))) for d in lengths}), 1)


def _held(prompt: int, decode: dict[int, int]) -> float:
    """Memory of a request, averaged over its stay."""
    total = sum(w * d for d, w in decode.items())
    return sum(w * d * (prompt + d / 2) for d, w in decode.items()) / total


def _sum_to_one(shares: Any) -> list[float]:
    rounded = [round(float(p), 6) for p in shares]
    rounded[0] = round(1 - sum(rounded[1:]), 6)
    return rounded


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.4g}")


def _digest(written: str) -> str:
    return sha256(written.encode()).hexdigest()[:16]
