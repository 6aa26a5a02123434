"""What programs and notebooks call; everything heavy is imported when a function is called."""

from collections.abc import Callable, Iterable, Mapping

TYPE_CHECKING = False  # as type checkers know it; to import `typing` takes most of what `import kvplan` does
if TYPE_CHECKING:
    import os
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from kvplan.profile.reading import Profile
    from kvplan.report.assembly import Report
    from kvplan.simulation.experiments.study import Study
    from kvplan.simulation.requests import Requests


def load(profile: "str | os.PathLike[str] | None" = None) -> "Profile":
    """Read a profile: a TOML file, or the name of a shipped one; the shipped default if None.

    Raises
    ------
    kvplan.errors.ProfileError
        With file, line and key of what is wrong.
    kvplan.errors.UsageError
        It is neither a path nor a name.

    Examples
    --------
    >>> load("tool-calls-h100").model.total_rate_rps
    45.0
    """
    import os
    from io import BytesIO

    from kvplan.errors import UsageError
    from kvplan.ingest.trace.replay import with_trace
    from kvplan.profile.reading import load_profile

    if profile is not None and not isinstance(profile, str | os.PathLike):
        from kvplan.errors import shown

        raise UsageError(f"load: a path or the name of a shipped profile is wanted, not {shown(profile)}")
    return with_trace(load_profile(None if profile is None else os.fspath(profile), stdin=BytesIO()))


def analyze(
    profile: "Profile", *, trial: bool = False, progress: Callable[[float], None] | None = None
) -> "Report":
    """Everything that `kvplan analyze` says, as nested named tuples; blocks and fields are the keys of its JSON.

    Parameters
    ----------
    trial
        Whether to run the replica where a burst can empty its prefix cache, which takes seconds.
    progress
        Told what part of these runs is done.

    Raises
    ------
    kvplan.errors.UsageError
        It is not a profile, but a name, say.

    Examples
    --------
    >>> report = analyze(load("tool-calls-h100"))
    >>> report.verdict.status.value, round(report.load.sustainable_rps, 2)
    ('stable', 54.87)
    """
    from kvplan.api import arguments
    from kvplan.report import assembly

    profile = arguments.profile(profile)
    return assembly.analyze(
        profile.model,
        name=profile.name,
        sha256=profile.sha256,
        plan=profile.plan,
        trial=trial,
        progress=progress,
    )


def simulate(
    profile: "Profile",
    policies: str | Iterable[str] = ("vllm",),
    *,
    settings: Mapping[str, object] | None = None,
    arrivals: str | None = None,
    concurrency: int | None = None,
    trace: "str | os.PathLike[str] | None" = None,
    requests: int | None = None,
    horizon_s: float | None = None,
    seeds: int = 1,
    seed: int = 0,
) -> "Study":
    """Policies side by side on the same requests, as `kvplan simulate` runs them.

    Parameters
    ----------
    settings
        Parameters of policies, such as ``{"vllm.watermark": 0.05}``; lists for those that are lists.
    arrivals
        ``poisson``, ``gamma``, ``burst``, ``saturated``, ``interleaved`` or ``closed``; None: as the profile says.
    concurrency
        Of closed arrivals: how many clients; 128 if None.
    trace
        File whose requests are replayed; rows that generate nothing are left out.
    requests
        In all; 10,000 if there is no horizon either, those of a trace if there is one.
    horizon_s
        Where the clock stops, seconds.
    seeds, seed
        How many, and the first of them.

    Returns
    -------
    Study
        `results` has figures and confidence intervals of each policy, `first` the run of the first seed.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> found = simulate(load("tool-calls-h100"), ["vllm"], requests=50)
    >>> found.results[0].policy, found.results[0].completed
    ('vllm', 50.0)
    >>> one = simulate(load("tool-calls-h100"), arrivals="closed", concurrency=1, requests=50)
    >>> one.results[0].queue.peak  # of a single client, which waits for its answer before it asks again
    1.0
    """
    from functools import partial

    from kvplan.api import arguments
    from kvplan.errors import UsageError
    from kvplan.simulation.experiments import options, study
    from kvplan.simulation.experiments.load import Arrivals

    profile = arguments.profile(profile)
    kinds = [kind.value for kind in Arrivals]
    if arrivals is not None and arrivals not in kinds:
        raise UsageError(f"arrivals {arrivals!r} do not exist; there are {', '.join(kinds)}")
    given = options.load(
        kind=arrivals,
        cv=None,
        concurrency=None if concurrency is None else arguments.whole(concurrency, "concurrency"),
        burst=None,
        trace=None if trace is None else partial(_replayed, arguments.path(trace, "trace")),
        requests=None if requests is None else arguments.whole(requests, "requests"),
        horizon=None if horizon_s is None else str(horizon_s),
        model=profile.model,
    )
    options.check_sessions(given, profile.model)
    names = arguments.names(policies, "policies")
    texts = arguments.assignments({} if settings is None else settings, "settings")
    all_seeds = options.seeds(
        arguments.whole(seed, "seed"),
        arguments.whole(seeds, "seeds"),
        without_chance=None
        if given.trace is None
        else "the trace of the profile"
        if trace is None
        else "--trace",
    )
    return study.study(profile.model, profile.plan, given, options.chosen(names, texts), all_seeds)


