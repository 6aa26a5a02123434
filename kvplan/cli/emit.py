"""`kvplan emit`: a profile as settings of an engine, an autoscaler, a router, or alerts."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvplan.cli import common, options
from kvplan.cli.output import check_writable, write_result
from kvplan.engine import EngineName
from kvplan.errors import ExitCode, UsageError
from kvplan.options import EmitOptions, Target

if TYPE_CHECKING:
    from kvplan.profile.reading import Profile

_ENGINES = {name.value for name in EngineName}


@options.of(EmitOptions)
def emit(
    asked: options.Asked,
    profile: options.Profile = None,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Write a profile as settings of its engine, or what operates it: an autoscaler, a router, alerts (--target)."""
    check_writable(output)
    wanted = EmitOptions(**asked)
    loaded = common.read(profile, output).with_slos(wanted.slo)
    given = loaded.model.engine
    engine = EngineName.VLLM if given is None else given.name
    target = wanted.target or Target(engine)
    if target.value in _ENGINES:
        if not asked.keys() <= {"target", "slo"}:
            others = ", ".join(name for name in Target if name.value not in _ENGINES)
            raise UsageError(f"--target {target} has --slo, --format and -o; other options are of {others}")
        _engine_settings(EngineName(target), loaded, format, output)
    elif format is not options.DocumentFormat.TEXT:
        raise UsageError(f"--format {format}: --target {target} is YAML")
    else:
        _manifest(target, loaded, wanted, wanted.engine or engine, output)


def _engine_settings(
    engine: EngineName, loaded: "Profile", format: options.DocumentFormat, output: Path | None
) -> None:
    from kvplan.emit import engine as record
    from kvplan.emit.settings import engine_settings_of, for_engine
    from kvplan.report.assembly import Analyses, ProfileIdentity
    from kvplan.show import settings

    target = record(engine)
    with common.progress_bar() as progress:
        known = {"profile": ProfileIdentity(loaded.name, loaded.sha256)}
        report = Analyses(for_engine(target, loaded.model), loaded.plan, known, progress=progress)
        table = loaded.tables.get("model")
        advised = engine_settings_of(target, report, loaded.model, loaded.plan, table, loaded.folder)
    if format is options.DocumentFormat.TEXT:
        width, _ = common.terminal(output)
        write_result(settings.text(advised, report, width=width), output)
    else:
        common.write(settings.view(advised, report), format, output)


def _manifest(
    target: Target, loaded: "Profile", asked: EmitOptions, engine: EngineName, output: Path | None
) -> None:
    from kvplan.emit import engine as record
    from kvplan.emit.service import lack, service
    from kvplan.emit.settings import for_engine
    from kvplan.model.fleet import Routing
    from kvplan.show import manifest
    from kvplan.study.operations import LOAD_S, derive, service_of
    from kvplan.study.verification import verify

    of_service = service(asked, engine)
    if (lacking := lack(target, of_service)) is not None:
        raise UsageError(f"--target {target}: {lacking}")
    model = for_engine(record(engine), loaded.model)
    router = Routing.LEAST_REQUESTS if target is Target.EPP else None
    day = service_of(model, loaded.plan, router=router, day_mean=asked.day_mean)
    if target is Target.LATENCY and not {"ttft_s", "tpot_s"} & day.limits.keys():
        raise UsageError(
            "--target latency: an objective on TTFT or TPOT is wanted, such as --slo ttft-p95=2s"
        )
    with common.progress_bar() as progress:
        operations = derive(
            day,
            headroom=asked.headroom,
            load_s=asked.load_time or LOAD_S,
            scrape_s=of_service.scrape_s,
            progress=progress,
        )
    if operations is None:
        common.say("no rate meets the objectives: " + "; ".join(slo.text for slo in loaded.plan.slos))
        raise typer.Exit(ExitCode.GATE_FAILED)
    text = manifest.text(target, operations, of_service, loaded.plan, name=loaded.name, sha256=loaded.sha256)
    if (warning := manifest.warning(operations.worst_within, operations.aim)) is not None:
        common.say(warning)
    write_result(text, output)
    if asked.verify:
        with common.progress_bar() as progress:
            ways = verify(day, operations, progress)
        if (warning := manifest.warning(ways[0].worst, operations.aim)) is not None:
            common.say(warning)
        common.say_section(manifest.simulated_days(ways))
