"""What programs and notebooks call; everything heavy is imported when a function is called."""

from collections.abc import Callable, Iterable, Mapping

TYPE_CHECKING = False  # as type checkers know it; to import `typing` takes most of what `import kvplan` does
if TYPE_CHECKING:
    import os
    from pathlib import Path
    from typing import TypeAlias

    from kvplan.api.outcomes import Checked, Imported, Plan
    from kvplan.api.results import Report, Study, Sweep
    from kvplan.profile.reading import Profile
    from kvplan.simulation.requests import Requests

    PathLike: TypeAlias = str | os.PathLike[str]
    Service: TypeAlias = PathLike | Profile


def load(profile: "PathLike | None" = None) -> "Profile":
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
    from kvplan.api import arguments

    return arguments.profile(profile)


def plan(
    services: "Service | Iterable[Service]",
    *,
    gpu: str | Iterable[str] | None = None,
    tp: int | str | Iterable[int] | None = None,
    dp: int | str | Iterable[int] | None = None,
    ep: int | str | Iterable[int] | None = None,
    pp: int | str | Iterable[int] | None = None,
    dcp: int | str | Iterable[int] | None = None,
    weights: str | Iterable[str] | None = None,
    kv_dtype: str = "auto",
    gpu_memory: str | None = None,
    gpu_bandwidth: str | None = None,
    gpu_flops: str | None = None,
    loras: int | None = None,
    lora_rank: int | None = None,
    engine: str = "vllm",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    rate: float | None = None,
    users: int | None = None,
    think: float | str | None = None,
    input: float | str | None = None,
    output: float | str | None = None,
    trace: "PathLike | None" = None,
    system_prompt: int = 0,
    turns: float = 1.0,
    slo: str | Iterable[str] = (),
    gpu_hour: float | str | Mapping[str, float] | None = None,
    replica_hour: float | str | Mapping[str, float] | None = None,
    headroom: float | str | None = None,
    slower: float | str | None = None,
    settings: str | Iterable[str] | Mapping[str, object] = (),
    router: str = "any",
    split: bool = False,
    schedule: "PathLike | None" = None,
    load_time: float | str | None = None,
    executor: str = "serial",
    folder: "PathLike | None" = None,
    progress: Callable[[str], None] | None = None,
) -> "Plan":
    """Find the cheapest replicas that meet the objectives of a demand, as `kvplan plan` does.

    Parameters
    ----------
    services
        A model of the catalogue or a config.json, or one or more profiles.
    gpu, tp, weights
        Of a model: GPUs, GPUs that share its layers, and types of its weights, to be compared.
    dp, ep, pp, dcp
        Data-parallel ranks, GPUs that share experts, stages, and GPUs that share the KV cache of a request, likewise.
    gpu_memory, gpu_bandwidth, gpu_flops
        Figures of a GPU that the catalogue does not have, such as ``"96GB"``, ``"4TB/s"`` and ``"148TFLOPS"``.
    loras, lora_rank
        LoRA adapters that are loaded at once, and their rank.
    engine, max_num_seqs, max_num_batched_tokens, max_model_len
        With its version if that is known, ``"vllm==0.15.1"``, and its limits, which are not searched then.
    rate, users, think
        Requests/s, or users who think for so long between requests; times are numbers of seconds, or have a unit.
    input, output
        Tokens of prompts and answers, ``3000`` or ``"3000:0.8"`` with a coefficient of variation.
    slo
        Objectives, such as ``"ttft-p95=2s"``.
    gpu_hour, replica_hour
        Prices, for all or by name.
    headroom, slower
        Shares, such as ``0.2`` or ``"20%"``.
    trace
        Requests to replay instead of lengths; the planned profile refers to it from `folder`.
    settings
        Of the engine, such as ``{"max_num_batched_tokens": 8192}``, instead of searched.
    schedule
        A file, or ``"own"`` for that of the profile.
    executor
        Where kinds are looked at: ``serial``, ``cores``, ``dask`` or the address of a scheduler.
    progress
        Told what is being looked at.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> found = plan("Llama-3.1-8B", gpu="H100", tp=1, weights="bf16", rate=4, input=500, output=50,
    ...              slo="ttft-p95=2s", gpu_hour=3)
    >>> found.status.value, found.setting.replicas, found.cost.per_hour
    ('planned', 1, 3.0)
    """
    given = locals()
    from kvplan import executors
    from kvplan.api import arguments, outcomes
    from kvplan.options import LIMITS, PlanOptions
    from kvplan.planning import options
    from kvplan.planning.plan import plan as search

    executors.check(executor, None)
    for limit in LIMITS:
        arguments.check_positive(given[limit], limit)
    asked = arguments.record(PlanOptions, given)
    request = options.request(arguments.services(services), asked, arguments.path(folder or "", "folder"))
    with executors.started(executor, None) as place:
        return outcomes.Plan._make(search(request, progress or (lambda _: None), engine=place))


