"""The first long run says that it compiles, once; without a folder to keep the loop in, that it always will."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = ["simulate", "tool-calls-h100", "--policy", "greedy", "--requests", "300000", "--format", "csv"]
WITHOUT_FOLDER = """
import sys
from numba.core import caching


def nowhere(*arguments, **options):
    return None


for locator in caching.CacheImpl._locator_classes:
    locator.from_function = nowhere
from kvplan.cli.app import main

sys.exit(main(sys.argv[1:]))
"""


def process(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder), "HOME": "/nonexistent"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True, env=environment, timeout=250
    )


@pytest.mark.nightly
def test_the_first_process_says_that_it_compiles_and_the_next_one_does_not(tmp_path: Path) -> None:
    first, second = (process("-m", "kvplan", *COMMAND, folder=tmp_path) for _ in range(2))
    assert (
        first.stderr == "note: compiling the loop for greedy, some ten seconds; later runs find it on disk\n"
    )
    assert second.stderr == ""
    assert first.stdout == second.stdout
    alone = process("-c", WITHOUT_FOLDER, *COMMAND, folder=tmp_path)
    assert alone.stderr.endswith("there is no folder to keep it in, so every long run does\n")
    assert alone.stdout == first.stdout
