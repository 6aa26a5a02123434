"""`kvplan check`: whether a profile is good enough."""

import os
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli import common, completion, options
from kvplan.cli.options import argument, option
from kvplan.cli.output import append_result, tell, write_result
from kvplan.errors import ExitCode, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvplan.gate.check import Baseline, Checked
    from kvplan.gate.requirement import Requirement


class Part(StrEnum):
    """A part of a profile that `[provenance]` tells of."""

    GPU = "gpu"
    TIMING = "timing"
    WORKLOAD = "workload"


_GATES = {
    ExitCode.DONE: "passed",
    ExitCode.GATE_FAILED: "failed",
    ExitCode.USAGE: "not been judged in full",
}


def check(
    profiles: Annotated[
        list[str],
        argument(
            metavar="PROFILE...",
            help="Profiles to check: TOML files, '-' for standard input, or names of shipped profiles.",
            autocompletion=completion.profiles,
        ),
    ],
    require: Annotated[
        list[str] | None,
        option(
            "--require",
            metavar="REQUIREMENT",
            help="Requirement on every profile, beside its own, such as 'load.headroom >= 20%'. May be repeated.",
            autocompletion=completion.keys_to_require,
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        option(
            "--baseline",
            metavar="FILE",
            help="Earlier report of kvplan analyze --format json, to compare with; needs --tolerance.",
        ),
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        option(
            "--tolerance",
            metavar="KEY=SHARE",
            help="How far a key may move from the baseline, up or down, such as load.sustainable_rps=2%. May be "
            "repeated.",
            autocompletion=completion.keys_to_require,
        ),
    ] = None,
    accept: Annotated[
        list[Part] | None,
        option(
            "--accept",
            metavar="PART",
            help="Part that may be assumed: gpu, timing or workload. Otherwise no profile with an assumed part passes. "
            "May be repeated.",
        ),
    ] = None,
    remedies: Annotated[
        bool,
        typer.Option(
            "--remedies", help="Where something fails, look for the smallest change that would pass."
        ),
    ] = False,
    full: options.Full = False,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
    junit: Annotated[
        Path | None,
        option("--junit", metavar="FILE", help="Also write the outcome to this file as JUnit XML."),
    ] = None,
) -> None:
    """Check profiles against requirements. The exit code is 1 if one is not met, and 2 if one cannot be judged."""
    from kvplan.gate import check as checking
    from kvplan.show.check import view

    with _annotated():
        _refuse_overwriting(profiles, baseline, output, junit)
        required = checking.requirements(require or [])
        before = checking.baseline(None if baseline is None else str(baseline), tolerance or [])
    alone = len(profiles) == 1
    checked = [
        _checked(name, required, before, accept or [], alone=alone, changes=remedies) for name in profiles
    ]
    for problem in (problem for one in checked for problem in one.problems):
        common.say(f"error: {problem.message}")
    code = checking.exit_code(checked)
    # The result first: what cannot be written elsewhere is not to hide it.
    common.write(view(checked), format, output, full=full or remedies)
    try:
        _tell_others(checked, junit)
    except OutputError as error:
        raise OutputError(f"{error}; the gate itself has {_GATES[code]}") from None
    if code is not ExitCode.DONE:
        raise typer.Exit(code)


@contextmanager
def _annotated() -> "Iterator[None]":
    """Make an annotation of what refuses the call as a whole, too, where GitHub runs this."""
    try:
        yield
    except UsageError as error:
        if _on_github():
            from kvplan.show.ci import refusal

            tell(refusal(str(error)))
        raise


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _checked(
    name: str,
    required: "Sequence[Requirement]",
    baseline: "Baseline | None",
    accepted: "Sequence[str]",
    **how: bool,
) -> "Checked":
    from kvplan.errors import ProfileError
    from kvplan.gate import check as checking

    file = name if name != "-" and os.path.lexists(name) else None
    try:
        loaded = common.load(name)
        with common.progress_bar() as progress:
            return checking.check(
                loaded, file, required, baseline, accepted=accepted, progress=progress, **how
            )
    except ProfileError as error:  # it cannot be read, or lacks a part
        return checking.unusable(file, error)


def _tell_others(checked: "Sequence[Checked]", junit: Path | None) -> None:
    """Write annotations on standard error and the summary of the step, where GitHub runs this; and JUnit."""
    from kvplan.show import ci
    from kvplan.show.check import view
    from kvplan.show.view import render

    if _on_github():
        for line in ci.annotations(checked):
            tell(line)
    if junit is not None:
        write_result(ci.junit(checked), junit)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_result(render(view(checked), "markdown"), Path(summary))


def _refuse_overwriting(
    profiles: "Sequence[str]", baseline: Path | None, output: Path | None, junit: Path | None
) -> None:
    read = [Path(name) for name in profiles if name != "-"] + ([baseline] if baseline is not None else [])
    common.refuse_overwriting(output, read)
    common.refuse_overwriting(junit, read, "--junit")
    both = output is not None and junit is not None and os.path.realpath(output) == os.path.realpath(junit)
    if both and not (output and output.exists() and not output.is_file()):  # devices take both
        raise UsageError(f"-o and --junit are the same file, {output}")
