"""Tables in CSV or JSON lines, by their columns.

- Iterations: kv_tokens and iteration_ms (or seconds), prefill_tokens and sequences where known.
- A per-second series of averages: prompt_throughput, gen_throughput, running, kv_cache_pct; t where known.
- splitwise-sim's measurements: prompt_size, batch_size, token_size, prompt_time, token_time (ms), for each model,
  hardware and tensor_parallel.
- A concurrency sweep: concurrency, lengths, and TPOT, TTFT, E2E or requests/s. Columns model, gpu, backend, precision,
  tp and ep tell replicas apart; versions of a backend are taken together. Columns receive_every_steps,
  batch_wait_iterations and batch_wait_tokens say how the engine let prompts wait, as keys of [engine], and
  max_num_batched_tokens its token budget; speculative
  leaves runs with drafts out; of runs that are not warmed_up there is a note. InferenceMAX
  draws lengths from 0.8 to 1
  times those it names; so are rows whose `source` says inferencemax read.
- A rate sweep: requested_rps, lengths, TTFT, and TPOT or E2E. With achieved_rps and done_rps it is seen which rates the
  client and the engine kept up with. Column variant and those of a concurrency sweep tell replicas apart.
- A request log: a request each, its lengths and its times, under the names that `kvplan.ingest.trace.formats` knows.
"""

import math
import re
from dataclasses import replace
from functools import partial
from typing import Any

from kvplan.errors import ProfileError
from kvplan.ingest.cells import Names, Record, names
from kvplan.ingest.reader import FileKind, Reader
from kvplan.ingest.results import (
    INFERENCEMAX_PROTOCOL,
    Adds,
    Load,
    add_load,
    at_rate,
    parallelism,
    spread,
    table,
    tpot,
)
from kvplan.ingest.timing.collector import Collector, Second
from kvplan.ingest.timing.requests import Request
from kvplan.ingest.timing.samples import AT_ONCE, Deployment, Point, Range, Waits
from kvplan.ingest.trace.formats import BadRowError, Layout, Reading, dated, lists_requests, requests_in

# -- iterations -------------------------------------------------------------------------------------------------------

_KV = names("k kv kvtokens")
_TAU = {
    **names("tau taus seconds iterationseconds iterationtimes durations steptimes"),
    **names("taums ms iterationms iterationtimems durationms stepms steptimems", 1e-3),
    **names("tauus us iterationus", 1e-6),
}
_PROMPT = names("p prefilltokens prompttokens contexttokens")
_BATCH = names("b sequences batch batchsize running numseqs")
_PER_SECOND = tuple(map(names, ("promptthroughput", "genthroughput", "running", "kvcachepct")))
_PANEL, _SCALES = re.compile(r"(\d+(?:\.\d+)?) ?(K|Mil|%)"), {"K": 1e3, "Mil": 1e6, "%": 1.0}
_ONE_BATCH = tuple(
    map(names, ("batchsize", "inputlen", "outputlen", "prefilllatency", "mediandecodelatency"))
)
_SEQUENCES, _T_TG = names("b pl"), names("ttgs ttg")
_TIME = names("t time times timestamp elapsed elapseds second seconds")
_SPLITWISE = (
    *map(names, ("promptsize", "batchsize", "tokensize")),
    *(names(name, 1e-3) for name in ("prompttime", "tokentime")),
)


def _iteration(row: Record, collector: Collector) -> None:
    batch = row.number(_BATCH, default=1.0)
    values = row.number(_KV), row.number(_PROMPT, default=0.0), batch, row.number(_TAU)
    collector.add(values, row.line)


def _second(row: Record, collector: Collector) -> None:
    end = _time(row)
    prompt, generated, running, usage = (_of_panel(row, row.name(name)) for name in _PER_SECOND)
    end_s = float(row.line) if end is None else end
    collector.add_second(Second(end_s, prompt, generated, running, usage, row.line))


def _time(row: Record) -> float | None:
    name = row.name(_TIME)
    try:
        return dated(row.at(name), name) if ":" in row.text(name) else row.optional(_TIME)
    except BadRowError as error:
        raise row.error(name, str(error)) from None


