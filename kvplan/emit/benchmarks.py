"""Proposed runs as a script of a load generator: its commands are data, by version."""

import shlex
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from kvplan.engine import numbers
from kvplan.errors import UsageError, did_you_mean
from kvplan.ingest.model.hardware import tables
from kvplan.planning.measuring import Measuring, Run
from kvplan.profile.reading import Profile
from kvplan.units import format_seconds

URL = "http://localhost:8000"
_tools = cache(partial(tables, Path(__file__).with_name("benchmarks.toml")))


def commands_of(tool: str) -> dict[str, str]:
    """Return the commands of a load generator, of a version where one is named: ``guidellm==0.3``.

    Examples
    --------
    >>> "--rate-type" in commands_of("guidellm==0.3")["run"], "--rate-type" in commands_of("guidellm")["run"]
    (True, False)
    """
    name, _, version = tool.partition("==")
    known: dict[str, list[dict[str, str]]] = _tools()
    if name not in known:
        raise UsageError(f"--with {name[:40]!r}: {did_you_mean(name, [*known], 'there are')}")
    had = [some for some in known[name] if not version or numbers(version) >= numbers(some.get("since", "0"))]
    if not had:
        raise UsageError(f"--with {tool}: its commands are known from {known[name][0]['since']} on")
    return had[-1]


def next_commands(measuring: Measuring, tool: str, *, memory: bool) -> tuple[str, str]:
    """Return what makes a profile of the results, and what follows from it."""
    results = dict.fromkeys(commands_of(tool)["result"].format(name="*") for _ in measuring.runs)
    log = "serve.log " if memory else ""
    base = shlex.quote(measuring.profile.source)
    return (
        f"kvplan import {log}{' '.join(results)} --base {base} --against {base} -o measured.toml",
        "kvplan plan measured.toml",
    )


def script(measuring: Measuring, tool: str, url: str | None, *, memory: bool) -> str:
    """Write the runs as a script for a machine that reaches the replica."""
    return "\n".join(_lines(measuring, commands_of(tool), tool, url or URL, memory)) + "\n"


def _lines(
    measuring: Measuring, commands: dict[str, str], tool: str, url: str, memory: bool
) -> Iterator[str]:
    profile = measuring.profile
    served = profile.tables.get("model", {}).get("name")
    yield "#!/usr/bin/env bash"
    yield f"# Runs that settle {_plain(profile.name)}, with {_plain(tool)}. One replica, and no other traffic."
    yield "set -euo pipefail"
    yield f"URL={shlex.quote(url)}"
    yield f"MODEL={shlex.quote(served)}" if served else "MODEL=${MODEL:?the model, as the server calls it}"
    yield "mkdir -p results/warm"
    for number, run in enumerate(measuring.runs, 1):
        yield ""
        yield f"# {number}: {run.concurrency:,} at once, {run.seconds / 60:.1f} minutes; {expected(run)} expected"
        values: dict[str, Any] = run._asdict() | {
            "seed": _seed(profile, number),
            # by its seed: the next script's run at this concurrency is another file
            "name": f"run-{run.concurrency}-{_seed(profile, number)}",
        }
        values |= {"warm": max(run.concurrency, 2), "entries": run.prompts + max(run.concurrency, 2)}
        for part in ("warm", "run"):
            if commands[part]:
                yield commands[part].format(**values).strip("\n")
    yield ""
    if memory:
        yield "echo 'The start-up log of the engine, as serve.log, has the KV capacity.'"
    for command in next_commands(measuring, tool, memory=memory):
        yield f"echo {shlex.quote('Next: ' + command)}"


def expected(run: Run) -> str:
    """Say what a run is expected to show."""
    return f"TTFT {format_seconds(run.ttft_s)}, TPOT {format_seconds(run.tpot_s)}"


def _seed(profile: Profile, number: int) -> int:
    """A seed of its own for each run, of this script or the next: what one has asked, a cache may hold."""
    return 1000 * int(profile.sha256[:4], 16) + number


def _plain(text: str) -> str:
    return " ".join(text.split())
