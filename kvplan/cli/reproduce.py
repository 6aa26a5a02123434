"""`kvplan reproduce`: published results beside kvplan's."""

from typing import Annotated

import typer

from kvplan.cli.common import (
    DocumentFormat,
    Format,
    Output,
    argument,
    progress_bar,
    rendered,
    say,
    say_compiling,
)
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import ExitCode


def _complete_experiment(incomplete: str) -> list[str]:
    from kvplan.reproduction.experiment import shipped_experiments

    return sorted(name for name in shipped_experiments() if name.startswith(incomplete))


def reproduce(
    names: Annotated[
        list[str] | None,
        argument(
            metavar="[NAME]...",
            help="Experiments to run and to show in detail. Without a name all are run, for an overview.",
            autocompletion=_complete_experiment,
        ),
    ] = None,
    format: Format = DocumentFormat.TEXT,
    output: Output = None,
) -> None:
    """Compare what the papers print with what kvplan computes."""
    from kvplan.formats import json
    from kvplan.layout import reproduction as tables
    from kvplan.reproduction.experiment import load_experiment, shipped_experiments
    from kvplan.reproduction.judge import reproduction
    from kvplan.reproduction.runs import run_all

    check_writable(output)
    chosen = [load_experiment(name) for name in names or sorted(shipped_experiments())]
    found = []
    with progress_bar() as progress:
        for done, experiment in enumerate(chosen, 1):
            found.append(reproduction(experiment, run_all(experiment, announce=say_compiling)))
            if progress is not None:
                progress(done / len(chosen))
    build = tables.build if names else tables.overview
    write_result(rendered(format, output, lambda: json.reproduce(found), lambda: build(found)), output)
    changed = [one.experiment.name for one in found if not all(each.as_recorded for each in one.compared)]
    if changed:
        say(f"error: other verdicts than on record, please report: {', '.join(changed)}")
        raise typer.Exit(ExitCode.INTERNAL)
