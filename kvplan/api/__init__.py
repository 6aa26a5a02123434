"""Functions for programs and notebooks; everything heavy is imported when one is called."""

from typing import TYPE_CHECKING

from kvplan.arguments import AnyPath, takes
from kvplan.options import (
    AnalyzeOptions,
    CheckOptions,
    ImportOptions,
    MeasureOptions,
    PlanOptions,
    SimulateOptions,
    SweepOptions,
)

if TYPE_CHECKING:
    from kvplan.api.outcomes import Checked, Imported, Measured, Plan
    from kvplan.api.results import Report, Study, Sweep
    from kvplan.profile.reading import Profile


def load(profile: AnyPath | None = None) -> "Profile":
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
    from kvplan.api import services

    return services.profile(profile)


@takes(PlanOptions)
def plan(asked: PlanOptions) -> "Plan":
    """Find the cheapest replicas that meet the objectives of a demand, as `kvplan plan` does.

    `services` are a model of the catalogue or a config.json, or one or more profiles. `progress` is told what is being
    looked at.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> cheapest = plan("Llama-3.1-8B", gpu="H100", tp=1, weights="fp8", rate=60, input="500:0", output="20:0",
    ...                 slo="ttft-p95=300ms", gpu_hour=3)
    >>> cheapest.status.value, cheapest.setting.replicas, cheapest.cost.per_hour
    ('planned', 1, 3.0)
    """
    from kvplan import executors
    from kvplan.api import outcomes, services
    from kvplan.planning.options import request
    from kvplan.planning.plan import plan as search

    executors.check(asked.executor, None)
    wanted = request(services.several(asked.services), asked)
    with executors.started(asked.executor, None) as place:
        return outcomes.Plan._make(search(wanted, asked.progress or (lambda _: None), engine=place))


@takes(MeasureOptions)
def measure(asked: MeasureOptions) -> "Measured":
    """Propose the runs that settle how many replicas a profile takes, as `kvplan measure` does.

    The result has the `runs`, what each is expected to show, and a `script` of them.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> measured = measure("two-tier-100-125", slo="tpot-mean=100ms")
    >>> measured.runs[0].concurrency, measured.script.splitlines()[0]
    (1, '#!/usr/bin/env bash')
    """
    from kvplan.api import outcomes, services
    from kvplan.emit.benchmarks import address, commands_of
    from kvplan.planning.measuring import measuring

    commands_of(asked.tool)  # before anything is run
    address(asked.url)
    loaded = services.profile(asked.profile).with_slos(asked.slo)
    return outcomes.Measured.of_answer(measuring(loaded, asked.minutes), asked=asked)


@takes(AnalyzeOptions)
def analyze(asked: AnalyzeOptions) -> "Report":
    """Report on a profile as `kvplan analyze` does: nested named tuples, whose fields are the keys of its JSON.

    `progress` is told what part of the runs of a trial is done.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> report = analyze("llama-3.1-8b-rtx4090")
    >>> report.verdict.status.value, round(report.load.sustainable_rps, 2)
    ('stable', 3.92)
    """
    from kvplan.api import results, services
    from kvplan.report import assembly

    loaded = services.profile(asked.profile).with_slos(asked.slo)
    report = assembly.analyze(
        loaded.model,
        name=loaded.name,
        sha256=loaded.sha256,
        plan=loaded.plan,
        trial=asked.trial,
        progress=asked.progress,
    )
    return results.Report.of_answer(report, of=loaded)


@takes(CheckOptions)
def check(asked: CheckOptions) -> "Checked":
    """Judge a profile by its requirements, as `kvplan check` does.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> checked = check("llama-3.1-8b-rtx4090", require="load.headroom >= 20%", accept=["workload"])
    >>> checked.outcome.value, round(checked.results[0].judgement.got, 4)
    ('passed', 1.6166)
    """
    from kvplan.api import outcomes, services
    from kvplan.gate import check as checking

    demands = checking.demands(asked)
    checked = checking.check(
        services.profile(asked.profile),
        None,
        *demands,
        accepted=asked.accept,
        changes=asked.remedies,
        progress=asked.progress,
    )
    return outcomes.Checked._make(checked)


