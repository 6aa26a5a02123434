"""Laws between reports: what another memory, clock or size, or the same traffic in other words, does to figures."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command import process

from campaign.calls import Call, TooLongError, answer
from campaign.profiles import ROUTERS, Table, toml, valid
from kvplan.ranges import MAX_MEMORY_TOKENS
from kvplan.report.keys import CONTRACT

Figures = dict[str, Any]  # of a report, by path
Comparison = Callable[[Figures, Figures], Iterator[str]]


class Pair(NamedTuple):
    """Two profiles, what is wrong between their figures, and the command, with its options, that these are of."""

    one: Table
    other: Table
    broken: Comparison
    command: tuple[str, ...] = ("analyze",)


_TOLERANCE = 1e-6  # relative: more than another order of summation changes
_PEAK = 1e-5  # of a rate at the peak of a curve, which is looked for on a grid
# A percentile can fall where its law has next to nothing, gaps and ends of intervals are counted in bins, a simulated
# cycle never quite repeats, a rate can be that at which a formula ends, and rounding can say in which group of like
# requests some are counted.
_ROUGH = re.compile(
    r"latency\.(.*\.p\d\d|ci95|cliffs|(.*\.)?itl_s)|worst_cycle|fleet\..*tl_s|fleet\..*ttft_s|verdict\.recovers|goodput|safety_buffer\.overflow"
)
_ROUGHLY = 2e-2
_SMALL = 1e-9  # of a share or a probability, below which one is as good as another
_DRAWS = 50
_MOST_SHOWN = 5
_TIMES = ("d0", "d1", "d2", "d3", "d4", "d5", "request_overhead")
# Prose quotes numbers, a digest is of the text; a zone is null or not by the last digit of its ends, and a percentile
# between two lengths is that of either.
_LEFT_OUT = re.compile(
    r"profile|sources|notes|verdict\.summary|stability\.advice|worst_cycle\.danger|latency.*e2e_s\.p|.*reason$"
)
_FLUID = re.compile(
    r"(load\.(?!sens)|equilibrium|saturation|worst_cycle|stability\.[^m]|rate_cap\.p|verdict\.b)"
)
_BY_CLASS = re.compile(r"classes\[|wait\.|safety_buffer\.theorem_bound")
_DRAWN = re.compile(
    r"latency|verdict\.drain|advice|goodput|wait\.overload\.simulated"
)  # by runs on draws that follow the order of classes
_INTERVAL = "latency.ci95."
_WIDER = 3.0  # intervals of 95 %, of which a campaign compares thousands


def judge(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    """Two profiles, in the folder, of which a law says how their reports differ; and where they differ otherwise."""
    name, one, other = str(rng.choice([*LAWS, "same bytes"])), folder / "one.toml", folder / "other.toml"
    call = _call(one, "analyze")
    said = f"{shlex.join(('kvplan', *call.arguments))} ({name})"
    try:
        for _ in range(_DRAWS):
            document = valid(rng)
            # The defaults are an hour, whatever the clock.
            document.pop("cost", None)
            document.setdefault("plan", {}).setdefault("horizon", 3600.0)
            pair = LAWS[name](rng, document) if name in LAWS else None
            one.write_text(toml(pair.one if pair else document))
            call = _call(one, *pair.command) if pair else call
            said = f"{shlex.join(('kvplan', *call.arguments))} ({name})"
            first = answer(call)
            if first.code == 0:
                break
        else:
            return said, [f"{_DRAWS} profiles in a row are refused, the last with {first.err}"]
        if pair is None:
            again = process(*call.arguments, env={"PYTHONHASHSEED": str(rng.integers(1 << 32))})
            return said, [] if again.stdout == first.out else ["other bytes from another process"]
        other.write_text(toml(pair.other))
        second = answer(_call(other, *pair.command))
    except TooLongError as stop:
        return said, [f"no answer, at {stop}"]
    if second.code == 2 and "must be" in second.err:  # the limits of what a profile may say do not scale
        return said, []
    if second.code:
        return said, [f"exit code {second.code} for {other}: {second.err}"]
    return said, list(pair.broken(figures(first.out), figures(second.out)))[:_MOST_SHOWN]


def _call(path: Path, command: str, *options: str) -> Call:
    return Call((command, str(path), *options, "--format", "json"))


def more_memory(rng: np.random.Generator, document: Table) -> Pair:
    """Never lowers what is sustainable.

    But where the law is convex, and a full memory has lost its cache, the larger one is slower.
    """
    if _has_common(document):
        document = document | {
            "timing": {k: v for k, v in document["timing"].items() if k not in ("d5", "knee_tokens")}
        }
    gpu = document["gpu"]
    key, most = (
        ("kv_blocks", MAX_MEMORY_TOKENS // gpu["block_tokens"])
        if "kv" in gpu
        else ("memory_tokens", MAX_MEMORY_TOKENS)
    )
    more = min(gpu[key] + max(1, round(gpu[key] * rng.choice([0, 0.01, 0.5, 9]))), most)

    def broken(before: Figures, after: Figures) -> Iterator[str]:
        for figure in ("load.sustainable_rps", "load.load_factor_max"):
            if before[figure] is not None and (after[figure] or 0) < before[figure] * (1 - _PEAK):
                yield f"{figure}: {before[figure]!r}, with more memory {after[figure]!r}"

    return Pair(document, document | {"gpu": gpu | {key: more}}, broken)


def slower_clock(rng: np.random.Generator, document: Table) -> Pair:
    """All takes twice as long, and requests come half as often: times double, rates halve, and no more."""
    factor = 2.0 ** int(rng.choice([-7, -1, 1, 7]))  # digits stay as they are
    changed = deepcopy(document)
    workload = changed.get("workload", {})
    _scale(changed["timing"], factor, *_TIMES)
    _scale(changed.get("speculative", {}), factor, "draft_time", "verify_time", "overhead")
    _scale(changed["plan"], factor, "horizon")
    _scale(workload, factor, "period")
    for step in workload.get("schedule", ()):
        _scale(step, factor, "at")
    for bounds in changed.get("slo", {}).values():
        _scale(bounds, factor, *bounds)
    for source in _sources(changed):
        _scale(source, 1 / factor, "rate")
        for gap in (source.get("think", {}), source.get("reuse", {}).get("gap", {})):
            _scale(gap, factor, "mean", "median", "value", "values")
    units = {"s": factor, **dict.fromkeys(("requests/s", "tokens/s", "iterations/s"), 1 / factor)}
    # What is cached where nothing is ever thrown away is what comes in 10^12 s, and bursts last as long on every clock.
    absolute = re.compile(r"prefix_cache\.cached_tokens|verdict\.drain")
    return Pair(document, changed, _same(units, lambda key: not absolute.match(key)))


def larger_replica(rng: np.random.Generator, document: Table) -> Pair:
    """Four times the memory and the traffic in iterations as long as before: four times of all, in the fluid.

    Lengths stay: twice the tokens of an answer are twice the iterations. So do prompts that all share, of which there
    is one, and the spread of the prompts that an iteration computes, of which d5 takes an expectation. Users of a fleet
    are whole on each of its replicas.
    """
    one = deepcopy(document)
    if any("users" in source for source in _sources(one)):
        one.pop("fleet", None)
    gpu, timing = one["gpu"], one["timing"]
    if "kv" not in gpu:
        gpu["memory_tokens"] -= gpu["memory_tokens"] % gpu["block_tokens"]
    _make_linear(timing)
    _drop_shared(one)
    other = deepcopy(one)
    _scale(other["gpu"], 4.0, "memory_tokens", "kv_blocks", "max_num_seqs", "max_num_batched_tokens")
    _scale(other["timing"], 1 / 4, "d1", "d2", "d3")
    _scale(other.get("speculative", {}), 1 / 4, "verify_time")
    _scale(other["timing"], 1 / 2, "d4")  # of a square root
    for source in _sources(other):
        _scale(source, 4.0, "rate", "users")
    for point in other.get("prefix", {}).get("hit_curve", ()):
        point[0] *= 4
    units = dict.fromkeys(("requests/s", "tokens/s", "iterations/s", "tokens", "requests"), 4.0)
    return Pair(one, other, _same(units, lambda key: bool(_FLUID.match(key))))


def split_class(rng: np.random.Generator, document: Table) -> Pair:
    """One class as two of the same lengths: what is said of all traffic stays."""
    one = deepcopy(document)
    _drop_shared(one)
    other = deepcopy(one)
    classes = other["classes"]
    split, part = classes[rng.integers(len(classes))], 2.0 ** -int(rng.integers(1, 4))
    twin = deepcopy(split) | {"name": "twin"}
    _scale(twin, part, "rate", "share")
    _scale(split, 1 - part, "rate", "share")
    classes.insert(int(rng.integers(len(classes) + 1)), twin)
    same = _same({}, lambda key: not (_BY_CLASS.search(key) or _DRAWN.match(key)))

    def broken(before: Figures, after: Figures) -> Iterator[str]:
        yield from same(before, after)
        yield from _apart(before, after)

    return Pair(one, other, broken)


def other_order(rng: np.random.Generator, document: Table) -> Pair:
    """Of classes: listings follow, all else stays."""
    classes = document["classes"]
    order = rng.permutation(len(classes)).tolist()

    def moved(match: re.Match[str]) -> str:
        old = int(match[2])
        return f"{match[1]}[{order.index(old) if old < len(order) else old}]"  # sessions follow the classes

    def broken(before: Figures, after: Figures) -> Iterator[str]:
        listed = {re.sub(r"(classes|thresholds)\[(\d+)\]", moved, key): before[key] for key in before}
        yield from _same({}, lambda key: not _DRAWN.match(key))(listed, after)
        yield from _apart(before, after)

    return Pair(document, document | {"classes": [classes[i] for i in order]}, broken)


def fleet_of_one(rng: np.random.Generator, document: Table) -> Pair:
    """A fleet of one replica is that replica, to the last digit, however requests come to it."""
    alone = {key: table for key, table in document.items() if key != "fleet"}
    policy = str(rng.choice(["vllm", "sglang", "greedy"]))

    def broken(before: Figures, after: Figures) -> Iterator[str]:
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                yield f"{key}: {before.get(key)!r}, in a fleet {after.get(key)!r}"

    return Pair(alone, alone | {"fleet": {"replicas": 1, **_routing(rng)}}, broken, _simulate(rng, policy))


def conserved(rng: np.random.Generator, document: Table) -> Pair:
    """Whoever arrives at a fleet, together or split, is done, given up or there still, and counted once.

    Without a horizon nobody is there still, and at a standstill not all have come.
    """
    sides = {"prefill": int(rng.integers(1, 9)), "decode": int(rng.integers(1, 9))}
    together = document | {"fleet": {"replicas": sum(sides.values()), **_routing(rng)}}
    split = document | {"fleet": sides | _routing(rng)}

    command = _simulate(rng, "vllm")

    def lost(which: str, found: Figures) -> Iterator[str]:
        policy = "policies[0]."
        counts = {key: found[policy + key] for key in ("completed", "shed", "unfinished")}
        arrived, stuck = found["arrivals.requests"], found[policy + "status"] == "livelock"
        if sum(counts.values()) > arrived or (sum(counts.values()) < arrived and not stuck):
            yield f"{which}: {arrived} arrived, {counts}"
        if counts["unfinished"] and "--horizon" not in command and not stuck:
            yield f"{which}: {counts['unfinished']} are never done"
        of_classes = [n for key, n in found.items() if re.fullmatch(r".*classes\[\d+\]\.completed", key)]
        if sum(of_classes) != counts["completed"]:
            yield f"{which}: {counts['completed']} completed, of classes {of_classes}"

    def broken(one: Figures, other: Figures) -> Iterator[str]:
        yield from lost("together", one)
        yield from lost("split", other)

    return Pair(together, split, broken, command)


def _routing(rng: np.random.Generator) -> Table:
    return {"routing": str(rng.choice(ROUTERS))}


def _simulate(rng: np.random.Generator, policy: str) -> tuple[str, ...]:
    """A short run, which a horizon may cut, and in which some may be given up."""
    command = ["simulate", "--policy", policy, "--requests", str(rng.integers(1, 200))]
    if rng.random() < 0.4:
        command += ["--horizon", f"{10.0 ** rng.uniform(-2, 4):g}"]
    if policy != "greedy" and rng.random() < 0.4:
        command += ["--set", f"{policy}.shed_after={10.0 ** rng.uniform(-3, 2):g}"]
    return tuple(command)


LAWS: Mapping[str, Callable[[np.random.Generator, Table], Pair]] = {
    "more memory": more_memory,
    "slower clock": slower_clock,
    "larger replica": larger_replica,
    "split class": split_class,
    "other order": other_order,
    "fleet of one": fleet_of_one,
    "conserved": conserved,
}


def _sources(document: Table) -> list[Table]:
    """Whatever requests come from."""
    return [document.get("workload", {}), *document["classes"], *document.get("sessions", ())]


def _has_common(document: Table) -> bool:
    """Whether there can be anything for a prefix cache to find."""
    common = any("shared" in one or "reuse" in one for one in document["classes"])
    return common or "sessions" in document or "prefix" in document


def _make_linear(timing: Table) -> None:
    for key in ("d5", "knee_tokens"):
        timing.pop(key, None)


def _drop_shared(document: Table) -> None:
    for one in document["classes"]:
        one.pop("shared", None)
    for session in document.get("sessions", ()):
        session["shared"] = 0


def _scale(table: Table, factor: float, *keys: str) -> None:
    table |= {key: _scaled(table[key], factor) for key in keys if key in table}


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_scaled(one, factor) for one in value]
    if isinstance(value, str):
        value = float(value.removesuffix(" s"))
    return type(value)(value * factor)


def figures(text: str) -> Figures:
    """All of a report that laws are about."""
    found: Figures = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}".lstrip("."))
        elif isinstance(value, list):
            for i, inner in enumerate(value):
                walk(inner, f"{path}[{i}]")
        elif not _LEFT_OUT.match(path):
            found[path] = value

    walk(json.loads(text), "")
    return found


def _unit(path: str) -> str:
    if path.startswith(_INTERVAL):
        path = path.replace(_INTERVAL, "latency.").partition("[")[0]
    key = re.sub(r"\[\d+\]", "[]", path)
    if key.startswith("latency.cliffs[]") and key.endswith("_s"):
        return "s"
    record = CONTRACT.get(key) or CONTRACT.get(key.removesuffix("[]"))  # of two numbers there is one
    return record.unit if record else ""  # a block that is null has none


def _same(factors: Mapping[str, float], judged: Callable[[str], bool]) -> Comparison:
    """Every figure times the factor of its unit."""

    def near(key: str, was: Any, now: Any) -> bool:
        if not _is_number(was) or not _is_number(now):
            return bool(was == now)
        unit, tolerance = _unit(key), _ROUGHLY if _ROUGH.match(key) else _TOLERANCE
        wanted, least = was * factors.get(unit, 1.0), 0.0 if unit else _SMALL
        return isclose(wanted, now, rel_tol=tolerance, abs_tol=least)

    def broken(before: Figures, after: Figures) -> Iterator[str]:
        for key in filter(judged, sorted(before.keys() | after.keys())):
            was, now = before.get(key), after.get(key)
            if not near(key, was, now):
                yield f"{key}: {was!r}, then {now!r}"

    return broken


def _apart(before: Figures, after: Figures) -> Iterator[str]:
    """Latencies whose intervals are further apart than chance explains."""
    for low in before:
        high = low.replace("[0]", "[1]")
        if not (low.startswith(_INTERVAL) and low.endswith("[0]")) or after.get(low) is None:
            continue
        ends = [(found[low], found[high]) for found in (before, after)]
        if any(end is None for pair in ends for end in pair):
            continue
        apart = abs(sum(ends[0]) - sum(ends[1])) / 2
        if apart > _WIDER * sum(most - least for least, most in ends) / 2:
            yield f"{low}: {ends[0]}, then {ends[1]}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
