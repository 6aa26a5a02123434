"""The command in this process, for tests of one command's answers."""

from typing import TYPE_CHECKING

import pytest

from kvplan.cli.app import main

if TYPE_CHECKING:
    from command import Run  # which looks at the environment, and that is made after this is read


@pytest.fixture
def run(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> "Run":
    """Exit code, output and messages of `kvplan`, of the module's COMMAND if it has one; compiling is not told of."""
    first: list[str] = getattr(request.module, "COMMAND", [])

    def command(*arguments: str) -> tuple[int, str, str]:
        code = main([*first, *arguments])
        out, err = capfd.readouterr()
        return code, out, "".join(s for s in err.splitlines(True) if "compiling" not in s)

    return command
