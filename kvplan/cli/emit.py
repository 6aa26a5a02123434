"""`kvplan emit`: a profile as settings of an engine."""

from typing import Annotated

from kvplan.cli import common, options
from kvplan.cli.options import option
from kvplan.cli.output import check_writable, write_result
from kvplan.engine import EngineName


def emit(
    profile: options.Profile = None,
    engine: Annotated[
        EngineName | None,
        option("--engine", help="Engine to write settings for. Default: the profile's, or vllm."),
    ] = None,
    slo: options.Slos = None,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Write a profile as settings of its engine, with those that were tried and gain, and by how much."""
    from kvplan.emit import engine as record
    from kvplan.emit.settings import engine_settings_of, for_engine
    from kvplan.report import assembly as report
    from kvplan.show import settings

    check_writable(output)
    loaded = common.read(profile, output, slo)
    given = loaded.model.engine
    target = record(engine or (EngineName.VLLM if given is None else given.name))
    with common.progress_bar() as progress:
        result = report.analyze(
            for_engine(target, loaded.model),
            name=loaded.name,
            sha256=loaded.sha256,
            plan=loaded.plan,
            progress=progress,
        )
    found = engine_settings_of(target, result, loaded.model, loaded.plan)
    if format is options.DocumentFormat.TEXT:
        width, _ = common.terminal(output)
        write_result(settings.text(found, result, width=width), output)
    else:
        common.write(settings.view(found, result), format, output)
