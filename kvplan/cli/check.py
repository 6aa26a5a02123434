"""`kvplan check`: whether a profile is good enough."""

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.arguments import options_of
from kvplan.cli import common, completion, options
from kvplan.cli.options import argument, option
from kvplan.cli.output import append_result, tell, write_result
from kvplan.errors import ExitCode, OutputError, UsageError
from kvplan.options import CheckOptions, MetricsOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvplan.gate.check import Checked, Demands
    from kvplan.show.view import View


_OF_METRICS = options_of(MetricsOptions).keys()
_GATES = {
    ExitCode.DONE: "passed",
    ExitCode.GATE_FAILED: "failed",
    ExitCode.USAGE: "not been judged in full",
}


@options.of(CheckOptions, MetricsOptions)
def check(
    profiles: Annotated[
        list[str],
        argument(
            metavar="PROFILE...",
            help="Profiles to check: TOML files, '-' for standard input, or names of shipped profiles.",
            autocompletion=completion.profiles,
        ),
    ],
    asked: options.Asked,
    full: options.Full = False,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
    junit: Annotated[
        Path | None,
        option("--junit", metavar="FILE", help="Also write the outcome to this file as JUnit XML."),
    ] = None,
) -> None:
    """Check profiles against requirements. The exit code is 1 if one is not met, and 2 if one cannot be judged."""
    from kvplan.gate.check import demands, exit_code
    from kvplan.show.check import view

    with _annotated():
        counted = MetricsOptions(**{name: asked.pop(name) for name in _OF_METRICS & asked.keys()})
        read = [asked.get("baseline"), counted.metrics, counted.since]
        read += [Path(name) for name in profiles if name != "-"]
        common.refuse_overwriting(output, read)
        common.refuse_overwriting(junit, read, "--junit")
        common.refuse_one_file_for_both(junit, "--junit", output)
        if counted.metrics is not None:
            if len(profiles) > 1 or asked:
                raise UsageError(
                    "--metrics compares a service with one profile; check requirements in a call of their own"
                )
            shown, checked = _of_service(profiles[0], counted.metrics, counted)
        elif counted != MetricsOptions():
            raise UsageError("--since, --interval and --group go with --metrics")
        else:
            wanted = CheckOptions(**asked)
            required = demands(wanted)
    if counted.metrics is None:
        checked = [_checked(name, required, wanted, alone=len(profiles) == 1) for name in profiles]
        shown = view(checked)
        for problem in (problem for result in checked for problem in result.problems):
            common.say(f"error: {problem.message}")
    code = exit_code(checked)
    # The result first: what cannot be written elsewhere is not to hide it.
    common.write(shown, format, output, full=full or "remedies" in asked)
    try:
        _tell_others(shown, checked, junit)
    except OutputError as error:
        raise OutputError(f"{error}; the gate itself has {_GATES[code]}") from None
    if code is not ExitCode.DONE:
        raise typer.Exit(code)


@contextmanager
def _annotated() -> "Iterator[None]":
    """Annotate what refuses the call as a whole, too, where GitHub runs this."""
    try:
        yield
    except UsageError as error:
        if _on_github():
            from kvplan.show.ci import refusal

            tell(refusal(str(error)))
        raise


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _checked(name: str, demands: "Demands", asked: CheckOptions, *, alone: bool) -> "Checked":
    from kvplan.errors import ProfileError
    from kvplan.gate import check as checking

    file = _file_of(name)
    try:
        loaded = common.load(name)
        with common.progress_bar() as progress:
            return checking.check(
                loaded,
                file,
                *demands,
                accepted=asked.accept,
                alone=alone,
                changes=asked.remedies,
                progress=progress,
            )
    except ProfileError as error:  # it cannot be read, or lacks a part
        return checking.unusable(file, error)


def _of_service(name: str, metrics: Path, asked: MetricsOptions) -> "tuple[View, list[Checked]]":
    """Compare the counters of a service with its profile."""
    from kvplan.gate.drift import compare
    from kvplan.ingest.metrics import read_metrics
    from kvplan.show import drift

    counted = read_metrics(metrics, asked.since, interval_s=asked.interval, model=asked.group, timed=False)
    profile = common.load(name)
    compared = compare(profile, counted)
    return drift.view(compared, profile), [drift.checked(compared, profile, _file_of(name))]


def _file_of(name: str) -> str | None:
    return name if name != "-" and os.path.lexists(name) else None


def _tell_others(shown: "View", checked: "Sequence[Checked]", junit: Path | None) -> None:
    """Write annotations on standard error and the summary of the step, where GitHub runs this; and JUnit."""
    from kvplan.show import ci
    from kvplan.show.view import render

    if _on_github():
        for line in ci.annotations(checked):
            tell(line)
    if junit is not None:
        write_result(ci.junit(checked), junit)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_result(render(shown, "markdown"), Path(summary))