@takes(ImportOptions)
def import_files(asked: ImportOptions) -> "Imported":
    """Make one profile of whatever there is, as `kvplan import` does.

    `files` are logs, results, requests, metrics, a config.json, a profile: told apart by content. `base` is a profile
    that supplies what is neither measured nor estimated. The result has the profile, and what each file gave.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> imported = import_files(model="Llama-3.1-8B", gpu="H100")
    >>> imported.profile.missing, imported.given[0].table
    (('classes',), 'gpu')
    """
    from pathlib import Path

    from kvplan.api import outcomes, services
    from kvplan.ingest.gathering import Asked, gather_files
    from kvplan.ingest.recognition import named

    kept = None if asked.base is None else services.profile(asked.base)
    files = named(services.paths(asked.files, "files"), asked.told)
    return outcomes.Imported._make(gather_files(files, Asked(**vars(asked)), kept, asked.folder or Path()))


@takes(SimulateOptions)
def simulate(asked: SimulateOptions) -> "Study":
    """Simulate policies side by side on the same requests, as `kvplan simulate --policy` does; vllm if none is named.

    The result has figures and confidence intervals of each policy as `results`, and its run of the first seed as
    `first`. `note` is told what a user should know, `announce` of policies whose loop is compiled.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> study = simulate("tool-calls-h100", "vllm", requests=50)
    >>> study.results[0].policy, study.results[0].figures["completed"]
    ('vllm', 50.0)
    >>> single = simulate("tool-calls-h100", arrivals="closed", concurrency=1, requests=50)
    >>> single.results[0].figures["queue.peak"]  # of a single client, which waits for its answer before it asks again
    1.0
    """
    from kvplan.api import results, services
    from kvplan.errors import UsageError
    from kvplan.simulation.experiments import options, study
    from kvplan.simulation.experiments.hindsight_bound import study_bounds

    loaded = services.profile(asked.profile).with_slos(asked.slo)
    load, seeds = options.drawn(loaded.model, asked, services.recorded(asked, loaded.model.max_model_len))
    names = asked.policy or options.searched(asked.grid) or ["vllm"]
    policies = options.chosen(names, asked.settings, asked.grid)
    if asked.hindsight and loaded.model.fleet is not None:
        raise UsageError("--hindsight is about one replica; the profile has a [fleet]")
    # before anything is run: most profiles are too large for it
    bounds = study_bounds(loaded.model, load, names, seeds) if asked.hindsight else ()
    services.warn_of_memory(asked, (load.requests or 0) * len(policies) * len(seeds))
    answer = study.study(
        loaded.model, loaded.plan, load, policies, seeds, progress=asked.progress, announce=asked.announce
    )
    return results.Study.of_answer(answer, profile=loaded, bounds=bounds)


@takes(SweepOptions)
def sweep(asked: SweepOptions) -> "Sweep":
    """Compute figures at every combination of values, as `kvplan sweep` does, here in this process.

    The result is a dict of arrays by column, each of shape (n_points,): ``point``, what is varied, the columns, and
    ``error``. `point` is whole; other numbers are floats, NaN where there is none; all else are objects.
    `pandas.DataFrame` takes it as it is.

    Raises
    ------
    kvplan.errors.UsageError

    Examples
    --------
    >>> columns = sweep("tool-calls-h100", {"gpu.max_num_seqs": [10, 1000]}, ["verdict.binding"])
    >>> columns["verdict.binding"].tolist()
    ['max_num_seqs', 'compute']
    """
    from kvplan.api import results, services
    from kvplan.sweeps.definition import asked_for
    from kvplan.sweeps.store import arrays

    return results.Sweep(arrays(asked_for(services.profile(asked.profile), asked)))
