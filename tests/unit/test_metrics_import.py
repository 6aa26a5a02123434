"""Snapshots of metrics: capacity, classes with the right means, rates; what cannot be known is asked for."""

import json
import math
import os
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.lengths import LengthHistogram, Lengths, lengths
from kvplan.ingest.metrics import ServerMetrics, read_metrics
from kvplan.ingest.reader import FileKind
from kvplan.ingest.recognition import kind_of
from kvplan.model import RequestClass

CACHE = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="2588",engine="0"} 1.0\n'
VLLM = ("vllm:request_prompt_tokens", "vllm:request_generation_tokens")
SGLANG = ("sglang:prompt_tokens_histogram", "sglang:generation_tokens_histogram")


def exposed(
    name: str,
    buckets: dict[str, float],
    total: float,
    labels: str = 'model_name="m"',
    created: float | None = None,
) -> str:
    """A histogram as a server exports it; `buckets` holds cumulative counts by upper edge."""
    lines = [f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{le="{edge}",{labels}}} {count}' for edge, count in buckets.items()]
    lines += [f"{name}_count{{{labels}}} {list(buckets.values())[-1]}", f"{name}_sum{{{labels}}} {total}"]
    if created is not None:
        lines.append(f"{name}_created{{{labels}}} {created}")
    return "\n".join(lines) + "\n"


def traffic(
    names: tuple[str, str] = VLLM,
    times: float = 1,
    labels: str = 'model_name="m"',
    created: float | None = None,
) -> str:
    """40 requests: prompts of 5 tokens in the mean, 10 of them up to 2; generations of 60."""
    prompts = {"2.0": 10 * times, "10.0": 40 * times, "+Inf": 40 * times}
    generations = {"20.0": 10 * times, "100.0": 40 * times, "+Inf": 40 * times}
    return exposed(names[0], prompts, 200 * times, labels, created) + exposed(
        names[1], generations, 2400 * times, labels, created
    )


@pytest.fixture
def save(tmp_path: Path) -> "Saved":
    return Saved(tmp_path)