def analyze(
    profile: "Service | None" = None,
    *,
    slo: str | Iterable[str] = (),
    trial: bool = False,
    progress: Callable[[float], None] | None = None,
) -> "Report":
    """Report on a profile as `kvplan analyze` does: nested named tuples, whose fields are the keys of its JSON.

    Parameters
    ----------
    slo
        Objectives beside those of the profile.
    trial
        Whether to run the replica where a burst can empty its prefix cache, which takes seconds.
    progress
        Told what part of these runs is done.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> report = analyze("llama-3.1-8b-rtx4090")
    >>> report.verdict.status.value, round(report.load.sustainable_rps, 2)
    ('stable', 3.92)
    """
    from kvplan.api import arguments, results
    from kvplan.report import assembly

    loaded = arguments.with_slos(arguments.profile(profile), slo)
    report = assembly.analyze(
        loaded.model, name=loaded.name, sha256=loaded.sha256, plan=loaded.plan, trial=trial, progress=progress
    )
    return results.of_report(report, loaded)


def check(
    profile: "Service | None" = None,
    *,
    require: str | Iterable[str] = (),
    accept: str | Iterable[str] = (),
    baseline: "PathLike | None" = None,
    tolerance: str | Iterable[str] | Mapping[str, float | str] = (),
    remedies: bool = False,
    progress: Callable[[float], None] | None = None,
) -> "Checked":
    """Judge a profile by its requirements, as `kvplan check` does.

    Parameters
    ----------
    require
        Requirements beside its own, such as ``"load.headroom >= 20%"``.
    accept
        Parts that may be assumed: ``gpu``, ``timing``, ``workload``.
    baseline, tolerance
        An earlier report in JSON, and by how much keys may differ from it.
    remedies
        Whether to look for the smallest change that would pass.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> found = check("llama-3.1-8b-rtx4090", require="load.headroom >= 20%", accept=["workload"])
    >>> found.outcome.value, round(found.results[0].judgement.got, 4)
    ('passed', 1.6166)
    """
    from kvplan.api import arguments, outcomes
    from kvplan.gate import check as checking

    required = checking.requirements(arguments.texts(require, "require"))
    before = checking.baseline(
        None if baseline is None else str(arguments.path(baseline, "baseline")),
        arguments.pairs(tolerance, "tolerance"),
    )
    found = checking.check(
        arguments.profile(profile),
        None,
        required,
        before,
        accepted=[
            arguments.choice(part, "accept", ("gpu", "timing", "workload"))
            for part in arguments.texts(accept, "accept")
        ],
        changes=remedies,
        progress=progress,
    )
    return outcomes.of_check(found)


