"""Random profiles, valid ones with numbers at their limits and ones that nobody should accept, through the commands."""

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from campaign.calls import GITHUB, Call
from kvplan.ranges import (
    LEAST_COST_S,
    LEAST_DELTA,
    LEAST_RATE,
    LEAST_WEIGHT,
    LONGEST_ITERATION_S,
    LONGEST_S,
    MAX_BLOCK_TOKENS,
    MAX_DECODE_TOKENS,
    MAX_GPUS,
    MAX_MEMORY_TOKENS,
    MAX_TOKENS,
    MOST_RATE,
    MOST_WEIGHT,
    SHORTEST_S,
)
from kvplan.report.keys import CONTRACT

KEYS = tuple(CONTRACT)
Table = dict[str, Any]
_HOSTILE_NAMES = (
    *(
        "::error::",
        " ::error::stop",
        "##[group]x",
        "::add-mask::a",
        "\x1b[31mred",
        "\u202eevil",
        "a\nb",
        "\0",
    ),
    *(
        "<script>alert(1)</script>",
        "&amp;",
        "[link](javascript:x)",
        "|",
        "`",
        "*a*",
        "[red]x[/red]",
        "$(reboot)",
    ),
    *(
        "{0}",
        "%s%n",
        "'\"\\",
        "é" * 99,
        "文" * 200,
        "🦀",
        "a" * 201,
        "",
        " ",
        "load",
        "classes[0]",
        "\ufeffa",
        "=1+1",
    ),
)
_HOSTILE_VALUES = (
    *(math.nan, math.inf, -math.inf, -1, 0, 0.0, -0.0, 1e-300, 1e300, 5e-324, 10**18, 2**63 - 1, -(2**63), 10**400),
    *(True, "", "5 parsecs", "1e400 s", "٣ s", "nan", "0x10", [], {}, [[]], [1, "a"], {"a": {"b": 1}}, "a" * 10_000),
    *(_HOSTILE_NAMES),
)  # fmt: skip
_ENDS = (0.0, 1.0, 2.0, 1e-12, 1e-9, 1e9)
ROUTERS = ("random", "round-robin", "least-requests", "least-kv", "session")
FORMATS = ("text", "json", "markdown", "html")


def case(rng: np.random.Generator, folder: Path) -> Call:
    """A command on a profile of its own, which is written into the folder."""
    refused = rng.random() < 0.05
    path, profile = folder / "profile.toml", beyond(rng) if refused else text(rng)
    path.write_bytes(profile.encode(errors="surrogatepass"))
    env = GITHUB if rng.random() < 0.3 else {}
    command = _command(rng, str(path))
    return Call(command, env, twice=rng.random() < 0.05 and command[0] != "sweep", refused=refused)


def _command(rng: np.random.Generator, path: str) -> tuple[str, ...]:
    kind = rng.choice(
        ["analyze", "check", "explain", "simulate", "emit", "mix", "plan", "sweep", "import", "diff"],
        p=[0.58, 0.13, 0.11, 0.05, 0.02, 0.02, 0.02, 0.03, 0.02, 0.02],
    )
    three = str(rng.choice(FORMATS[:3]))
    match kind:
        case "analyze":
            return ("analyze", path, "--format", str(rng.choice(FORMATS, p=[0.3, 0.4, 0.28, 0.02])))
        case "check":
            require = f"{rng.choice(KEYS)} {rng.choice(['>=', '<', '=='])} {rng.choice(['0', '1e300', 'true', '٣'])}"
            return ("check", path, "--require", require, "--format", three)
        case "explain":
            return ("explain", str(rng.choice(KEYS)), path, "--format", str(rng.choice(["text", "markdown"])))
        case "simulate":
            policies = str(rng.choice(["greedy", "vllm", "sglang", "wait", "greedy,vllm"]))
            return ("simulate", path, "--policy", policies, "--requests", "60", "--format", three)
        case "emit":
            engine = str(rng.choice(["vllm", "sglang", "trtllm"]))
            return ("emit", path, "--target", engine, "--format", three)
        case "mix":
            return ("mix", path, "--replicas", "2", "--format", three)
        case "plan":
            return ("plan", path, "--rate", repr(_rate(rng)), "--format", three)
        case "sweep":
            return (
                "sweep",
                path,
                "--vary",
                f"timing.d0={_iteration(rng)},{_iteration(rng)}",
                "-o",
                f"{path}.csv",
            )
        case "import":
            return ("import", "--model", "Llama-3.1-8B", "--gpu", "RTX 4090", "--base", path)
    return ("diff", path, str(rng.choice(["tool-calls-h100", "agents-collapse"])), "--format", three)


