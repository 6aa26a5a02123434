"""`kvplan reproduce`: published results beside kvplan's."""

from typing import Annotated

import typer

from kvplan.cli import common, completion, options
from kvplan.cli.options import argument
from kvplan.cli.output import check_writable
from kvplan.errors import ExitCode, UsageError, did_you_mean


def reproduce(
    names: Annotated[
        list[str] | None,
        argument(
            metavar="[NAME]...",
            help="Experiments to show in detail. Without a name, an overview of all.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Compare what papers print with what kvplan computes."""
    from kvplan.reproduction.experiment import load_experiment, shipped_experiments
    from kvplan.reproduction.judge import Reproduction
    from kvplan.reproduction.judge import reproduction as judged
    from kvplan.reproduction.runs import run_all
    from kvplan.show.reproduction import view

    check_writable(output)
    known = sorted(shipped_experiments())
    for name in names or ():
        if name not in known:
            raise UsageError(f"no experiment {name!r}; {did_you_mean(name, known, 'there are')}")
    wanted = names or known
    found: list[Reproduction] = []
    with common.progress_bar() as progress:
        for name in wanted:
            experiment = load_experiment(name)
            found.append(judged(experiment, run_all(experiment, announce=common.say_compiling)))
            if progress is not None:
                progress(len(found) / len(wanted))
    common.write(view(found, detailed=bool(names)), format, output)
    changed = [each.experiment.name for each in found if not all(c.as_recorded for c in each.compared)]
    if changed:
        common.say(f"error: other verdicts than on record, please report: {', '.join(changed)}")
        raise typer.Exit(ExitCode.INTERNAL)
