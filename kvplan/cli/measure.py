"""`kvplan measure`: the cheapest benchmark that settles a plan."""

from kvplan import api
from kvplan.cli import common, options
from kvplan.cli.output import check_writable, write_result
from kvplan.errors import UsageError
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
    if profile in (None, "-"):
        raise UsageError("measure: a file or a shipped profile, which the commands that follow name")
    found = api.measure(common.read(profile, output), **asked)
    script = output if output is not None and output.suffix == ".sh" else None
    common.write(view(found, found.asked), format, None if script else output)
    if script is not None:
        write_result(found.script, script)
