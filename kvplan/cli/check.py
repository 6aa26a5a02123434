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
    from kvplan.show.view import View


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
            help="Requirement on every profile, beside its own, such as 'goodput.rate_rps >= 5'. May be repeated.",
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
    metrics: Annotated[
        Path | None,
        option(
            "--metrics",
            metavar="FILE",
            help="Answer of a server's /metrics, or of Prometheus: does the service still do what the profile says? "
            "Nothing else is judged then.",
        ),
    ] = None,
    since: Annotated[
        Path | None,
        option("--since", metavar="FILE", help="An earlier answer; what happened between the two counts."),
    ] = None,
    interval: Annotated[
        str | None,
        option("--interval", metavar="TIME", help='Time that the metrics cover, such as "10 min".'),
    ] = None,
    group: Annotated[
        str | None,
        option("--group", metavar="NAME", help="The model, where the metrics are of several."),
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
        read = [file for file in (baseline, metrics, since) if file is not None]
        _refuse_overwriting(profiles, read, output, junit)
        if metrics is not None:
            beside = (require, baseline, tolerance, accept, remedies or None)
            shown, checked = _of_service(profiles, metrics, since, interval, group, beside)
        elif since is not None or interval is not None or group is not None:
            raise UsageError("--since, --interval and --group go with --metrics")
        else:
            required = checking.requirements(require or [])
            before = checking.baseline(None if baseline is None else str(baseline), tolerance or [])
    if metrics is None:
        alone = len(profiles) == 1
        checked = [
            _checked(name, required, before, accept or [], alone=alone, changes=remedies) for name in profiles
        ]
        shown = view(checked)
        for problem in (problem for one in checked for problem in one.problems):
            common.say(f"error: {problem.message}")
    code = checking.exit_code(checked)
    # The result first: what cannot be written elsewhere is not to hide it.
    common.write(shown, format, output, full=full or remedies)
    try:
        _tell_others(shown, checked, junit)
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

    file = _file_of(name)
    try:
        loaded = common.load(name)
        with common.progress_bar() as progress:
            return checking.check(
                loaded, file, required, baseline, accepted=accepted, progress=progress, **how
            )
    except ProfileError as error:  # it cannot be read, or lacks a part
        return checking.unusable(file, error)


def _of_service(
    profiles: "Sequence[str]",
    metrics: Path,
    since: Path | None,
    interval: str | None,
    group: str | None,
    beside: "Sequence[object]",
) -> "tuple[View, list[Checked]]":
    """Compare the counters of a service with its one profile."""
    from kvplan.gate.drift import compare
    from kvplan.ingest.metrics import read_metrics
    from kvplan.show import drift
    from kvplan.units import parse_time

    if len(profiles) > 1 or any(given is not None for given in beside):
        raise UsageError(
            "--metrics compares a service with one profile; check requirements in a call of their own"
        )
    seconds = None if interval is None else parse_time(interval, "--interval")
    counted = read_metrics(metrics, since, interval_s=seconds, model=group, timed=False)
    profile = common.load(profiles[0])
    compared = compare(profile, counted)
    return drift.view(compared, profile), [drift.checked(compared, profile, _file_of(profiles[0]))]


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


def _refuse_overwriting(
    profiles: "Sequence[str]", others: "Sequence[Path]", output: Path | None, junit: Path | None
) -> None:
    read = [*(Path(name) for name in profiles if name != "-"), *others]
    common.refuse_overwriting(output, read)
    common.refuse_overwriting(junit, read, "--junit")
    both = output is not None and junit is not None and os.path.realpath(output) == os.path.realpath(junit)
    if both and not (output and output.exists() and not output.is_file()):  # devices take both
        raise UsageError(f"-o and --junit are the same file, {output}")
