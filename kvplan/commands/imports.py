"""`kvplan import`: what an engine or a model says of itself becomes a profile."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.common import Output, read_base, say
from kvplan.commands.ingest import Base
from kvplan.output import write_result

if TYPE_CHECKING:
    from kvplan.ingest.profile_text import Part
    from kvplan.profile import Profile


def log(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="What vLLM, SGLang, TensorRT-LLM or TGI printed when it started.",
            show_default=False,
        ),
    ],
    base: Base = None,
    output: Output = None,
) -> None:
    """KV capacity and limits from an engine's log."""
    from kvplan.ingest.engine_log import read_engine_log
    from kvplan.ingest.replica_text import log_part

    kept = read_base(base)
    found = read_engine_log(file)
    _write(
        kept,
        base,
        [log_part(found, kept)],
        found.notes,
        file,
        replica=f"replica of {file.name}",
        output=output,
    )


def _write(
    kept: "Profile",
    base: str | None,
    parts: "Sequence[Part]",
    notes: Sequence[str],
    file: Path,
    *,
    replica: str | None = None,
    traffic: str | None = None,
    output: Path | None,
) -> None:
    """Write the profile with these parts measured, and say what there is to say."""
    from kvplan.ingest.profile_text import composed

    profile = composed(
        kept, parts, source=str(file), replica=replica, traffic=traffic, default_base=base is None
    )
    for note in notes:
        say(f"note: {note}")
    write_result(profile.text, output)
