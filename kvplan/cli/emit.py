"""`kvplan emit`: a profile as settings of an engine, an autoscaler, a router, or alerts."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli import common, options
from kvplan.cli.options import option
from kvplan.cli.output import check_writable, write_result
from kvplan.engine import EngineName
from kvplan.errors import ExitCode, UsageError
from kvplan.options import EmitOptions, Target

if TYPE_CHECKING:
    from kvplan.profile.reading import Profile

_ENGINES = {name.value for name in EngineName}
_OPTIONS = {
    "target": option("--target", help="What to write for. Default: the engine of the profile, or vllm."),
    "engine": option(
        "--engine",
        help="Whose metrics are queried, vllm or sglang. Default: the engine of the profile, or vllm.",
    ),
    "name": option(
        "--name", help="Name of the Deployment that serves, and of what is written. Default: the engine's."
    ),
    "namespace": option("--namespace", help="Its namespace."),
    "selector": option(
        "--selector",
        metavar="MATCHERS",
        help="Labels of its series in Prometheus. Default: its namespace, and pods that begin with its name.",
    ),
    "arrivals": typer.Option("--arrivals", help="Who counts arrivals: the engines, or the router (EPP)."),
    "pool": option("--pool", metavar="NAME", help="InferencePool of the router, whose queue counts then."),
    "model": option("--model", metavar="NAME", help="The model, as clients ask for it. For wva."),
    "prometheus": option(
        "--prometheus",
        metavar="URL",
        help="Prometheus for keda. Default: http://prometheus-operated.monitoring:9090.",
    ),
    "load_time": option(
        "--load-time", metavar="TIME", help="From the start of a replica until it serves. Default: 2 min."
    ),
    "headroom": typer.Option(
        "--headroom",
        metavar="auto|SHARE",
        help="What the targets of an autoscaler leave free: by simulated days, or such as 0.1.",
    ),
    "verify": typer.Option(
        "--verify",
        help="Simulate other days with these targets, with guesses that are deployed, and with a fixed fleet.",
    ),
}


@options.spread
def emit(
    asked: Annotated[EmitOptions, _OPTIONS],
    profile: options.Profile = None,
    slo: options.Slos = None,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Write a profile as settings of its engine, or what operates it: an autoscaler, a router, alerts (--target)."""
    check_writable(output)
    loaded = common.read(profile, output, slo)
    given = loaded.model.engine
    engine = EngineName.VLLM if given is None else given.name
    target = asked.target or Target(engine)
    if target.value in _ENGINES:
        if asked != EmitOptions(target=asked.target):
            others = ", ".join(name for name in Target if name.value not in _ENGINES)
            raise UsageError(f"--target {target} has --slo, --format and -o; other options are of {others}")
        _engine_settings(EngineName(target), loaded, format, output)
    elif format is not options.DocumentFormat.TEXT:
        raise UsageError(f"--format {format}: --target {target} is YAML")
    else:
        _manifest(target, loaded, replace(asked, engine=asked.engine or engine), output)


def _engine_settings(
    engine: EngineName, loaded: "Profile", format: options.DocumentFormat, output: Path | None
) -> None:
    from kvplan.emit import engine as record
    from kvplan.emit.settings import engine_settings_of, for_engine
    from kvplan.report import assembly as report
    from kvplan.show import settings

    target = record(engine)
    with common.progress_bar() as progress:
        result = report.analyze(
            for_engine(target, loaded.model),
            name=loaded.name,
            sha256=loaded.sha256,
            plan=loaded.plan,
            progress=progress,
        )
    advised = engine_settings_of(target, result, loaded.model, loaded.plan)
    if format is options.DocumentFormat.TEXT:
        width, _ = common.terminal(output)
        write_result(settings.text(advised, result, width=width), output)
    else:
        common.write(settings.view(advised, result), format, output)


def _manifest(target: Target, loaded: "Profile", asked: EmitOptions, output: Path | None) -> None:
    from kvplan.emit import engine as record
    from kvplan.emit.service import lack, service
    from kvplan.emit.settings import for_engine
    from kvplan.show import manifest, verification
    from kvplan.study.operations import LOAD_S, derive
    from kvplan.study.verification import verify
    from kvplan.units import parse_time

    assert asked.engine is not None
    of_service = service(asked, asked.engine)
    if (lacking := lack(target, of_service)) is not None:
        raise UsageError(f"--target {target}: {lacking}")
    model = for_engine(record(asked.engine), loaded.model)
    load_s = LOAD_S if asked.load_time is None else parse_time(asked.load_time, "--load-time")
    headroom = _headroom(asked.headroom)
    with common.progress_bar() as progress:
        operations = derive(model, loaded.plan, headroom=headroom, load_s=load_s, progress=progress)
    if operations is None:
        common.say("no rate meets the objectives: " + "; ".join(slo.text for slo in loaded.plan.slos))
        raise typer.Exit(ExitCode.GATE_FAILED)
    text = manifest.text(target, operations, of_service, loaded.plan, name=loaded.name, sha256=loaded.sha256)
    write_result(text, output)
    if asked.verify:
        with common.progress_bar() as progress:
            ways = verify(model, loaded.plan, operations, progress)
        common.say_section(verification.section(ways))


def _headroom(text: str) -> float | None:
    """Read a share of the target that stays free; None: by simulated days.

    >>> _headroom("auto"), _headroom("10%"), _headroom("-0.2")
    (None, 0.1, -0.2)
    """
    if text == "auto":
        return None
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = float("nan")
    if not -0.9 <= share <= 10:
        raise UsageError(f"--headroom {text!r}: auto, or a share from -0.9 to 10, such as 0.1 or 10%")
    return share
