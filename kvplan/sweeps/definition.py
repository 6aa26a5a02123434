"""The definition of a sweep: profile, axes, columns. Everything that its results depend on.

Columns ``simulation.POLICY.KEY`` are the keys of `kvplan simulate`; all others are those of `kvplan analyze`.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, NamedTuple

from kvplan.axes import Axis
from kvplan.errors import UsageError, did_you_mean
from kvplan.gate.requirement import parse_key
from kvplan.options import SweepOptions
from kvplan.profile.reading import Profile
from kvplan.report.keys import SCREENS, Kind, gateable
from kvplan.report.ledger import KeyPath, Named, at, named, plain
from kvplan.simulation.metrics import CLASS_KEYS, KEYS
from kvplan.sweeps.vary import Sample, count_points, parse_axes, parse_sample
from kvplan.version import __version__

DEFAULT = tuple(SCREENS["sweep"].split())
DEFAULT_BESIDE_SIMULATED = tuple(SCREENS["sweep_beside_simulated"].split())
DEFAULT_SIMULATED = tuple(SCREENS["sweep_simulated"].split())


@dataclass(frozen=True, slots=True)
class Column:
    """A figure under its key: of a block of the report, or of a policy, the block then being ``simulation``.

    The path has names of fields and numbers of entries, from there on.
    """

    name: str
    block: str
    policy: str
    path: KeyPath
    kind: Kind

    def of(self, result: object) -> int | float | str | bool | None:
        """Return the figure in a block, or in the result of a policy; None where it does not exist."""
        value = at(result, self.path)
        if type(value) is float:  # most are, and there are many
            return value if math.isfinite(value) else None
        return plain(value)  # type: ignore[no-any-return]


def expand(patterns: Iterable[str], classes: Sequence[str], policies: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns that keys and patterns name, in their order, each once.

    Such as ``rate_cap.classes[chat].integer_budget``, with ``*`` for anything and ``[]`` for every class.

    >>> [column.name for column in expand(["saturation.*", "wait.classes[].threshold"], ["a", "b c"], [])][-3:]
    ['saturation.throughput_rps', 'wait.classes[a].threshold', 'wait.classes[b c].threshold']
    """
    every = dict([*_of_report(classes), *_of_simulation(classes, policies)])
    columns: dict[str, Column] = {}
    for text in patterns:
        for name in _matching(text.strip(), every, bool(policies)):
            columns.setdefault(name, _column(name, classes))
    if not columns:
        raise UsageError(f"--columns: at least one key of the report, such as {SCREENS['usual']}")
    return tuple(columns.values())


def _matching(text: str, every: dict[str, str], simulated: bool) -> Iterable[str]:
    if text.startswith("simulation") and not simulated:
        raise UsageError(f"--columns {text[:80]!r}: needs --simulate")
    if "*" in text:
        # a part, once found, stays where it is: nothing is tried twice
        first, *between, last = map(re.escape, text.split("*"))
        pattern = re.compile(f"{first}{''.join(f'(?>.*?{part})' for part in between)}.*{last}")
        names = [
            name for name, general in every.items() if pattern.fullmatch(name) or pattern.fullmatch(general)
        ]
    else:
        names = [name for name, general in every.items() if text in (name, general)]
    if not names and "*" in text:
        raise UsageError(f"--columns {text[:80]!r}: no key of the report is like that")
    if not names and text.startswith("simulation"):
        nearest = get_close_matches(text[:100], every, n=1, cutoff=0)
        raise UsageError(f"--columns {text[:80]!r}: unknown key; did you mean {nearest[0]}?")
    return names or [text]