def text(rng: np.random.Generator) -> str:
    """A profile; half of them are valid, as far as one can tell before reading them."""
    document = valid(rng)
    if rng.random() < 0.3:
        _layered_or_drafting(rng, document)
    if rng.random() < 0.15:
        _at_an_end(rng, document)
    kind = rng.random()
    if kind < 0.3:
        for _ in range(int(rng.integers(1, 4))):
            _spoil(rng, document)
    written = toml(document)
    return _torn(rng, written) if 0.3 <= kind < 0.4 else written


def beyond(rng: np.random.Generator) -> str:
    """A profile with one number that nobody means."""
    document = valid(rng)
    one = document["classes"][0]
    table, key, value = (
        (document["gpu"], "memory_tokens", MAX_MEMORY_TOKENS + 1),
        (document["gpu"], "block_tokens", MAX_BLOCK_TOKENS + 1),
        (document["gpu"], "gpus", MAX_GPUS + 1),
        (document["timing"], "d0", 1.01 * LONGEST_ITERATION_S),
        (document["timing"], "d0", SHORTEST_S / 2),
        (document["timing"], "d1", LEAST_COST_S / 2),
        (document, "plan", {"delta": LEAST_DELTA / 2}),
        (document, "plan", {"horizon": 1.01 * LONGEST_S}),
        (one, "input", MAX_TOKENS + 1),
        (one, "decode", MAX_DECODE_TOKENS + 1),
        (one, "decode", {"9": LEAST_WEIGHT / 2}),
        (one, "rate", LEAST_RATE / 2),
        (one, "rate", 1.01 * MOST_RATE),
    )[rng.integers(13)]
    table[key] = value
    return toml(document)