def import_files(
    files: "PathLike | Iterable[PathLike]" = (),
    *,
    model: "PathLike | None" = None,
    gpu: str | None = None,
    engine: str | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    capacity: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    pp: int | None = None,
    dcp: int | None = None,
    weights: str | None = None,
    kv_dtype: str = "auto",
    gpu_memory: str | None = None,
    gpu_bandwidth: str | None = None,
    gpu_flops: str | None = None,
    loras: int | None = None,
    lora_rank: int | None = None,
    utilization: float | None = None,
    base: "Service | None" = None,
    told: "Mapping[str, PathLike] | None" = None,
    group: str | None = None,
    since: "PathLike | None" = None,
    interval: float | str | None = None,
    unit: str | None = None,
    classes: int | None = None,
    name: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> "Imported":
    """Make one profile of whatever there is, as `kvplan import` does.

    Parameters
    ----------
    files
        Logs, results, requests, metrics, a config.json, a profile: told apart by content.
    model, gpu
        To estimate what no file measures; further arguments on how it runs are those of `plan`.
    told
        Files by what they are, ``log``, ``timing``, ``requests`` and so on, where that is not recognised.
    unit
        What times of requests are in, ``s``, ``ms``, ``us`` or ``ns``, where the file does not say.

    Returns
    -------
    Imported
        `profile` is the profile, `given` what each file gave.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> found = import_files(model="Llama-3.1-8B", gpu="H100")
    >>> found.profile.missing, found.given[0].table
    (('classes',), 'gpu')
    """
    given = locals()
    from kvplan.api import arguments, outcomes
    from kvplan.ingest.gathering import Asked, gather_files
    from kvplan.ingest.recognition import named
    from kvplan.options import LIMITS, ImportOptions

    for count in ("capacity", "tp", "dp", "ep", "pp", "dcp", "classes", *LIMITS):
        arguments.check_positive(given[count], count)
    asked = Asked(**vars(arguments.record(ImportOptions, given)), progress=progress)
    kept = None if base is None else arguments.profile(base)
    paths = named(arguments.paths(files, "files"), arguments.assignments(told or {}, "told"))
    return outcomes.Imported._make(gather_files(paths, asked, kept))


def simulate(
    profile: "Service | None" = None,
    policy: str | Iterable[str] | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    grid: Mapping[str, object] | None = None,
    arrivals: str | None = None,
    cv: float | None = None,
    concurrency: int | None = None,
    burst: str | Iterable[float] | None = None,
    trace: "PathLike | None" = None,
    requests: int | None = None,
    horizon: float | str | None = None,
    burst_sessions: str | None = None,
    slo: str | Iterable[str] = (),
    seeds: int = 1,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> "Study":
    """Simulate policies side by side on the same requests, as `kvplan simulate --policy` does.

    Parameters
    ----------
    policy
        One, or several to compare; those of the grid if None, vllm without one.
    settings
        Parameters of policies, such as ``{"vllm.watermark": 0.05}``; lists for those that are lists.
    grid
        Values to try of parameters, in all combinations, such as ``{"flow-unknown.budget": "8:24:9"}``.
    arrivals
        ``poisson``, ``gamma``, ``burst``, ``saturated``, ``interleaved`` or ``closed``; None: as the profile says.
    cv
        Of the gaps between gamma arrivals.
    concurrency
        Of closed arrivals: how many clients; 128 if None.
    burst
        Of burst arrivals: factors of the rates during and between bursts, and the seconds of each.
    trace
        File whose requests are replayed; rows that generate nothing are left out.
    requests
        In all; 10,000 if there is no horizon either, those of a trace if there is one.
    horizon
        Where the clock stops; a number is one of seconds.
    burst_sessions
        ``"N@TIME"``: so many sessions beside the others, all at a time.
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
    >>> study = simulate("tool-calls-h100", "vllm", requests=50)
    >>> study.results[0].policy, study.results[0].completed
    ('vllm', 50.0)
    >>> single = simulate("tool-calls-h100", arrivals="closed", concurrency=1, requests=50)
    >>> single.results[0].queue.peak  # of a single client, which waits for its answer before it asks again
    1.0
    """
    given = locals()
    from functools import partial

    from kvplan.api import arguments, results
    from kvplan.options import RunOptions
    from kvplan.simulation.experiments import options, study

    loaded = arguments.with_slos(arguments.profile(profile), slo)
    asked = arguments.record(RunOptions, given)
    recorded = None if asked.trace is None else partial(_replayed, asked.trace)
    load, all_seeds = options.drawn(loaded.model, asked, recorded)
    texts, tried = (
        arguments.assignments({} if each is None else each, name)
        for name, each in (("settings", settings), ("grid", grid))
    )
    names = (options.searched(tried) or ["vllm"]) if policy is None else arguments.names(policy, "policy")
    policies = options.chosen(names, texts, tried)
    found = study.study(loaded.model, loaded.plan, load, policies, all_seeds, progress=progress)
    return results.of_study(found, loaded)


def _replayed(trace: "Path") -> "Requests":
    from kvplan.ingest.trace.replay import read_trace

    return read_trace(trace).requests


def sweep(
    profile: "Service",
    vary: Mapping[str, object],
    columns: str | Iterable[str] | None = None,
    *,
    sample: str | None = None,
    seed: int = 0,
    policy: str | Iterable[str] = (),
    requests: int = 1_000,
    seeds: int = 1,
) -> "Sweep":
    """Compute figures at every combination of values, as `kvplan sweep` does, here in this process.

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
    policy
        Policies to simulate at every point; none if empty.
    requests, seeds
        Of each simulation.

    Returns
    -------
    Sweep, a dict of str to ndarray, each of shape (n_points,)
        ``point``, what is varied, the columns, and ``error``. `point` is whole; other numbers are floats, NaN where
        there is none; all else are objects. `pandas.DataFrame` takes it as it is.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> found = sweep("tool-calls-h100", {"gpu.max_num_seqs": [10, 1000]}, ["verdict.binding"])
    >>> found["verdict.binding"].tolist()
    ['max_num_seqs', 'compute']
    """
    from kvplan.api import arguments, results
    from kvplan.errors import UsageError
    from kvplan.simulation.experiments import options
    from kvplan.sweeps.definition import Runs, define
    from kvplan.sweeps.results import arrays

    loaded = arguments.profile(profile)
    axes = arguments.assignments(vary, "vary")
    if sample is not None and not isinstance(sample, str):
        raise UsageError("sample: 'random:N' or 'lhs:N' is wanted")
    seed = arguments.whole(seed, "seed")
    keys = None if columns is None else arguments.names(columns, "columns")
    if keys == []:
        raise UsageError("columns: at least one key of the report, such as load.headroom")
    names = arguments.names(policy, "policy")
    runs = None
    if names:
        count = arguments.whole(requests, "requests")
        options.check_requests(count)
        all_seeds = options.seeds(seed, arguments.whole(seeds, "seeds"))
        runs = Runs(tuple(options.chosen(names, [])), count, len(all_seeds))
    return results.Sweep(arrays(define(loaded, axes, sample=sample, seed=seed, columns=keys, runs=runs)))
