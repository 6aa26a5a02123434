"""`kvplan reproduce`: published results beside kvplan's."""

from typing import Annotated

import typer

from kvplan.cli.common import DocumentFormat, Output, progress_bar, say, say_compiling, sections_text
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import ExitCode
from kvplan.version import __version__


def _complete_experiment(incomplete: str) -> list[str]:
    from kvplan.reproduction.experiment import shipped_experiments

    return sorted(name for name in shipped_experiments() if name.startswith(incomplete))


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Experiments to run; all of them, in an overview.",
            show_default=False,
            autocompletion=_complete_experiment,
        ),
    ] = None,
    format: Annotated[
        DocumentFormat, typer.Option("--format", help="How to write it.")
    ] = DocumentFormat.TEXT,
    output: Output = None,
) -> None:
    """What the papers print, and what kvplan gets for it."""
    from kvplan.formats import json
    from kvplan.layout import reproduction as tables
    from kvplan.reproduction.experiment import load_experiment, shipped_experiments
    from kvplan.reproduction.judge import reproduction
    from kvplan.reproduction.runs import run_all

    check_writable(output)
    chosen = [load_experiment(name) for name in names or sorted(shipped_experiments())]
    with progress_bar() as progress:
        found = []
        for done, experiment in enumerate(chosen):
            documents = run_all(experiment, announce=say_compiling)
            found.append(reproduction(experiment, documents))
            if progress is not None:
                progress((done + 1) / len(chosen))
    if format is DocumentFormat.JSON:
        text = json.render(tables.to_document(found, __version__))
    else:
        sections = [tables.section(one) for one in found] if names else [tables.overview(found)]
        as_markdown = format is DocumentFormat.MARKDOWN
        text = sections_text(sections, f"kvplan {__version__}", output, as_markdown=as_markdown)
    write_result(text, output)
    changed = [one.experiment.name for one in found if not all(each.as_recorded for each in one.compared)]
    if changed:
        say(f"error: other verdicts than on record, please report: {', '.join(changed)}")
        raise typer.Exit(ExitCode.INTERNAL)
