"""`kvplan measure`: the cheapest benchmark that settles a plan."""

from pathlib import Path

from kvplan import api
from kvplan.cli import common, options
from kvplan.cli.output import check_writable, write_result
from kvplan.options import MeasureOptions


@options.of(MeasureOptions)
def measure(
    asked: options.Asked,
    profile: options.Profile = None,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Propose the runs of a load generator that settle a plan. -o bench.sh writes them as a script."""
    from kvplan.show.measure import view

    check_writable(output)
    found = api.measure(common.read(profile, output), **asked)
    is_script = output is not None and output.suffix == ".sh"
    wanted = MeasureOptions(**asked)
    shown = view(found, wanted.tool, memory=wanted.memory)
    common.write(shown, format, None if is_script else output)
    if is_script:
        write_result(found.script, Path(output) if output else None)
