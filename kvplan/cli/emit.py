"""`kvplan emit`: the plan as settings of an engine."""

from typing import TYPE_CHECKING, Annotated

from kvplan.cli.common import (
    DocumentFormat,
    Format,
    Output,
    Profile,
    Requests,
    Seeds,
    check_runs,
    option,
    progress_bar,
    read,
    rendered,
    say_compiling,
    terminal,
)
from kvplan.cli.output import check_writable, write_result
from kvplan.engines import EngineName
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.decide.requirement import Requirement
    from kvplan.profile.reading import Profile as Loaded


def emit(
    engine: Annotated[EngineName, option("--engine", help="Engine to write settings for.")],
    profile: Profile = None,
    format: Format = DocumentFormat.TEXT,
    output: Output = None,
    requests: Requests = None,
    seeds: Seeds = 5,
) -> None:
    """Write the plan as settings of an engine. Only those that gain in simulation are set, and how much is said."""
    from kvplan.analysis.fleet import one_replica
    from kvplan.engines import engine as record
    from kvplan.engines.advice import advise, default_requests
    from kvplan.engines.collapse import as_simulated
    from kvplan.formats import json
    from kvplan.layout import settings
    from kvplan.layout.elements import origin
    from kvplan.report import assembly as report
    from kvplan.simulation.experiments.options import seeds as chosen
    from kvplan.simulation.experiments.paired import Bench

    check_runs(seeds, requests)
    check_writable(output)
    loaded = read(profile, output)
    one = one_replica(loaded.model)
    size, all_seeds = requests or default_requests(one), chosen(0, seeds)
    required = _required(loaded)
    result = report.analyze(loaded.model, name=loaded.name, sha256=loaded.sha256, plan=loaded.plan)
    with progress_bar() as progress:
        bench = Bench(
            as_simulated(record(engine), one),
            loaded.plan,
            requests=size,
            seeds=all_seeds,
            progress=progress,
            announce=say_compiling,
        )
        advice = advise(
            record(engine),
            result,
            one,
            loaded.plan,
            requests=size,
            measure=bench.measure,
            required=required,
        )
    if format is DocumentFormat.TEXT:
        width, _ = terminal(output)
        text = settings.text(advice, loaded.name, origin(loaded.sha256), size, all_seeds, width=width)
    else:
        text = rendered(
            format,
            output,
            lambda: json.emit(advice, loaded, size, all_seeds),
            lambda: [settings.build(advice, loaded.name, size, all_seeds)],
            loaded.sha256,
        )
    write_result(text, output)


def _required(loaded: "Loaded") -> "list[Requirement]":
    """What the profile demands of itself."""
    from kvplan.decide.requirement import parse

    found = []
    for i, text in enumerate(loaded.requirements):
        try:
            found.append(parse(text))
        except UsageError as error:
            raise loaded.error(str(error), "gate", "require", i) from None
    return found
