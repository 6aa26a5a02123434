"""Whether two runs that `measure` proposes settle a plan, of replicas whose constants are drawn from what is believed.

    PYTHONPATH=tools:tests python -m validation.round_trip 400

A case draws a service, the constants of its replica, and the law's misfit, which fades with the distance of loads. Two
runs at the concurrencies that are proposed, one after the other, are simulated, written as a load generator writes
them, imported, and planned with. Replicas are the fewest by the short runs of `plan`, at the engine's token budget.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from result_files import SGLANG, VLLM, aiperf, guidellm, metric, report, stage, summary

from kvplan.api import import_files
from kvplan.errors import UsageError
from kvplan.ingest.timing.belief import FADES, MISFIT, NOISE, widths
from kvplan.ingest.timing.equations import Kind
from kvplan.model import FloatArray
from kvplan.planning.measuring import Design
from kvplan.profile.reading import Profile
from kvplan.units import format_percent

_KINDS = (("Qwen3-14B", "H100"), ("Llama-3.1-8B", "H100"), ("Llama-3.1-8B", "B200"), ("Qwen3-32B", "B200"))
_LENGTHS = ((1800, 350), (500, 200), (4000, 150), (300, 600))
_MOST = 4  # replicas of a plan that is judged


class Outcome(NamedTuple):
    """Replicas by the true constants and by those fitted, and whether the stated interval has the true rate."""

    truth: int
    found: int
    holds: bool


class Run(NamedTuple):
    """A closed loop as it was measured."""

    concurrency: int
    inputs: int
    outputs: int
    requests: int
    ttft_s: float
    tpot_s: float

    @property
    def e2e_s(self) -> float:
        return self.ttft_s + self.tpot_s * (self.outputs - 1)


def outcomes(number: int, first: int = 0) -> Iterator[Outcome]:
    """Judge so many plans of at most four replicas."""
    seed = first
    while number:
        if (outcome := case(np.random.default_rng(seed))) is not None and outcome.truth <= _MOST:
            number -= 1
            yield outcome
        seed += 1


def case(rng: np.random.Generator) -> Outcome | None:
    """One plan; None where no number of replicas is enough."""
    estimated, design = service(rng)
    off = widths(design.names) * rng.standard_normal(len(design.names))
    law = times_over(estimated, dict(zip(design.names, np.exp(off).tolist(), strict=True)))
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _judged(estimated, design, law, Path(folder), rng)
    except UsageError as error:
        if "no number of replicas" in str(error):
            return None
        raise


def service(rng: np.random.Generator) -> tuple[Profile, Design]:
    """An estimated replica with a limit on TPOT that it meets with some requests at once, and where it ends."""
    model, gpu = _KINDS[rng.integers(len(_KINDS))]
    prompt, answer = _LENGTHS[rng.integers(len(_LENGTHS))]
    traffic = {"name": "all", "input": prompt, "decode": answer, "rate": 1.0}
    alone = import_files(model=model, gpu=gpu).profile.changed({("classes",): [traffic]})
    limit_s = alone.model.timing.d0 * rng.uniform(1.4, 2.5)
    one = alone.changed({("slo",): {"tpot_s": {"mean": f"{limit_s} s"}}})
    design = Design(one)
    return one.changed({("classes", 0, "rate"): design.rate_rps * rng.uniform(0.8, 3.5)}), design


def times_over(profile: Profile, factors: Mapping[str, float]) -> Profile:
    """A replica whose constants are each so many times as large."""
    model = profile.model
    every = {name: getattr(model.timing, name, model.request_overhead_s) * f for name, f in factors.items()}
    return profile.changed({("timing", name): f"{value} s" for name, value in every.items()})


def _judged(
    estimated: Profile, design: Design, law: Profile, folder: Path, rng: np.random.Generator
) -> Outcome:
    (folder / "plan.toml").write_text(estimated.text)
    by_law = Design(law)
    misfits = _Misfits([math.log(by_law.at)], rng.standard_normal(3))
    slower = math.exp(misfits.last)
    truth = Design(times_over(law, {name: slower for name in by_law.names if name != "request_overhead"}))
    write = WRITERS[rng.integers(len(WRITERS))]
    files: list[Path] = []
    found = design
    for number in range(2):
        load = by_law.loop(found.at)
        times = by_law.times(load.concurrency or 1)
        misfits.places.append(math.log(load.concurrency or 1))
        ttft_s = times[Kind.TTFT] * math.exp(NOISE[Kind.TTFT] * rng.standard_normal())
        tpot_s = times[Kind.TPOT] * math.exp(misfits.last)
        seen = Run(load.concurrency or 1, load.inputs[0], load.outputs[0], load.requests or 1, ttft_s, tpot_s)
        files.append(folder / f"run-{number}.json")
        files[-1].write_text(json.dumps(write(seen)))
        found = Design(import_files(files, base=folder / "plan.toml").profile)
    low, high = found.interval(found.first_band)
    return Outcome(_fewest(truth), _fewest(found), low <= truth.rate_rps <= high)


class _Misfits(NamedTuple):
    """ln(measured/law) of TPOT at several ln(concurrency): normal, and the less alike the further apart they are."""

    places: list[float]
    normal: FloatArray

    @property
    def last(self) -> float:
        """At the last of the places."""
        apart = np.abs(np.subtract.outer(self.places, self.places))
        alike = np.exp(-apart / FADES) + 1e-9 * np.eye(len(self.places))
        return float(MISFIT * (np.linalg.cholesky(alike)[-1] @ self.normal[: len(self.places)]))


def _fewest(design: Design) -> int:
    setting = replace(design.kind, fixed_tokens=design.budget).fewest()
    if setting is None:
        raise UsageError("no number of replicas is enough")
    return setting.replicas


# -- results, as tools write them -------------------------------------------------------------------------------------


def _vllm(run: Run) -> dict[str, Any]:
    return VLLM | _benchmark(run) | {"mean_e2el_ms": 1e3 * run.e2e_s}


def _sglang(run: Run) -> dict[str, Any]:
    drawn = {"random_input_len": run.inputs, "random_output_len": run.outputs, "random_range_ratio": 1.0}
    return SGLANG | _benchmark(run) | drawn | {"backend": "vllm", "mean_e2e_latency_ms": 1e3 * run.e2e_s}


def _benchmark(run: Run) -> dict[str, Any]:
    return {
        "completed": run.requests,
        "max_concurrency": run.concurrency,
        "total_input_tokens": run.inputs * run.requests,
        "total_output_tokens": run.outputs * run.requests,
        "duration": run.requests * run.e2e_s / run.concurrency,
        "request_throughput": run.concurrency / run.e2e_s,
        "mean_ttft_ms": 1e3 * run.ttft_s,
        "mean_tpot_ms": 1e3 * run.tpot_s,
    }


def _guidellm(run: Run) -> dict[str, Any]:
    metrics = {
        "requests_per_second": summary(run.concurrency / run.e2e_s),
        "request_latency": summary(run.e2e_s),
        "prompt_token_count": summary(run.inputs),
        "output_token_count": summary(run.outputs),
        "time_to_first_token_ms": summary(1e3 * run.ttft_s),
        "inter_token_latency_ms": summary(1e3 * run.tpot_s),
    }
    return report(guidellm({"type_": "concurrent", "streams": run.concurrency}, **metrics))


def _aiperf(run: Run) -> dict[str, Any]:
    metrics = {
        "request_throughput": metric(run.concurrency / run.e2e_s, "requests/sec"),
        "request_latency": metric(1e3 * run.e2e_s),
        "request_count": metric(run.requests, "requests"),
        "time_to_first_token": metric(1e3 * run.ttft_s),
        "inter_token_latency": metric(1e3 * run.tpot_s),
        "output_sequence_length": metric(run.outputs, "tokens", std=0.0),
        "input_sequence_length": metric(run.inputs, "tokens", std=0.0),
    }
    return aiperf({"loadgen": {"concurrency": run.concurrency}}, **metrics)


def _inference_perf(run: Run) -> dict[str, Any]:
    said = stage(1.0, 1.0, run.concurrency / run.e2e_s, run.e2e_s)
    said["load_summary"] = {"concurrency": run.concurrency}
    said["successes"] |= {
        name: {"mean": float(n)} for name, n in (("prompt_len", run.inputs), ("output_len", run.outputs))
    }
    said["successes"]["count"] = run.requests
    said["successes"]["latency"]["time_to_first_token"]["mean"] = run.ttft_s
    return said


WRITERS = (_vllm, _sglang, _guidellm, _aiperf, _inference_perf)


def main() -> None:
    """Judge so many plans, and print what came out."""
    judged = list(outcomes(int(sys.argv[1]) if len(sys.argv) > 1 else 400))
    apart = [abs(one.found - one.truth) for one in judged]
    for what, some in (("equal", 0), ("off by one", 1)):
        print(f"{what}: {format_percent(apart.count(some) / len(apart))}")
    print(f"off by more: {sum(some > 1 for some in apart)} of {len(apart)}")
    print(f"intervals that hold: {format_percent(sum(one.holds for one in judged) / len(judged))}")


if __name__ == "__main__":
    main()
