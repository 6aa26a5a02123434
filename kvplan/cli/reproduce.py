"""`kvplan reproduce`: published results and real runs beside kvplan's."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from kvplan.errors import ExitCode, UsageError, did_you_mean

if TYPE_CHECKING:
    from kvplan.layout.elements import Section


PAPERS, REAL = "papers", "real"  # names of all of a kind


def _names() -> list[str]:
    from kvplan.reproduction.experiment import shipped_experiments
    from kvplan.reproduction.real.catalogue import RUNS

    return [PAPERS, REAL, *sorted(shipped_experiments()), *RUNS]


def _complete(incomplete: str) -> list[str]:
    return [name for name in _names() if name.startswith(incomplete)]


def reproduce(
    names: Annotated[
        list[str] | None,
        argument(
            metavar="[NAME]...",
            help="Experiments and real runs to show in detail; `papers` or `real` for an overview of all of a kind. "
            "Without a name, an overview of both.",
            autocompletion=_complete,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the data of real runs is; else in shared/data beside a checkout, if that is there.",
        ),
    ] = None,
    format: Format = DocumentFormat.TEXT,
    output: Output = None,
) -> None:
    """Compare what papers print and clients measured with what kvplan computes."""
    from kvplan.formats import json
    from kvplan.layout import reproduction, scoreboard
    from kvplan.reproduction.experiment import load_experiment, shipped_experiments
    from kvplan.reproduction.judge import Reproduction
    from kvplan.reproduction.judge import reproduction as judged
    from kvplan.reproduction.real.catalogue import RUNS, folder_beside_checkout
    from kvplan.reproduction.real.score import Scoreboard, foretell
    from kvplan.reproduction.runs import run_all

    check_writable(output)
    if data is not None and not data.is_dir():
        raise UsageError(f"--data {data}: no such folder")
    for name in names or ():
        if name not in (known := _names()):
            raise UsageError(f"no experiment {name!r}; {did_you_mean(name, known, 'there are')}")
    wanted = list(names or (PAPERS, REAL))
    papers = _chosen(wanted, PAPERS, sorted(shipped_experiments()))
    real = _chosen(wanted, REAL, list(RUNS))
    folder = data or folder_beside_checkout()
    found: list[Reproduction] = []
    boards: list[Scoreboard] = []
    with progress_bar() as progress:
        every = len(papers) + len(real)

        def told(part: float) -> None:
            if progress is not None:
                progress((len(found) + len(boards) + part) / every)

        for name in papers:
            experiment = load_experiment(name)
            found.append(judged(experiment, run_all(experiment, announce=say_compiling)))
            told(0.0)
        for name in real:
            boards.append(foretell(RUNS[name], folder, told))
            told(0.0)
    in_detail = not {PAPERS, REAL} & set(wanted)
    layouts = (
        (reproduction.build, scoreboard.build) if in_detail else (reproduction.overview, scoreboard.overview)
    )

    def sections() -> "list[Section]":
        return [*layouts[0](found), *layouts[1](boards)]

    write_result(rendered(format, output, lambda: json.reproduce(found, boards), sections), output)
    changed = [one.experiment.name for one in found if not all(each.as_recorded for each in one.compared)]
    if changed:
        say(f"error: other verdicts than on record, please report: {', '.join(changed)}")
    worse = [board.run.name for board in boards if not board.as_recorded]
    if worse:
        say(f"error: further off than on record, please report: {', '.join(worse)}")
    if changed or worse:
        raise typer.Exit(ExitCode.INTERNAL)


def _chosen(wanted: list[str], all_of: str, known: list[str]) -> list[str]:
    """The names of one kind among those that are wanted."""
    return known if all_of in wanted else [name for name in wanted if name in known]