def toml(table: Table) -> str:
    """A table of tables as TOML, the tables within them on one line each; a second or more has its unit."""
    timing = table.get("timing")
    d0 = timing.get("d0") if isinstance(timing, dict) else None  # which may be spoiled
    if isinstance(d0, int | float) and d0 >= 1:
        table = {**table, "timing": {**timing, "d0": f"{d0!r} s"}}
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "a").isalnum() else _quoted(key)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _value(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return _quoted(value)
        case dict():
            return "{ " + ", ".join(f"{_key(str(k))} = {_value(v)}" for k, v in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)


def _torn(rng: np.random.Generator, written: str) -> str:
    at, other = sorted(rng.integers(len(written), size=2).tolist())
    match rng.integers(5):
        case 0:
            return written[:at]
        case 1:
            return written[:at] + written[other:]
        case 2:
            return written[:other] + written[at:]
        case 3:
            return (
                written[:at]
                + str(rng.choice([*'"[]{}=,\n\r#', "\r\r\n", "\0", "\x1b", "\ud800"]))
                + written[at:]
            )
    return written.replace("\n", str(rng.choice(["\r\n", "\r\r\n", "\r", "\n" * 100])))


def valid(rng: np.random.Generator) -> Table:
    """A profile that is right as far as its values go, small and large ones; a class may still not fit."""
    n_classes = int(rng.choice([1, 2, 3, 8, 40], p=[0.5, 0.3, 0.15, 0.045, 0.005]))
    prefill = str(rng.choice(["fused", "inline", "disaggregated"], p=[0.6, 0.2, 0.2]))
    classes = [_class(rng, i) for i in range(n_classes)]
    if rng.random() < 0.3:
        names = [name for name in _HOSTILE_NAMES if name.strip() and name.isprintable() and len(name) <= 200]
        classes[0]["name"] = str(rng.choice(names))
    longest = max(c["input"] + _longest(c["decode"]) for c in classes)
    block = int(rng.choice([1, 16, 64, MAX_BLOCK_TOKENS], p=[0.5, 0.4, 0.09, 0.01]))
    pages = -(-longest // block) + round(longest / block * _log_uniform(rng, 1e-3, 1e4))
    gpu: Table = {
        "memory_tokens": min(pages * block + int(rng.integers(block)), MAX_MEMORY_TOKENS),
        "block_tokens": block,
    }
    _maybe(
        rng, gpu, 0.2, prefill=prefill, max_num_seqs=_whole(rng, 1e4), prefix_caching=bool(rng.random() < 0.5)
    )
    _maybe(rng, gpu, 0.2, max_num_batched_tokens=_whole(rng, 1e5), gpus=_whole(rng, MAX_GPUS))
    document: Table = {
        "schema": 1,
        "name": str(rng.choice(["plain", *_HOSTILE_NAMES[:3]])),
        "gpu": gpu,
        "timing": _timing(rng),
        "classes": classes,
    }
    workload: Table = {}
    if rng.random() < 0.2:
        workload["rate"] = _rate(rng)
        shares = rng.dirichlet(np.ones(n_classes)) * (1 - 1e-6 * n_classes) + 1e-6
        for one, share in zip(classes, shares.tolist(), strict=True):
            del one["rate"]
            one["share"] = share
    _maybe(rng, workload, 0.1, cv=_log_uniform(rng, 0.01, 100))
    if rng.random() < 0.1:
        workload |= _schedule(rng)
    if rng.random() < 0.1:
        document["sessions"] = [_session(rng)]
    optional: Table = {
        "workload": workload,
        "plan": {
            "delta": _log_uniform(rng, LEAST_DELTA, 1),
            "horizon": _time(rng),
            "segments": int(rng.integers(1, 4)),
        },
        "slo": {
            str(rng.choice(["ttft_s", "itl_s", "tpot_s", "e2e_s"])): {
                str(rng.choice(["mean", "p50", "p90", "p95", "p99"])): _time(rng)
            }
        },
        "cost": {"gpu_hour": _log_uniform(rng, LEAST_WEIGHT, MOST_WEIGHT)},
        "provenance": {"gpu": str(rng.choice(["measured", "stated", "estimated", "assumed"]))},
        "gate": {"require": [f"{rng.choice(KEYS)} >= 0"], "accept": ["gpu", "timing", "workload"]},
        "prefix": {"hit_curve": [[_whole(rng, 1e6), 0.1], [10**7, 0.6]]},
        "fleet": _fleet(rng),
        "engine": _engine(rng) if gpu.get("prefill", "fused") == "fused" else {},
    }
    for key, table in optional.items():
        if table and (key == "workload" or rng.random() < 0.15):
            document[key] = table
    return document


def _fleet(rng: np.random.Generator) -> Table:
    if rng.random() < 0.5:
        return {"replicas": _whole(rng, 1e4)}
    return {"prefill": _whole(rng, 1e4), "decode": _whole(rng, 1e4)}


def _engine(rng: np.random.Generator) -> Table:
    one: Table = {"name": str(rng.choice(["vllm", "sglang", "trtllm"]))}
    if one["name"] != "sglang":
        one["admission"] = str(rng.choice(["whole-prompt", "first-chunk"]))
    if one["name"] == "vllm":
        one["watermark"] = float(rng.choice([0.0, 0.02, 0.3]))
    if one["name"] == "sglang" and rng.random() < 0.5:
        one["receive_every_steps"] = int(rng.choice([1, 10, 30]))
        one["prefill_interval"] = int(rng.choice([1, 2, 20]))
    if one["name"] == "trtllm" and rng.random() < 0.5:
        one |= {"batch_wait_iterations": 20, "batch_wait_tokens": int(rng.choice([100, 7000]))}
    if rng.random() < 0.5:
        one["max_model_len"] = round(_log_uniform(rng, 100, 1e5))
    return one


def _layered_or_drafting(rng: np.random.Generator, document: Table) -> None:
    """Layers of several kinds, drafts, or both, and nothing that goes with neither; a request may not fit."""
    gpu, which = document["gpu"], rng.random()
    for key in ("sessions", "prefix"):
        document.pop(key, None)
    for one in document["classes"]:
        one.pop("shared", None)
        one.pop("reuse", None)
    if which < 0.7:
        gpu["kv"] = [_layers(rng) for _ in range(int(rng.integers(1, 5)))]
        sizes = [(one["kind"] == "state", one["bytes"]) for one in gpu["kv"]]
        token = max((size for state, size in sizes if not state), default=0)
        state = max((size for state, size in sizes if state), default=0)
        if state:
            least = 16 * -(-state // (16 * (token or -(-state // 16))))
            gpu["block_tokens"] = max(gpu["block_tokens"], least)
        groups = sum(one["layers"] for one in gpu["kv"])
        gpu["kv_blocks"] = max(1, gpu.pop("memory_tokens") // gpu["block_tokens"]) * int(
            rng.choice([1, groups])
        )
    if which > 0.4:
        gpu["prefill"] = "fused"
        document["timing"].pop("d5", None)
        document["timing"].pop("knee_tokens", None)
        document.pop("fleet", None)
        tokens = _whole(rng, 64)
        law = str(rng.choice(["geometric", "always", "never", "any"], p=[0.5, 0.1, 0.1, 0.3]))
        chances = {
            "geometric": np.cumprod(np.full(tokens, rng.random())),
            "always": np.ones(tokens),
            "never": np.zeros(tokens),
            "any": np.sort(rng.random(tokens))[::-1],
        }
        costs = {key: 0 if rng.random() < 0.2 else _iteration(rng) for key in ("draft_time", "verify_time")}
        document["speculative"] = {"tokens": tokens, "accepted": chances[law].tolist(), **costs}
        _maybe(
            rng, document["speculative"], 0.3, overhead=_iteration(rng), lookahead=bool(rng.random() < 0.5)
        )


def _layers(rng: np.random.Generator) -> Table:
    kind = str(rng.choice(["full", "window", "chunk", "state"]))
    size = _whole(rng, 1e7) if kind == "state" else int(rng.choice([64, 4096, 8192]))
    one: Table = {"kind": kind, "layers": _whole(rng, 100), "bytes": size}
    if kind in ("window", "chunk"):
        one["window"] = _whole(rng, 1e4)
    return one


def _class(rng: np.random.Generator, i: int) -> Table:
    one: Table = {
        "name": f"class {i}",
        "input": _whole(rng, MAX_TOKENS if rng.random() < 0.05 else 1e4),
        "decode": _decode(rng),
        "rate": _rate(rng),
    }
    if rng.random() < 0.1:
        one["shared"] = int(rng.integers(1, one["input"] + 1))
    if rng.random() < 0.1:
        tokens = float(rng.uniform(0.1, 1)) if rng.random() < 0.7 else _whole(rng, 1e4)
        one["reuse"] = {"tokens": tokens, "share": _log_uniform(rng, LEAST_WEIGHT, 1), "gap": _gap(rng)}
    return one


def _decode(rng: np.random.Generator) -> int | Table:
    most = rng.choice(
        [35, 200, 2e3, MAX_DECODE_TOKENS], p=[0.6, 0.3, 0.095, 0.005]
    )  # the shorter the quicker
    match rng.integers(8):
        case 0:
            low = _whole(rng, most)
            return {"uniform": [low, low + int(rng.integers(int(most) - low + 1))]}
        case 1:
            return {"geometric": _log_uniform(rng, 1, most / 35)}
        case 2 | 3:
            return {
                str(_whole(rng, most)): _number(rng, LEAST_WEIGHT, MOST_WEIGHT)
                for _ in range(int(rng.integers(1, 6)))
            }
    return _whole(rng, most)


def _longest(decode: int | Table) -> int:
    if isinstance(decode, int):
        return decode
    if "uniform" in decode:
        return int(decode["uniform"][1])
    return int(decode["geometric"] * 35) if "geometric" in decode else max(map(int, decode))


def _timing(rng: np.random.Generator) -> Table:
    extreme = rng.random() < 0.2
    timing: Table = {"d0": _iteration(rng) if extreme else _log_uniform(rng, 1e-3, 1)}
    for key, high in (("d1", 1e-5), ("d2", 1e-3), ("d3", 1e-2), ("d4", 1e-2)):
        _maybe(rng, timing, 0.3, **{key: _cost(rng) if extreme else _log_uniform(rng, high / 1e4, high)})
    overhead = _iteration(rng) if extreme else _log_uniform(rng, 1e-4, 1)
    _maybe(rng, timing, 0.3, request_overhead=overhead)
    if rng.random() < 0.1:
        timing |= {"d5": _log_uniform(rng, 1e-9, 1e-3), "knee_tokens": _whole(rng, 1e5)}
    if rng.random() < 0.05:
        timing["measured"] = {"kv_tokens": [0, _whole(rng, 1e6)], "band": [0.9, 1.3]}
    return timing


def _schedule(rng: np.random.Generator) -> Table:
    period = _log_uniform(rng, 1, 1e6)
    if rng.random() < 0.5:
        return {"period": period, "schedule": [{"amplitude": float(rng.random())}]}
    starts = sorted((rng.random(int(rng.integers(1, 6))) * period).tolist())
    starts[0] = 0
    steps = [{"at": at, "factor": float(rng.choice([0, 1e-6, 0.5, 3, 1e6]))} for at in starts]
    return {"period": period, "schedule": steps}


def _session(rng: np.random.Generator) -> Table:
    session = {
        "name": "talk",
        "shared": int(rng.integers(3000)),
        "first": _decode(rng),
        "user": _decode(rng),
        "decode": _decode(rng),
        "turns": {"geometric": _log_uniform(rng, 1, 50)} if rng.random() < 0.5 else _whole(rng, 100),
        "think": _gap(rng),
    }
    session |= (
        {"context": rng.choice(["end", "slide"]).item()}
        if rng.random() < 0.5
        else {"context": {"compact": 0.3}}
    )
    session |= {"users": _whole(rng, 1e6)} if rng.random() < 0.3 else {"rate": _rate(rng)}
    return session


def _gap(rng: np.random.Generator) -> Table:
    return (
        {"law": "exponential", "mean": _time(rng)},
        {"law": "lognormal", "median": _time(rng), "sigma": _log_uniform(rng, 1e-3, 10)},
        {"law": "fixed", "value": _time(rng)},
        {"law": "quantiles", "values": [_time(rng) for _ in range(int(rng.integers(1, 30)))]},
    )[rng.integers(4)]


def _maybe(rng: np.random.Generator, table: Table, often: float, **values: object) -> None:
    table |= {key: value for key, value in values.items() if rng.random() < often}


def _rate(rng: np.random.Generator) -> float:
    return _log_uniform(rng, LEAST_RATE, MOST_RATE) if rng.random() < 0.1 else _log_uniform(rng, 1e-4, 1e3)


def _iteration(rng: np.random.Generator) -> float:
    return _number(rng, SHORTEST_S, LONGEST_ITERATION_S)


def _cost(rng: np.random.Generator) -> float:
    return _number(rng, LEAST_COST_S, LONGEST_ITERATION_S)


def _time(rng: np.random.Generator) -> float | str:
    seconds = _number(rng, SHORTEST_S, LONGEST_S)
    return f"{seconds!r} s" if rng.random() < 0.1 else seconds


def _number(rng: np.random.Generator, low: float, high: float) -> float:
    """A number that is usual more often than not."""
    return _log_uniform(rng, low, high) if rng.random() < 0.3 else _log_uniform(rng, 0.01, 100)


def _whole(rng: np.random.Generator, most: float) -> int:
    return max(1, round(_log_uniform(rng, 1, most)))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return min(max(math.exp(rng.uniform(math.log(low), math.log(high))), low), high)


def _at_an_end(rng: np.random.Generator, document: Table) -> None:
    """Requests all without a prompt or of one token, and numbers at an end of what they may be, or nearly so."""
    if rng.random() < 0.5:
        for one in document["classes"]:
            one["input"] = 0
            one.pop("shared", None)
    if rng.random() < 0.3:
        for one in document["classes"]:
            one["decode"] = 1
    for _ in range(int(rng.integers(3))):
        numbers = list(_numbers(document))
        table, key = numbers[rng.integers(len(numbers))]
        end = _ENDS[rng.integers(len(_ENDS))]
        table[key] = int(end) if isinstance(table[key], int) else end


def _numbers(table: Any) -> Iterator[tuple[Any, Any]]:
    """Where the numbers of a document are."""
    for key, value in list(table.items() if isinstance(table, dict) else enumerate(table)):
        if isinstance(value, dict | list):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield table, key


def _spoil(rng: np.random.Generator, document: Table) -> None:
    """Put something into one place that hardly belongs there, or take a key away."""
    table: Any = document
    while True:
        keys = list(table) if isinstance(table, dict) else list(range(len(table)))
        if not keys:
            return
        key = keys[rng.integers(len(keys))]
        if not isinstance(table[key], dict | list) or rng.random() < 0.2:
            break
        table = table[key]
    value = deepcopy(_HOSTILE_VALUES[rng.integers(len(_HOSTILE_VALUES))])  # the next one may spoil that
    if isinstance(table, dict) and rng.random() < 0.2:
        del table[key]
    elif isinstance(table, dict) and rng.random() < 0.1:
        table[str(value)] = table[key]
    else:
        table[key] = value
