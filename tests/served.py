"""A simulated service and what its /metrics say: counters of a run at some time, with an engine's names and buckets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kvplan.model import FloatArray, Plan, ServingModel
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.policies import engine_settings
from kvplan.simulation.policies.protocol import Scenario
from kvplan.study.trial import stretched

_ONE_TWO_FIVE = tuple(float(f"{digit}e{power}") for power in range(6) for digit in (1, 2, 5))
_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 1.0, 2.5, 10.0)
STARTED_S = 1.7e9  # when the process began, seconds since 1970


@dataclass(frozen=True)
class Names:
    """What an engine calls its counters; the buckets of its lengths."""

    prompts: str
    generations: str
    itl: str
    requests: str
    preemptions: str | None
    hits: tuple[str, str]
    edges: tuple[float, ...]


VLLM = Names(
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:inter_token_latency_seconds",
    "vllm:request_success_total",
    "vllm:num_preemptions_total",
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    _ONE_TWO_FIVE[:14],
)
SGLANG = Names(
    "sglang:prompt_tokens_histogram",
    "sglang:generation_tokens_histogram",
    "sglang:inter_token_latency_seconds",
    "sglang:num_requests_total",
    None,  # before 0.5
    ("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
    (100, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 7000, 10_000, 15_000, 20_000, 30_000, 66_000),
)


class Service:
    """A run of so many seconds of a profile's engine; counters are those of the requests and gaps until some time."""

    def __init__(self, model: ServingModel, seconds: float, seed: int = 0) -> None:
        names = tuple(c.name for c in model.classes)
        self.requests = generate(model, Load(requests=None, horizon_s=seconds).on(model), seed)
        scenario = Scenario(model, Plan(), self.requests, names, seed)
        self.run = Job(engine_settings(model), scenario, seconds).run()

    def counts(self, at_s: float) -> "Counts":
        run, requests = self.run, self.requests
        first, end = run.first_token_s, run.finish_s
        done = end <= at_s  # never, where it is NaN
        gaps = requests.iterations() - 1
        known = ~np.isnan(end) & (first <= at_s) & (gaps > 0)
        passed = np.clip((at_s - first[known]) / (end - first)[known], 0.0, 1.0)
        tokens = np.floor(passed * gaps[known] + 1e-9)
        begun = first <= at_s
        hits = 0.0 if run.found is None else float(run.found.hit_tokens[begun].sum())
        return Counts(
            requests.input_tokens[done].astype(np.float64),
            requests.decode_tokens[done].astype(np.float64),
            float(tokens @ ((end - first)[known] / gaps[known])),
            float(tokens.sum()),
            int(run.evictions[done].sum()),
            hits,
            float(requests.input_tokens[begun].sum()),
        )


@dataclass(frozen=True)
class Counts:
    """What has been counted until some time; lengths of those who are done."""

    inputs: FloatArray
    outputs: FloatArray
    gap_s: float
    gaps: float
    preemptions: int
    hits: float
    looked_up: float

    def text(self, names: Names = VLLM, at_s: float | None = None, labels: str = 'model_name="m"') -> str:
        """Write the answer of /metrics; `at_s` stamps its lines, seconds after the process began."""
        stamp = "" if at_s is None else f" {(STARTED_S + at_s) * 1000:.0f}"
        counters: Mapping[str, float] = {
            names.requests: self.inputs.size,
            names.hits[0]: self.hits,
            names.hits[1]: self.looked_up,
            f"{names.itl}_sum": self.gap_s,
            f"{names.itl}_count": self.gaps,
            **({} if names.preemptions is None else {names.preemptions: self.preemptions}),
        }
        lines = [f"{name}{{{labels}}} {value!r}{stamp}" for name, value in counters.items()]
        for name, lengths in ((names.prompts, self.inputs), (names.generations, self.outputs)):
            lines += _histogram(name, lengths, names.edges, labels, stamp)
        return "\n".join([*lines, f"process_start_time_seconds {STARTED_S!r}"]) + "\n"


def _histogram(
    name: str, values: FloatArray, edges: tuple[float, ...], labels: str, stamp: str
) -> Iterator[str]:
    for edge in edges:
        yield f'{name}_bucket{{le="{edge:.1f}",{labels}}} {np.count_nonzero(values <= edge)}{stamp}'
    yield f'{name}_bucket{{le="+Inf",{labels}}} {values.size}{stamp}'
    yield f"{name}_count{{{labels}}} {values.size}{stamp}"
    yield f"{name}_sum{{{labels}}} {float(values.sum())!r}{stamp}"


def longer_outputs(model: ServingModel, times: float) -> ServingModel:
    """Make every answer so many times as long."""
    return replace(
        model,
        classes=tuple(
            replace(c, decode_tokens=tuple(round(times * d) for d in c.decode_tokens), decode_law=None)
            for c in model.classes
        ),
    )


def longer_inputs(model: ServingModel, times: float) -> ServingModel:
    """Make every prompt so many times as long."""
    return replace(
        model,
        classes=tuple(
            replace(
                c,
                input_tokens=round(times * c.input_tokens),
                prompts=tuple(p._replace(tokens=round(times * p.tokens)) for p in c.prompts),
                input_law=None,
            )
            for c in model.classes
        ),
    )


def slower(model: ServingModel, times: float) -> ServingModel:
    """Make every iteration take so many times as long."""
    return replace(model, timing=stretched(model.timing, times))