def _of_panel(row: Record, name: str) -> float:
    """Read a number, which Grafana may write as 12.4 K or 88.5%."""
    if said := _PANEL.fullmatch(row.text(name)):
        return float(said[1]) * _SCALES[said[2]]
    return row.number(name)


def _one_batch(row: Record, collector: Collector) -> None:
    """Add an iteration that computes prompts, and one that decodes, in the midst of the answers."""
    size, inputs, outputs = (row.number(name) for name in ("batchsize", "inputlen", "outputlen"))
    collector.add((size * inputs, size * inputs, size, row.number("prefilllatency")), row.line)
    decoding = row.number("mediandecodelatency")
    collector.add((size * (inputs + outputs / 2), 0.0, size, decoding), row.line)


def _llama_bench(row: Record, collector: Collector) -> None:
    """Add a decoding iteration; how many iterations computed a prompt is not said.

    llama-batched-bench: B sequences of PP and then TG tokens; llama-sweep-bench: one, behind N_KV others.
    """
    size = row.number(_SEQUENCES, default=1.0)
    before = row.number("nkv") if row.at(row.name(_SEQUENCES)) is None else 0.0
    prompt, generated = row.number("pp"), row.number("tg")
    if not generated:
        collector.skip("nothing was generated", row.line)
        return
    kv_tokens = size * (before + prompt + generated / 2)
    collector.add((kv_tokens, 0.0, size, row.number(_T_TG) / generated), row.line)
    collector.note("llama.cpp's times of prompts are left out: it does not say in how many iterations")


def _splitwise(row: Record, collector: Collector) -> None:
    size, batch, generated, prompt_s, token_s = map(row.number, _SPLITWISE)
    group = f"{row.text('model')}, {row.text('hardware')}, TP{row.text('tensorparallel')}"
    tokens = size * batch
    # A prompt's iteration also emits the first token; then the context grows by half of what follows.
    collector.add((tokens + batch, tokens, batch, prompt_s), row.line, group=group)
    collector.add((tokens + batch * (generated + 1) / 2, 0.0, batch, token_s), row.line, group=group)


# -- loads ------------------------------------------------------------------------------------------------------------


def _times(text: str) -> Names:
    """Name a time and its mean, with the unit at the end."""
    return {
        f"{words}{unit}": seconds
        for name in text.split()
        for unit, seconds in {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}.items()
        for mean in ("", "mean", "avg", "average")
        for words in (f"{mean}{name}", f"{name}{mean}")
    }


TPOT = _times("tpot timeperoutputtoken itl intertokenlatency")
TTFT = _times("ttft timetofirsttoken")
E2E = _times("e2e e2el e2elatency requestlatency latency")
THROUGHPUT = names(
    "requestthroughput requestspersecond rps throughputrps throughputreqs requestthroughputreqs reqs reqtputrps "
    "requestthroughputpersec requestthroughputrequestssec requestthroughputrequestspersec"
)
_OUTPUT_RATE = names(  # tokens per second of all requests together
    "outputthroughput outputtokenthroughput outputthroughputtoks outputtokenthroughputtoks outputtoks "
    "outputthroughputtokenss outputtokenspersecond outputtokenthroughputtokenssec"
)
_CONCURRENCY = names(
    "concurrency maxconcurrency concurrentrequests numconcurrentrequests users concurrentusers concur conc"
)
INPUT = names(
    "input inputtokens inputlen inputlength isl randominputlen inputsequencelength inputsequencelengthtokens"
)
OUTPUT = names(
    "output outputtokens outputlen outputlength osl randomoutputlen outputsequencelength outputsequencelengthtokens"
)
_REQUESTS = names("requests numrequests numprompts completed nreq n")
_RATE = names("requestedrps requestedrate requestrate requestratereqs requestraterps rate rps qps")
_SENT = names("achievedrps achievedrate")
_DONE = {**names("donerps completedrps"), **THROUGHPUT}
_DERIVED_TPOT = {**names("tpotderiveds"), **TPOT}
_ARGUMENTS = names(  # of an engine, which tell replicas apart
    "quantization dtype kvcachedtype maxnumseqs maxmodellen gpumemoryutilization enableprefixcaching prefixcaching "
    "enablechunkedprefill chunkedprefillsize attentionbackend enforceeager"
)
_WAITS = {key: names(key.replace("_", "")) for key in Waits._fields}
_BUDGET = names("maxnumbatchedtokens")
_NO_UNIT = names("tpot ttft itl e2e e2el latency meantpot meanttft meane2e meane2el")
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")
_EQUAL_LENGTHS = (
    "assumed of the benchmark: all requests of the lengths stated, and where their number is not, 10 of each client, "
    "all clients at once"
)
_INFERENCEMAX = 0.8  # shortest length it draws, over the longest


