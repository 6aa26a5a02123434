"""`kvplan import`: whatever there is of a service becomes one profile."""

from pathlib import Path
from typing import Annotated

from kvplan import api
from kvplan.cli import common, completion, options
from kvplan.cli.options import argument, option
from kvplan.cli.output import write_result
from kvplan.errors import UsageError
from kvplan.options import ImportOptions


@options.of(ImportOptions)
def importing(
    files: Annotated[
        list[str] | None,
        argument(
            metavar="[FILE]...",
            help="Whatever there is, told apart by content: logs of engines, results of load generators, tables of "
            "iterations, requests or traces, an answer of /metrics, a config.json, a profile; '-' for standard input.",
        ),
    ] = None,
    *,
    asked: options.Asked,
    base: Annotated[
        str | None,
        option(
            "--base",
            metavar="PROFILE",
            help="Profile that supplies what is neither measured nor estimated. Default: it is left out.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    output: options.Output = None,
) -> None:
    """Make one profile of whatever there is: logs, results, requests, metrics, a model."""
    from kvplan.show import gathered

    files = files or []
    if base == "-" and "-" in files:
        raise UsageError("standard input can be the file or the --base, not both")
    read_from = [*files, *(each.partition("=")[2] for each in asked.get("told", ())), asked.get("since", "")]
    common.refuse_overwriting(output, [Path(path) for path in read_from if path])
    kept = None if base is None else common.load(base)
    with common.progress_bar() as progress:
        found = api.import_files(
            files,
            **asked,
            base=kept,
            folder=output and output.parent,
            announce=common.say_compiling,
            progress=progress,
        )
    common.say_section(gathered.build(found))
    write_result(found.profile.text, output)
