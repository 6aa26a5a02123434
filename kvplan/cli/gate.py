"""`kvplan check` and `kvplan diff`: whether a report is good enough, and what has changed."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.common import (
    DocumentFormat,
    Output,
    complete_profile,
    refuse_overwriting,
    say,
    sections_text,
    standard_input,
)
from kvplan.cli.output import append_result, tell, write_result
from kvplan.errors import ExitCode, OutputError, UsageError
from kvplan.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.decide.check import Baseline, Checked
    from kvplan.decide.diff import Side
    from kvplan.decide.requirement import Requirement


_GATES = {
    ExitCode.DONE: "passed",
    ExitCode.GATE_FAILED: "failed",
    ExitCode.USAGE: "not been judged in full",
}

Profiles = Annotated[
    list[str],
    typer.Argument(
        metavar="PROFILE...",
        help="TOML files, '-' for standard input, or names of shipped profiles.",
        show_default=False,
        autocompletion=complete_profile,
    ),
]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        metavar="REQUIREMENT",
        help="Demand this of every profile too, such as 'load.headroom >= 20%'. May be repeated.",
        show_default=False,
    ),
]
BaselineFile = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="Compare with this earlier report of analyze --format json.",
        show_default=False,
    ),
]
Tolerances = Annotated[
    list[str] | None,
    typer.Option(
        "--tolerance",
        metavar="KEY=SHARE",
        help="Drift from the baseline, up or down, that passes: load.sustainable_rps=2%. May be repeated.",
        show_default=False,
    ),
]
Format = Annotated[DocumentFormat, typer.Option("--format", help="How to write it.")]
_A_SIDE = typer.Argument(
    help="A profile, or a report of analyze --format json.",
    show_default=False,
    autocompletion=complete_profile,
)


def check(
    profiles: Profiles,
    require: Require = None,
    baseline: BaselineFile = None,
    tolerance: Tolerances = None,
    format: Format = DocumentFormat.TEXT,
    output: Output = None,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", help="Write JUnit XML to this file.", show_default=False),
    ] = None,
) -> None:
    """Fail, with exit code 1, where a requirement is not met."""
    from kvplan.decide import check as checking
    from kvplan.formats.github import without_commands

    _refuse_overwriting(profiles, baseline, output, junit)
    required = _requirements(require or [])
    before = _baseline(baseline, tolerance or [])
    checked = [_checked(name, required, before, alone=len(profiles) == 1) for name in profiles]
    for problem in (problem for one in checked for problem in one.problems):
        say(f"error: {without_commands(problem.message)}")
    code = checking.exit_code(checked)
    # The result first: what cannot be written elsewhere is not to hide it.
    write_result(_outcome(checked, format, output), output)
    try:
        _tell_others(checked, junit)
    except OutputError as error:
        raise OutputError(f"{error}; the gate itself has {_GATES[code]}") from None
    if code is not ExitCode.DONE:
        raise typer.Exit(code)


def diff(
    before: Annotated[str, _A_SIDE],
    after: Annotated[str, _A_SIDE],
    format: Format = DocumentFormat.TEXT,
    output: Output = None,
) -> None:
    """What differs between two profiles or reports."""
    from kvplan.decide import diff as comparing
    from kvplan.formats import json
    from kvplan.layout import diff as tables

    found = comparing.compare(_side(before), _side(after))
    if format is DocumentFormat.JSON:
        text = json.render(tables.to_document(found, __version__))
    else:
        section = tables.build(found)
        text = sections_text(
            [section], f"kvplan {__version__}", output, as_markdown=format is DocumentFormat.MARKDOWN
        )
    write_result(text, output)


def _requirements(texts: list[str]) -> "list[Requirement]":
    from kvplan.decide.requirement import parse

    found = []
    for text in texts:
        try:
            found.append(parse(text))
        except UsageError as error:
            raise UsageError(f"--require: {error}") from None
    return found


def _baseline(file: Path | None, texts: list[str]) -> "Baseline | None":
    from kvplan.decide.check import Baseline, read_report, read_tolerance
    from kvplan.profile.reading import read_file

    if file is None:
        if texts:
            raise UsageError(
                "--tolerance says how far a report may drift from --baseline, which is not given"
            )
        return None
    if not texts:
        raise UsageError("--baseline is compared with nothing: say what may drift with --tolerance KEY=SHARE")
    tolerances = []
    for text in texts:
        try:
            tolerances.append(read_tolerance(text))
        except UsageError as error:
            raise UsageError(f"--tolerance: {error}") from None
    data, source = read_file(str(file))
    return Baseline(source, read_report(data, source), tuple(tolerances))


def _checked(
    name: str, required: "Sequence[Requirement]", baseline: "Baseline | None", *, alone: bool
) -> "Checked":
    from kvplan.decide import check as checking
    from kvplan.errors import ProfileError
    from kvplan.profile.reading import load_profile

    file = name if name != "-" and os.path.lexists(name) else None
    try:
        loaded = load_profile(name, stdin=standard_input())
    except ProfileError as error:
        return checking.unusable(file, error)
    return checking.check(loaded, file, required, baseline, alone=alone)


def _outcome(checked: "Sequence[Checked]", format: DocumentFormat, output: Path | None) -> str:
    from kvplan.formats.github import without_commands
    from kvplan.layout import check as tables

    if format is DocumentFormat.JSON:
        from kvplan.formats import json

        # "##[" would be a command to GitHub's runner; to JSON both spellings are the same
        return json.render(tables.to_document(checked, __version__)).replace("##[", "#\\u0023[")
    as_markdown = format is DocumentFormat.MARKDOWN
    text = sections_text(tables.build(checked), f"kvplan {__version__}", output, as_markdown=as_markdown)
    return without_commands(text)


def _tell_others(checked: "Sequence[Checked]", junit: Path | None) -> None:
    """Annotations on standard error, and the outcome in the summary of the step, where GitHub runs this; JUnit."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        from kvplan.formats.github import annotations

        for line in annotations(checked):
            tell(line)
    if junit is not None:
        from kvplan.formats import junit as xml

        write_result(xml.render(checked), junit)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_result(_outcome(checked, DocumentFormat.MARKDOWN, None), Path(summary))


def _refuse_overwriting(
    profiles: "Sequence[str]", baseline: Path | None, output: Path | None, junit: Path | None
) -> None:
    read = [Path(name) for name in profiles if name != "-"] + ([baseline] if baseline is not None else [])
    refuse_overwriting(output, read)
    refuse_overwriting(junit, read, "--junit")
    both = output is not None and junit is not None and os.path.realpath(output) == os.path.realpath(junit)
    if both and not (output and output.exists() and not output.is_file()):  # devices take both
        raise UsageError(f"-o and --junit are the same file, {output}")


def _side(reference: str) -> "Side":
    from kvplan.decide.diff import read_side
    from kvplan.profile.reading import read_reference

    return read_side(*read_reference(reference, stdin=standard_input()))