class Saved:
    """Writes snapshots and reads them back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, text: str, name: str = "late.prom") -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def read(self, text: str, interval_s: float | None = 10.0, model: str | None = None) -> ServerMetrics:
        return read_metrics(self(text), interval_s=interval_s, model=model)


def means(classes: tuple[RequestClass, ...]) -> tuple[float, float]:
    """Mean input and mean decode length, by rate."""
    rate = math.fsum(c.rate_rps for c in classes)
    inputs = math.fsum(c.rate_rps * c.input_tokens for c in classes) / rate
    decode = (
        math.fsum(c.rate_rps * np.average(c.decode_tokens, weights=c.decode_weights) for c in classes) / rate
    )
    return inputs, decode


# -- classes, capacity, rates


@pytest.mark.parametrize(("names", "engine"), [(VLLM, "vLLM"), (SGLANG, "SGLang")])
def test_classes_have_the_means_and_the_rate_of_the_histograms(
    save: Saved, names: tuple[str, str], engine: str
) -> None:
    found = save.read(traffic(names))
    assert (found.engine, found.models, found.requests) == (engine, ("m",), 40)
    assert (found.mean_input, found.mean_decode) == (5, 60)
    assert means(found.classes) == pytest.approx((5, 60), rel=0.005)
    assert found.rate_rps == 4
    assert math.fsum(c.rate_rps for c in found.classes) == pytest.approx(4)
    assert found.rate_from == "counters that cover 10 s"
    assert any("independent" in note for note in found.notes)


@pytest.mark.parametrize(
    ("labels", "memory", "block"),
    [
        ('block_size="16",num_gpu_blocks="2588"', 41_408, 16),
        ('block_size="16",num_gpu_blocks="2588",kv_cache_size_tokens="41408"', 41_408, 16),
        ('block_size="16",num_gpu_blocks="2588",kv_cache_size_tokens="20000"', 20_000, 16),
        ('block_size="16",num_gpu_blocks="None"', None, None),
    ],
)
def test_vllm_capacity_is_blocks_times_their_size_or_what_it_states(
    save: Saved, labels: str, memory: int | None, block: int | None
) -> None:
    found = save.read(f"vllm:cache_config_info{{{labels}}} 1.0\n")
    assert (found.memory_tokens, found.block_tokens) == (memory, block)
    assert (found.classes, found.rate_rps, found.requests, found.mean_input) == ((), None, 0, None)
    assert any("20,000 tokens of KV" in note for note in found.notes) == (memory == 20_000)
    assert any("not exported" in note for note in found.notes) == (memory is None)


def test_sglang_capacity_is_that_of_one_rank_of_one_engine(save: Saved) -> None:
    text = "".join(
        f'sglang:max_total_num_tokens{{dp_rank="{dp}",tp_rank="{tp}"}} {60_000 - 100 * dp - tp}\n'
        for dp in range(2)
        for tp in range(2)
    )
    found = save.read(text + 'sglang:page_size{dp_rank="0"} 64.0\n' + traffic(SGLANG))
    assert (found.memory_tokens, found.block_tokens) == (59_899, 64)
    assert found.rate_rps == 2  # 40 requests in 10 s by two engines
    assert any("from 59,899 to 60,000 tokens of KV; the smallest counts" in note for note in found.notes)


def test_preemptions_are_those_of_the_engine_once(save: Saved) -> None:
    ranks = "".join(f'sglang:num_retracted_requests_total{{tp_rank="{tp}"}} 7\n' for tp in range(4))
    assert save.read(ranks + traffic(SGLANG)).preemptions == 7
    assert (
        save.read("# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total 3\n").preemptions
        == 3
    )
    assert save.read(traffic()).preemptions is None


def test_engines_share_the_traffic_equally(save: Saved) -> None:
    engines = [f'engine="{e}",model_name="m"' for e in range(2)]
    found = save.read(traffic(labels=engines[0]) + traffic(times=3, labels=engines[1]) + CACHE)
    assert (found.requests, found.rate_rps) == (160, 8)
    assert (found.mean_input, found.mean_decode) == (5, 60)
    assert any("2 data-parallel engines" in note for note in found.notes)


def test_engines_with_other_edges_are_summed_where_edges_agree(save: Saved) -> None:
    one, other = 'engine="0"', 'engine="1"'
    text = (
        exposed(VLLM[0], {"10": 4, "20": 6, "+Inf": 6}, 60, one)
        + exposed(VLLM[0], {"10": 2, "40": 4, "+Inf": 4}, 40, other)
        + exposed(VLLM[1], {"10": 6, "+Inf": 6}, 30, one)
        + exposed(VLLM[1], {"10": 4, "+Inf": 4}, 20, other)
    )
    found = save.read(text)
    assert means(found.classes) == pytest.approx((10, 5), rel=0.005)
    assert sum(c.rate_rps for c in found.classes if c.input_tokens <= 10) == pytest.approx(
        0.3, abs=0.03
    )  # 6 of 10


def test_without_histograms_there_are_no_classes_and_a_hint(save: Saved) -> None:
    found = save.read('sglang:num_requests_total{model_name="m"} 30\n')
    assert (found.classes, found.requests, found.rate_rps) == ((), 30, 3)
    assert any("--collect-tokens-histogram" in note for note in found.notes)


# -- other names, other forms

TGI = ("tgi_request_input_length", "tgi_request_generated_tokens")
DYNAMO = ("dynamo_frontend_input_sequence_tokens", "dynamo_frontend_output_sequence_tokens")
TRITON = "nv_trt_llm_kv_cache_block_metrics"


def renamed(change: Callable[[str], str]) -> tuple[str, str]:
    return change(VLLM[0]), change(VLLM[1])


@pytest.mark.parametrize(
    ("names", "engine"),
    [
        (renamed(lambda name: f"ray_{name}"), "vLLM"),
        (renamed(lambda name: f"ray_{name.replace(':', '_')}"), "vLLM"),
        (renamed(lambda name: name.removeprefix("vllm:")), "vLLM"),
        (TGI, "TGI"),
        (DYNAMO, "Dynamo"),
    ],
)
def test_metrics_are_known_under_other_names(save: Saved, names: tuple[str, str], engine: str) -> None:
    path = save(traffic(names).replace("# TYPE", "# HELP"))
    assert kind_of(path) is FileKind.METRICS
    found = read_metrics(path, interval_s=10.0)
    assert (found.engine, found.requests, found.rate_rps, found.mean_input) == (engine, 40, 4, 5)


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        (
            f'{TRITON}{{kv_cache_block_type="tokens_per"}} 64\n{TRITON}{{kv_cache_block_type="max"}} 6239\n',
            "Triton",
        ),
        ("trtllm_kv_cache_max_blocks 6239\ntrtllm_kv_cache_tokens_per_block 64\n", "TensorRT-LLM"),
        (
            'trtllm_kv_cache_max_blocks 6239\ntrtllm_cache_config_info{tokens_per_block="64"} 1\n',
            "TensorRT-LLM",
        ),
        (
            "dynamo_frontend_model_total_kv_blocks 6239\ndynamo_frontend_model_kv_cache_block_size 64\n",
            "Dynamo",
        ),
    ],
)
def test_capacity_is_blocks_times_tokens_of_a_block(save: Saved, text: str, engine: str) -> None:
    found = save.read(text)
    assert (found.engine, found.memory_tokens, found.block_tokens) == (engine, 6239 * 64, 64)


def test_openmetrics_counts_seconds_and_the_time_of_an_exemplar_is_no_samples(save: Saved) -> None:
    """Text of Prometheus counts milliseconds."""
    stamped = {
        "\n": (300, ' 1716000{:03}.5 # {{trace_id="a"}} 67 1999999999.5\n'),
        "": (300, " 1716000{:03}500\n"),
    }
    for seconds, ending in stamped.values():
        texts = [traffic(times=times) for times in (1, 2)]
        early, late = (
            "".join(
                line + ("\n" if line.startswith("#") else ending.format(100 + seconds * later))
                for line in text.splitlines()
            )
            for later, text in enumerate(texts)
        )
        found = read_metrics(save(late), save(early, "early"))
        assert found.rate_from == "two snapshots, 300 s apart"


def answer(texts: dict[float, str], kind: str = "matrix") -> dict[str, Any]:
    """What Prometheus answers to a query of the samples at these times."""
    series: dict[str, list[list[Any]]] = {}
    for at, text in texts.items():
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                series.setdefault(name, []).append([at, value])
    result = [
        {"metric": dict(re.findall(r'(\w+)="([^"]*)"', name)) | {"__name__": name.partition("{")[0]}}
        | ({"values": values} if kind == "matrix" else {"value": values[-1]})
        for name, values in series.items()
    ]
    return {"status": "success", "data": {"resultType": kind, "result": result}}


def test_an_answer_of_prometheus_is_read_at_an_instant_and_over_a_range(save: Saved) -> None:
    at = {1.7e9: traffic(), 1.7e9 + 10: traffic(times=2), 1.7e9 + 20: traffic(times=3)}
    path = save(json.dumps(answer(at)))
    assert kind_of(path) is FileKind.METRICS
    found = read_metrics(path)
    assert (found.requests, found.rate_rps, found.rate_from) == (80, 4, "two snapshots, 20 s apart")
    assert not any("in a part of the range" in note for note in found.notes)
    instant = save.read(json.dumps(answer(at, "vector"), indent=1), interval_s=60)
    assert (instant.requests, instant.rate_rps) == (120, 2)


def test_an_engine_that_came_within_a_range_is_said(save: Saved) -> None:
    of = {name: [traffic(times=n, labels=f'instance="{name}"') for n in (1, 2, 3)] for name in "ab"}
    first, *rest = range(3)
    at = {1.7e9: of["a"][first]} | {1.7e9 + 10 * n: of["a"][n] + of["b"][n] for n in rest}
    found = save.read(json.dumps(answer(at)))
    assert (
        "1 of 2 engines ran in a part of the range alone; the rates are means over all of it" in found.notes
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"status": "error", "error": "query timed out"}, "status: error: query timed out"),
        (
            answer({1.7e9: traffic()}) | {"data": {"resultType": "scalar"}},
            "'scalar'; must be vector or matrix",
        ),
        (
            answer({1.7e9: traffic(times=2), 1.7e9 + 9: traffic()}),
            "went down; was the server restarted in between",
        ),
        (answer({1.7e9: "vllm:x{} 1e"}), "must be a time and a number"),
        (
            {
                "status": "success",
                "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "2"]}]},
            },
            "__name__: missing; ask for the counters and histograms themselves",
        ),
        (answer({1.7e9: traffic() + traffic(TGI)}), "metrics of TGI and of vLLM; give those of one server"),
    ],
)
def test_answers_that_are_no_samples_are_refused(save: Saved, document: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        save.read(json.dumps(document))


# -- several models


def test_several_models_are_an_error_that_lists_them_unless_one_is_named(save: Saved) -> None:
    text = CACHE + traffic(labels='model_name="a"') + traffic(times=2, labels='model_name="b"')
    with pytest.raises(UsageError, match="metrics of several models; name one of a, b"):
        save.read(text)
    found = save.read(text, model="b")
    assert (found.requests, found.models, found.memory_tokens) == (80, ("a", "b"), 41_408)
    with pytest.raises(UsageError, match="no metrics of the model c; there are a, b"):
        save.read(text, model="c")


# -- the time that counters cover


def test_the_rate_since_the_counters_were_created(save: Saved) -> None:
    path = save(traffic(created=1.7e9))
    os.utime(path, (1.7e9, 1.7e9 + 80))
    found = read_metrics(path)
    assert found.rate_rps == 0.5
    assert found.rate_from == "since the counters were created, 80 s"
    assert any("1.33 min since the counters were created" in note for note in found.notes)
    assert any("time of modification" in note for note in found.notes)


def test_counters_without_a_beginning_ask_for_the_time(save: Saved) -> None:
    with pytest.raises(
        UsageError, match=r"give an earlier snapshot and the seconds between the two, or the seconds"
    ):
        save.read(traffic(), interval_s=None)


def test_two_snapshots_give_what_happened_between_them(save: Saved) -> None:
    """The later 40 requests have prompts of 8 tokens, the earlier ones of 5."""
    early = save(traffic() + "vllm:num_preemptions_total 3\n", "early")
    late = (
        exposed(VLLM[0], {"2.0": 10, "10.0": 80, "+Inf": 80}, 520)
        + exposed(VLLM[1], {"20.0": 20, "100.0": 80, "+Inf": 80}, 4800)
        + "vllm:num_preemptions_total 10\n"
    )
    found = read_metrics(save(late), early, interval_s=20)
    assert (found.requests, found.rate_rps, found.preemptions) == (40, 2, 7)
    assert (found.mean_input, found.mean_decode) == (8, 60)
    assert means(found.classes) == pytest.approx((8, 60), rel=0.005)
    assert all(c.input_tokens > 2 for c in found.classes)
    assert found.rate_from == "two snapshots, 20 s apart"
    assert any(sha256(early.read_bytes()).hexdigest() in note for note in found.notes)


def test_two_snapshots_without_a_time_between_ask_for_it(save: Saved) -> None:
    with pytest.raises(UsageError, match="has no timestamps; give the seconds between the snapshots"):
        read_metrics(save(traffic(times=2)), save(traffic(), "early"))


def test_a_restart_between_snapshots_is_an_error(save: Saved) -> None:
    early, late = save(traffic(times=2), "early"), save(traffic())
    with pytest.raises(
        UsageError, match=r"_bucket went down from 20 in .*early to 10; was the server restarted"
    ):
        read_metrics(late, early, interval_s=5)
    gone = save(traffic(labels='model_name="m",engine="1"'), "gone")
    with pytest.raises(UsageError, match="to nothing; was the server restarted"):
        read_metrics(gone, early, interval_s=5)


# -- files that are not metrics


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty; a server's metrics are at /metrics"),
        ("go_goroutines 7\n", "metrics of no engine; looked for those of Dynamo .*SGLang .*vLLM"),
        ("\n<!DOCTYPE html>\n<html></html>", "a web page, and no Prometheus metrics"),
        (traffic() + traffic(SGLANG), "metrics of SGLang and of vLLM"),
    ],
)
def test_what_is_no_snapshot_is_one_clear_error(save: Saved, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        save.read(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("_sum{", "_other{"), "_sum: missing; is the file cut off"),
        (('le="10.0"', 'le="ten"'), "le='ten'; must be a number"),
        (("} 200", "} NaN"), "nan; must be a number, at least 0"),
        (("} 200", "} -1"), "-1; must be a number, at least 0"),
        (("} 200", "} 1e300"), "1e[+]300 cannot be"),
        (
            ('le="10.0",model_name="m"} 40', 'le="10.0",model_name="m"} 4'),
            "counts fall from one bucket to the next",
        ),
        (('num_gpu_blocks="2588"', 'num_gpu_blocks="99999999999999"'), "is absurd"),
    ],
)
def test_values_that_cannot_be_are_an_error(save: Saved, change: tuple[str, str], message: str) -> None:
    text = CACHE + traffic()
    assert change[0] in text
    with pytest.raises(ProfileError, match=message):
        save.read(text.replace(*change))


# -- lengths out of a histogram


def histogram(edges: list[float], counts: list[float], total: float) -> LengthHistogram:
    return LengthHistogram(np.array(edges), np.array(counts), total, math.fsum(counts))


def in_buckets(found: Lengths, edges: list[float]) -> list[float]:
    """Weight up to each edge, from the one before; the last is what is longer."""
    return np.bincount(np.searchsorted(edges, found.tokens), found.weight, len(edges) + 1).tolist()


@st.composite
def histograms(draw: st.DrawFn) -> LengthHistogram:
    """Of lengths that there may have been, between any edges, the last bucket often filled."""
    edges = sorted(draw(st.lists(st.integers(1, 40_000), min_size=1, max_size=30, unique=True)))
    seen = np.array(draw(st.lists(st.integers(1, 80_000), min_size=1, max_size=60)))
    times = draw(st.sampled_from([1.0, 17.0, 1e6]))
    counts = times * np.bincount(np.searchsorted(edges, seen), minlength=len(edges) + 1)
    return LengthHistogram(np.array(edges, dtype=float), counts, times * float(seen.sum()), times * seen.size)


@given(histograms())
def test_lengths_keep_the_mean_and_every_bucket(of: LengthHistogram) -> None:
    found = lengths(of, "prompts")
    assert found.mean == pytest.approx(of.mean, rel=0.005)
    assert found.tokens.size <= 50
    assert found.tokens.min() >= 1
    assert (np.diff(found.tokens) > 0).all()
    if (of.counts > 0).sum() <= 25:  # more of them may have to be merged
        edges = of.edges.tolist()
        assert in_buckets(found, edges) == pytest.approx(of.counts.tolist(), rel=1e-9, abs=1e-6 * of.count)
    assert not any("does not fit" in note for note in found.notes)


def test_the_open_bucket_ends_at_twice_the_last_edge_unless_the_mean_says_otherwise() -> None:
    """9 lengths of at most 100, and one of which the sum says that it has 3,000 or some more."""
    usual = lengths(histogram([100, 200], [9, 0, 1], 800), "prompts")
    assert usual.tokens.max() <= 400
    far = lengths(histogram([100, 200], [9, 0, 1], 3900), "prompts")
    assert far.mean == pytest.approx(390, rel=0.005)
    assert far.tokens.max() > 3000
    (note,) = usual.notes
    assert (
        note == "10% of the prompts are longer than the last edge, 200 tokens; they are taken to end at 400"
    )


# -- hits of the prefix cache


def counters(found: float, of: float, names: tuple[str, str], labels: str = 'engine="0"') -> str:
    return "".join(f"{name}{{{labels}}} {value}\n" for name, value in zip(names, (found, of), strict=True))


@pytest.mark.parametrize(
    "names",
    [
        ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
        ("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
    ],
)
def test_counters_say_what_the_prefix_cache_found(save: Saved, names: tuple[str, str]) -> None:
    lengths_of = SGLANG if names[0].startswith("sglang") else VLLM
    early = traffic(lengths_of) + counters(900, 1000, names)
    late = traffic(lengths_of, times=2) + counters(1000, 2000, names)
    assert any(
        note.startswith("the prefix cache found 50% of the prompt tokens") for note in save.read(late).notes
    )
    between = read_metrics(save(late), save(early, "early.prom"), interval_s=10.0)
    assert any(
        note.startswith(f"the prefix cache found 10% of the prompt tokens (100 of 1,000, by {names[0]})")
        for note in between.notes
    )