def _deployment(row: Record) -> Deployment:
    # which a variant stands for
    arguments = () if row.text("variant") else filter(row.text, _ARGUMENTS.keys() & row.values.keys())
    return Deployment(
        model=row.text("model"),
        gpu=row.text("gpu") or row.text("hardware"),
        engine=row.text("backend"),
        parallelism=parallelism(row),
        weight_dtype=row.text("precision"),
        arguments=frozenset(f"{row.written_as(name)} {row.text(name)}" for name in arguments),
    )


def _requests(row: Record) -> int | None:
    return None if (count := row.optional(_REQUESTS)) is None else round(count)


def _waits(row: Record, collector: Collector) -> Waits:
    """Read what a row says of the engine, whose default counts where it says nothing."""
    waits = {}
    for key, default in AT_ONCE._asdict().items():
        value = row.optional(_WAITS[key])
        waits[key] = default if value is None else max(round(value), default)
        if waits[key] != default:
            collector.note(f"runs with {key} = {waits[key]} are played so")
    return Waits(**waits)


def _budget(row: Record) -> int | None:
    return row.whole(_BUDGET) if row.optional(_BUDGET) else None


def _refuse_times_without_unit(row: Record) -> None:
    for name in _NO_UNIT:
        if name in row.values and row.text(name):
            written = row.written_as(name)
            raise row.error(name, f"names no unit; call it {written}_ms or {written}_s")


def _drafted(row: Record, collector: Collector) -> bool:
    """Leave out a run with drafts, whose iterations give more than a token; note what else is to be known of a run."""
    drafted = row.text("speculative").lower()
    if drafted in _YES:
        collector.skip("with drafts (speculative), whose iterations give several tokens", row.line)
        return True
    if drafted and drafted not in _NO:
        collector.note(
            "whether some runs had drafts is unclear (speculative): they are taken to have had none"
        )
    if row.text("warmedup").lower() in _NO:
        collector.note(
            "some runs were not warmed up (warmed_up): their mean TTFT may have what begins with the engine"
        )
    return False


def _at_concurrency(row: Record, collector: Collector) -> None:
    _refuse_times_without_unit(row)
    if _drafted(row, collector):
        return
    is_inferencemax = row.text("source").lower() == "inferencemax"
    shortest = _INFERENCEMAX if is_inferencemax else 1.0
    collector.note(INFERENCEMAX_PROTOCOL if is_inferencemax else _EQUAL_LENGTHS)

    def lengths(column: Names) -> Range:
        longest = row.number(column)
        return round(shortest * longest), round(longest)

    inputs, outputs = lengths(INPUT), lengths(OUTPUT)
    throughput, tokens_per_s = row.optional(THROUGHPUT), row.optional(_OUTPUT_RATE)
    users, output = row.whole(_CONCURRENCY), sum(outputs) / 2
    if throughput is None and tokens_per_s is not None and output > 0:
        took = (row.optional(TTFT) or 0.0) + (row.optional(TPOT) or math.inf) * (output - 1)
        if (
            users > 1 and tokens_per_s * took < math.sqrt(users) * output
        ):  # nearer to those of one than of all
            collector.note(
                f"{row.written_as(row.name(_OUTPUT_RATE))} is that of one request, by its times: left out"
            )
        else:
            throughput = tokens_per_s / output
    point = Point(
        line=row.line,
        inputs=inputs,
        outputs=outputs,
        concurrency=users,
        requests=_requests(row),
        waits=_waits(row, collector),
        max_num_batched_tokens=_budget(row),
        ttft_s=row.optional(TTFT),
        tpot_s=row.optional(TPOT),
        e2e_s=row.optional(E2E),
        throughput_rps=throughput,
    )
    add_load(row, point, _deployment(row), collector)