def _replayed(trace: "Path") -> "Requests":
    from kvplan.ingest.trace.replay import read_trace

    return read_trace(trace).requests


def sweep(
    profile: "Profile",
    vary: Mapping[str, object],
    columns: str | Iterable[str] | None = None,
    *,
    sample: str | None = None,
    seed: int = 0,
    policies: str | Iterable[str] = (),
    requests: int = 1_000,
    seeds: int = 1,
) -> "dict[str, NDArray[Any]]":
    """Figures at every combination of values, as `kvplan sweep` computes them, here in this process.

    Parameters
    ----------
    vary
        Numbers of the profile by key, such as ``{"gpu.memory_tokens": "20k:400k:20", "classes.chat.rate": [1, 2]}``.
    columns
        Keys of the report, ``*`` for anything, in a list or a text with commas; a few if None.
    sample
        ``random:N`` or ``lhs:N`` instead of a grid.
    seed
        Of the sample and of simulations.
    policies
        To simulate at every point; none if empty.
    requests, seeds
        Of each simulation.

    Returns
    -------
    dict of str to ndarray, each of shape (n_points,)
        ``point``, what is varied, the columns, and ``error``. `point` is whole; other numbers are floats, NaN where
        there is none; all else are objects. `pandas.DataFrame` takes it as it is.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> found = sweep(load("tool-calls-h100"), {"gpu.max_num_seqs": [10, 1000]}, ["verdict.binding"])
    >>> found["verdict.binding"].tolist()
    ['max_num_seqs', 'compute']
    """
    from kvplan.api import arguments
    from kvplan.errors import UsageError
    from kvplan.simulation.experiments import options
    from kvplan.sweeps.definition import Runs, define
    from kvplan.sweeps.results import arrays

    profile = arguments.profile(profile)
    axes = arguments.assignments(vary, "vary")
    if sample is not None and not isinstance(sample, str):
        raise UsageError("sample: 'random:N' or 'lhs:N' is wanted")
    seed = arguments.whole(seed, "seed")
    keys = None if columns is None else arguments.names(columns, "columns")
    if keys == []:
        raise UsageError("columns: at least one key of the report, such as load.headroom")
    names = arguments.names(policies, "policies")
    runs = None
    if names:
        count = arguments.whole(requests, "requests")
        options.load(
            kind=None, cv=None, concurrency=None, burst=None, trace=None, requests=count, horizon=None
        )
        all_seeds = options.seeds(seed, arguments.whole(seeds, "seeds"))
        runs = Runs(tuple(options.chosen(names, [])), count, len(all_seeds))
    return arrays(define(profile, axes, sample=sample, seed=seed, columns=keys, runs=runs))
