"""`kvplan reproduce`: published results beside kvplan's."""

from typing import Annotated

import typer

from kvplan.cli import common, completion, options
from kvplan.cli.options import argument, option
from kvplan.cli.output import check_writable
from kvplan.errors import ExitCode, UsageError, did_you_mean


def reproduce(
    names: Annotated[
        list[str] | None,
        argument(
            metavar="[NAME]...",
            help="Experiments to show in detail, or the start of their names, such as sic, wait or fc. Without one, or "
            "with papers, an overview of all.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    coverage: Annotated[
        bool,
        option(
            "--coverage",
            help="List what the papers contain, and which experiment covers it, or why none does.",
        ),
    ] = False,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Compare what papers print with what kvplan computes."""
    from kvplan.reproduction import experiment
    from kvplan.reproduction.judge import Reproduction
    from kvplan.reproduction.judge import reproduction as judged
    from kvplan.reproduction.runs import run_all
    from kvplan.show.reproduction import coverage_view, view

    check_writable(output)
    if coverage:
        common.write(coverage_view(experiment.coverage()), format, output)
        return
    known = sorted(experiment.shipped_experiments())
    wanted: dict[str, None] = {}
    for name in names or ["papers"]:
        meant = (
            known
            if name == "papers"
            else [each for each in known if each == name or each.startswith(f"{name}-")]
        )
        if not meant:
            raise UsageError(f"no experiment {name!r}; {did_you_mean(name, known, 'there are')}")
        wanted |= dict.fromkeys(meant)
    found: list[Reproduction] = []
    with common.progress_bar() as progress:
        for name in wanted:
            loaded = experiment.load_experiment(name)
            found.append(judged(loaded, run_all(loaded, announce=common.say_compiling)))
            if progress is not None:
                progress(len(found) / len(wanted))
    common.write(view(found, detailed=len(found) == 1 or bool(set(names or ()) & set(known))), format, output)
    changed = [each.experiment.name for each in found if not all(c.as_recorded for c in each.compared)]
    if changed:
        common.say(f"error: other verdicts than on record, please report: {', '.join(changed)}")
        raise typer.Exit(ExitCode.INTERNAL)
