"""`kvplan` as a user calls it: in this process where only what it says matters, else as a process of its own."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import kvplan
from kvplan.cli.app import main

# The package under test wins, wherever the tests run from; the caller's terminal must not matter.
OF_TESTS = ("KVPLAN_CACHE_DIR", "KVPLAN_TESTS_SHARE", "OPENBLAS_NUM_THREADS")
ENVIRONMENT = {
    **{key: os.environ[key] for key in ("PATH", "HOME", "LANG", *OF_TESTS) if key in os.environ},
    "PYTHONPATH": str(Path(kvplan.__file__).parents[1]),
}
Done = subprocess.CompletedProcess[str]
Run = Callable[..., tuple[int, str, str]]  # the fixture of that name: exit code, output and messages


def run(*arguments: object, env: Mapping[str, str] = {}, input: str | bytes = b"") -> Done:
    """What the command prints and returns, without the half second that a process takes to start."""
    given = input.encode() if isinstance(input, str) else input
    read, out, error = (io.TextIOWrapper(io.BytesIO(text), encoding="utf-8") for text in (given, b"", b""))
    argv = [str(argument) for argument in arguments]
    with (
        mock.patch.multiple(sys, stdin=read, stdout=out, stderr=error),
        mock.patch.dict(os.environ, ENVIRONMENT | dict(env), clear=True),
    ):
        code = main(argv)
        for stream in (out, error):
            stream.flush()
    texts = (stream.buffer.getvalue().decode() for stream in (out, error))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(argv, code, *texts)


def process(*arguments: object, env: Mapping[str, str] = {}, **options: object) -> Done:
    """The command as a process, for what depends on one: streams, limits, the locale, signals."""
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-P", "-m", "kvplan", *map(str, arguments)],
        **{"capture_output": True, "encoding": "utf-8", "timeout": 120, **options},
        env=ENVIRONMENT | dict(env),
    )


def python(program: str, *arguments: str, env: Mapping[str, str] = {}, **options: object) -> Done:
    """A program in a process of its own, which ends well."""
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-P", "-c", program, *arguments],
        **{"capture_output": True, "encoding": "utf-8", "check": True, **options},
        env=ENVIRONMENT | dict(env),
    )


def document(run: Run, *arguments: str) -> dict[str, Any]:
    """What a command says as JSON, without a message."""
    code, text, messages = run(*arguments, "--format", "json")
    assert (code, messages) == (0, "")
    found: dict[str, Any] = json.loads(text)
    return found