def _of_report(classes: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield keys that every point has, and their general form; not those of lists that differ from point to point."""
    for key, record in gateable().items():
        pair = key.removesuffix("[]")
        for each in [f"{pair}[{i}]" for i in range(2)] if record.kind is Kind.PAIR else [key]:
            head, bracket, rest = each.partition("[]")
            if not bracket:
                yield each, key
            elif record.is_by_class and not rest:
                yield from ((f"{head}[{i}]", key) for i in range(len(classes)))
            elif record.is_by_class and rest != ".name":
                yield from ((f"{head}{named(name)}{rest}", key) for name in classes)


def _of_simulation(classes: Sequence[str], policies: Sequence[str]) -> Iterable[tuple[str, str]]:
    for policy in policies:
        keys = [
            ("status", "status"),
            *((key, key) for key in KEYS),
            *((f"ci95.{key}[{i}]", f"ci95.{key}[]") for key in KEYS for i in range(2)),
            *((f"classes{named(name)}.{key}", f"classes[].{key}") for name in classes for key in CLASS_KEYS),
        ]
        yield from ((f"simulation.{policy}.{key}", f"simulation.{policy}.{general}") for key, general in keys)


_ENTRY = re.compile(r"classes(\[.*\])\.(.*)")


def _column(name: str, classes: Sequence[str]) -> Column:
    if name.startswith("simulation."):
        return _simulated(name, classes)
    try:
        key = parse_key(name)
    except UsageError as error:
        raise UsageError(f"--columns: {error}") from None
    block, *rest = key.path
    path: list[str | int | Named] = []
    for part in rest:
        if isinstance(part, Named) and part.name not in classes:
            what = did_you_mean(part.name, classes, "the classes are")
            raise UsageError(f"--columns {name[:80]!r}: no class has that name; {what}")
        if isinstance(part, int) and rest[0] == "classes" and part >= len(classes):
            raise UsageError(f"--columns {name[:80]!r}: there are {len(classes)} classes, counted from 0")
        path.append(part)
    return Column(name, str(block), "", tuple(path), key.kind)


def _simulated(name: str, classes: Sequence[str]) -> Column:
    _, policy, key = name.split(".", 2)
    kind = Kind.TEXT if key == "status" else Kind.NUMBER
    if entry := _ENTRY.fullmatch(key):
        which = next(Named(c) for c in classes if named(c) == entry[1])
        return Column(name, "simulation", policy, ("classes", which, "figures", entry[2]), kind)
    if key.startswith("ci95."):
        figure, end = key.removeprefix("ci95.")[:-1].split("[")
        return Column(name, "simulation", policy, ("ci95", figure, int(end)), kind)
    return Column(name, "simulation", policy, ("status",) if key == "status" else ("figures", key), kind)


_POLICIES, _REQUESTS = ("greedy", "vllm"), 1_000  # of simulations where nothing else is said
FORMAT = 1  # of the files
_WORTH_COMPILING = 50_000  # requests: about ten seconds of plain Python
_SIMULATED_TOGETHER, _COMPILED_TOGETHER = 1_000, 40_000  # requests in a batch: a tenth of a second compiled
_TOGETHER = ("load", "equilibrium", "saturation")  # blocks that are computed for many points at once


class Runs(NamedTuple):
    """Simulations at every point: policies on the same Poisson arrivals.

    Point i has the seeds ``seed + i·seeds`` and on, so that points share no chance.
    """

    policies: tuple[str, ...]
    requests: int
    seeds: int

    @property
    def total(self) -> int:
        """Requests of one point."""
        return len(self.policies) * self.requests * self.seeds


@dataclass(frozen=True)
class Sweep:
    """A sweep, before anything is computed. Equal sweeps have equal results, wherever they are computed.

    Name, SHA-256 and text are the profile's; without a sample it is a grid.
    """

    name: str
    sha256: str
    text: str
    axes: tuple[Axis, ...]
    sample: Sample | None
    seed: int
    columns: tuple[Column, ...]
    runs: Runs | None
    version: str = __version__

    @cached_property
    def points(self) -> int:
        """Number of points."""
        return count_points(self.axes, self.sample)

    @cached_property
    def batch(self) -> int:
        """Points that are computed together. Batches begin at multiples of this, whoever computes them."""
        if self.runs is not None:
            together = _COMPILED_TOGETHER if self.compiled else _SIMULATED_TOGETHER
            return min(max(together // self.runs.total, 1), 256)
        return 1024 if all(column.block in _TOGETHER for column in self.columns) else 16

    @cached_property
    def compiled(self) -> bool:
        """True where there is so much to simulate that compiling the loops first is worth it."""
        return self.runs is not None and self.points * self.runs.total >= _WORTH_COMPILING

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns of the results."""
        return ("point", *(axis.key for axis in self.axes), *(c.name for c in self.columns), "error")

    def header(self) -> dict[str, Any]:
        """Return the header of a file of results; files of the same header have the same rows."""
        sample, runs = self.sample, self.runs
        return {
            "kvplan_sweep": FORMAT,
            "kvplan_version": self.version,
            "profile": {"name": self.name, "sha256": self.sha256},
            "points": self.points,
            "vary": {axis.key: axis.text for axis in self.axes},
            "sample": None if sample is None else f"{sample.kind}:{sample.points}",
            "seed": self.seed,
            "simulate": None if runs is None else runs._asdict() | {"policies": list(runs.policies)},
            "columns": [column.name for column in self.columns],
        }


def asked_for(profile: Profile, asked: SweepOptions) -> Sweep:
    """Define the sweep that options ask for; naming policies asks for simulations, too."""
    runs = None
    if asked.simulate or asked.policy:
        from kvplan.simulation.experiments import options

        requests = _REQUESTS if asked.requests is None else asked.requests
        options.check_requests(requests)
        seeds = options.seeds(asked.seed, 1 if asked.seeds is None else asked.seeds)
        runs = Runs(tuple(options.chosen(asked.policy or _POLICIES, [])), requests, len(seeds))
    elif (asked.seeds, asked.requests) != (None, None):
        raise UsageError(f"--{'seeds' if asked.seeds else 'requests'} goes with --simulate only")
    return define(profile, asked.vary, sample=asked.sample, seed=asked.seed, columns=asked.columns, runs=runs)


def define(
    profile: Profile,
    vary: Sequence[str],
    *,
    sample: str | None = None,
    seed: int = 0,
    columns: Sequence[str] | None = None,
    runs: Runs | None = None,
) -> Sweep:
    """Define a sweep by the command line, checked; nothing is computed yet.

    See `kvplan.sweeps.vary.parse_axes` and, for columns, `kvplan.sweeps.definition.expand`; a sample is ``random:N`` or
    ``lhs:N``.

    Examples
    --------
    >>> from io import BytesIO
    >>> from kvplan.profile.reading import load_profile
    >>> define(load_profile("tool-calls-h100", stdin=BytesIO()), ["plan.delta=1e-6:1e-2:log5"]).points
    5
    """
    from kvplan.profile import schema

    if seed < 0:
        raise UsageError(f"--seed {seed}: 0 or more")
    tables = profile.tables
    drawn = None if sample is None else parse_sample(sample, seed)
    axes = parse_axes(vary, schema.check(tables), tables, drawn)
    policies = () if runs is None else runs.policies
    simulated = [f"simulation.{policy}.{key}" for policy in policies for key in DEFAULT_SIMULATED]
    usual = DEFAULT if runs is None else (*DEFAULT_BESIDE_SIMULATED, *simulated)
    names = [*(c.name for c in profile.model.classes), *profile.model.left_out]
    chosen = expand(columns or usual, names, policies)
    if runs is not None and all(column.block != "simulation" for column in chosen):
        raise UsageError(
            "--columns has no key of the simulation, such as simulation.greedy.throughput_rps; or leave out --simulate"
        )
    return Sweep(profile.name, profile.sha256, profile.text, axes, drawn, seed, chosen, runs)
