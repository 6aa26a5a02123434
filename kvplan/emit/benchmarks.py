"""Proposed runs as a script of a load generator: its commands are data, by version."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvplan.engine import VERSION, EngineName, numbers
from kvplan.errors import UsageError, did_you_mean
from kvplan.ingest.model.hardware import tables
from kvplan.options import MeasureOptions
from kvplan.planning.measuring import Measuring, Run
from kvplan.profile.reading import Profile
from kvplan.units import format_seconds

URL = "http://localhost:8000"


@cache
def tools() -> dict[str, list[dict[str, str]]]:
    """Return the commands of load generators, by name, oldest versions first."""
    return tables(Path(__file__).with_name("benchmarks.toml"))


def commands_of(tool: str) -> dict[str, str]:
    """Return the commands of a load generator, of a version where one is named: ``guidellm==0.3``.

    Examples
    --------
    >>> "--rate-type" in commands_of("guidellm==0.3")["run"], "--rate-type" in commands_of("guidellm")["run"]
    (True, False)
    """
    name, _, version = tool.partition("==")
    known = tools()
    if name not in known:
        raise UsageError(f"--with {name[:40]!r}: {did_you_mean(name, [*known], 'there are')}")
    if version and not re.fullmatch(VERSION, version):
        raise UsageError(f"--with {tool[:60]}: a version is such as {name}==0.9")
    had = [some for some in known[name] if not version or numbers(version) >= numbers(some.get("since", "0"))]
    if not had:
        raise UsageError(f"--with {tool}: its commands are known from {known[name][0]['since']} on")
    return had[-1]


def next_commands(measuring: Measuring, asked: MeasureOptions) -> tuple[str, str, str]:
    """Return commands that make a profile of the results, plan with it, and propose the next run."""
    results = commands_of(asked.tool)["result"].format(name="*")
    log = "serve.log " if asked.memory else ""
    base, against = shlex.quote(_first_base(measuring.profile)), shlex.quote(measuring.profile.source)
    slos = "".join(f" --slo {shlex.quote(slo.text)}" for slo in asked.slo)
    return (
        f"kvplan import {log}{results} --base {base} --against {against} -o measured.toml",
        f"kvplan plan measured.toml{slos}",
        f"kvplan measure measured.toml{slos}",
    )


def _first_base(profile: Profile) -> str:
    """Return the file of the estimate that a profile was fitted after, so that no run counts twice, or its own."""
    after = re.search(r"estimated after (.+\.toml)$", profile.model.provenance.timing.source or "")
    return after[1] if after is not None and Path(after[1]).exists() else profile.source


def address(url: str | None) -> str:
    """Return the address of a replica, without the path of its API, which the commands add.

    >>> address("http://replica:8000/v1/"), address(None)
    ('http://replica:8000', 'http://localhost:8000')
    """
    if url is None:
        return URL
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--url {url[:60]!r}: an address, such as {URL}")
    return url.rstrip("/").removesuffix("/v1")


def script(measuring: Measuring, asked: MeasureOptions) -> str:
    """Write the runs as a script for a machine that reaches the replica."""
    if not measuring.runs:
        raise UsageError(f"{measuring.profile.source}: no run is proposed: {measuring.stopped}")
    return "\n".join(_lines(measuring, asked)) + "\n"


def _lines(measuring: Measuring, asked: MeasureOptions) -> Iterator[str]:
    profile, tool, commands = measuring.profile, asked.tool, commands_of(asked.tool)
    served = profile.tables.get("model", {}).get("name")
    yield "#!/usr/bin/env bash"
    yield f"# Runs that settle {_plain(profile.name)}, with {_plain(tool)}. One replica, and no other traffic."
    yield "set -euo pipefail"
    yield f"URL={shlex.quote(address(asked.url))}"
    yield f"MODEL={shlex.quote(served)}" if served else "MODEL=${MODEL:?the model, as the server calls it}"
    yield "SEED=${SEED:-$(($(date +%s) % 1000000))}  # of prompts that no prefix cache has seen"
    yield "mkdir -p results/warm"
    engine = profile.model.engine
    for number, run in enumerate(measuring.runs, 1):
        yield ""
        yield f"# {number}: {run.concurrency:,} at once, {run.seconds / 60:.1f} minutes; {expected(run)} expected"
        values: dict[str, Any] = (
            run._asdict()
            | {
                "seed": f"$((SEED * 100 + {number}))",
                "before": f"$((SEED * 100 + {50 + number}))",
                "name": f"run-{run.concurrency}-$((SEED))",  # the next script's run at this concurrency is another file
                "backend": "sglang" if engine is not None and engine.name is EngineName.SGLANG else "vllm",
            }
        )
        values |= {"warm": max(run.concurrency, 2), "entries": run.prompts + max(run.concurrency, 2)}
        for part in ("warm", "run"):
            if commands[part]:
                yield commands[part].format(**values).strip("\n")
    yield ""
    if asked.memory:
        yield "echo 'The start-up log of the engine, as serve.log, has the KV capacity.'"
    for command in next_commands(measuring, asked):
        yield f"echo {shlex.quote('Next: ' + command)}"


def expected(run: Run) -> str:
    """Say what to expect of a run."""
    return f"TTFT {format_seconds(run.ttft_s)}, TPOT {format_seconds(run.tpot_s)}"


def _plain(text: str) -> str:
    return " ".join(text.split())
