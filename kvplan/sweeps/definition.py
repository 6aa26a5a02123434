"""The definition of a sweep: profile, axes, columns. Everything that its results depend on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from kvplan.axes import Axis
from kvplan.errors import UsageError
from kvplan.options import SweepOptions
from kvplan.profile.reading import Profile
from kvplan.sweeps.columns import DEFAULT, DEFAULT_BESIDE_SIMULATED, DEFAULT_SIMULATED, Column, expand
from kvplan.sweeps.vary import Sample, count_points, parse_axes, parse_sample
from kvplan.version import __version__

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
        """Return what a file of results says of itself; files of the same header have the same rows."""
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
    """Define a sweep from what the command line says, checked; nothing is computed yet.

    See `kvplan.sweeps.vary.parse_axes` and, for columns, `kvplan.sweeps.columns.expand`; a sample is ``random:N`` or
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
    found = expand(columns or usual, names, policies)
    if runs is not None and all(column.block != "simulation" for column in found):
        raise UsageError(
            "--columns has no key of the simulation, such as simulation.greedy.throughput_rps; or leave out --simulate"
        )
    return Sweep(profile.name, profile.sha256, profile.text, axes, drawn, seed, found, runs)