def _at_rate(row: Record, collector: Collector) -> None:
    if _drafted(row, collector):
        return
    _refuse_times_without_unit(row)
    rate, output = row.positive(_RATE), row.number(OUTPUT)
    ttft, e2e, between = row.optional(TTFT), row.optional(E2E), row.optional(_DERIVED_TPOT)
    if between is None and e2e is not None:
        between = tpot(e2e, ttft, output)
    if e2e is None and ttft is not None and between is not None:
        e2e = ttft + between * max(output - 1, 0.0)
    done, requests = row.optional(_DONE), _requests(row)
    load: Load = {"rate_rps": rate}
    if done is not None and e2e is not None:
        load = at_rate(rate, done, e2e, requests=requests, sent_rps=row.optional(_SENT))
    point = Point(
        line=row.line,
        inputs=spread(row.number(INPUT)),
        outputs=spread(output),
        requests=requests,
        waits=_waits(row, collector),
        max_num_batched_tokens=_budget(row),
        ttft_s=ttft,
        tpot_s=between,
        e2e_s=e2e,
        throughput_rps=done,
        **load,
    )
    known = _deployment(row)
    other = ", ".join(filter(None, (row.text("variant"), known.other)))
    add_load(row, point, replace(known, other=other), collector)


# -- requests ---------------------------------------------------------------------------------------------------------


def _requests_of(record: Record, collector: Collector) -> None:
    written = record.written
    document = (
        record.values if written is None else {written[name]: value for name, value in record.values.items()}
    )
    reading = Reading()
    for layout, row in requests_in(document):
        try:
            _request(reading, layout, row, record.line, collector)
        except BadRowError as error:
            raise ProfileError(record.source, str(error), key=error.key, line=record.line) from None


def _request(reading: Reading, layout: Layout, row: Any, line: int, collector: Collector) -> None:
    reason = "no requests" if layout.missing else reading.reason(layout, row)
    if not reason:
        arrival_s, input_tokens, output_tokens = reading.request(layout, row)
        times = reading.times(layout, row, arrival_s)
        first_s, last_s = times.pop("first_s"), times.pop("last_s")
        unitless = reading.without_unit(layout, row, "ttft", "e2e")
        if output_tokens == 0:
            reason = "nothing was generated"
        elif unitless and None in (first_s, last_s):
            reason = f"{unitless} names no unit, as {unitless}_ms does"
        elif first_s is None:
            reason = "without the time of its first token"
        elif last_s is None and not layout.format.sparse:
            where = next(
                (layout.places[name].name for name in ("e2e", "last") if name in layout.places), "last"
            )
            raise BadRowError("missing", where)
        elif last_s is None:
            reason = "without the time of its end"
        elif layout.format.sparse and first_s >= last_s and output_tokens > 1:
            reason = "not streamed"
    if reason or first_s is None or last_s is None:
        collector.skip(reason, line)
        return
    request = Request(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        arrival_s=arrival_s,
        first_token_s=first_s,
        last_token_s=last_s,
        line=line,
        cached_tokens=reading.cached_tokens(layout, row),
        **times,
    )
    collector.add_request(request)


REQUEST_LOG: Reader[Adds] = Reader(
    "request log", FileKind.REQUESTS, partial(lists_requests, timed=True), _requests_of, columns=5
)
READERS = (
    table("table", (_KV, _TAU), _iteration),
    table("per-second series", _PER_SECOND, _second),
    table("splitwise-sim", _SPLITWISE, _splitwise),
    table("SGLang bench_one_batch", _ONE_BATCH, _one_batch),
    table("llama.cpp bench", (*map(names, ("pp", "tg", "nkv")), _T_TG), _llama_bench),
    table("concurrency sweep", (_CONCURRENCY, INPUT, OUTPUT), _at_concurrency),
    table("rate sweep", (_RATE, INPUT, OUTPUT), _at_rate),
    REQUEST_LOG,
)
