"""The three tiers of tests, and a folder for what all processes of a session share: compiled loops and reports."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tiers import COMMIT, NIGHTLY, is_kept, is_quick

# No deadline: how long a draw takes says how busy the machine is. On a commit the draws follow from the test alone, so
# that what is red is red for everybody, and because of the change; the night looks further, elsewhere each time.
settings.register_profile(
    "commit",
    max_examples=COMMIT,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "nightly",
    max_examples=NIGHTLY,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)

_shared = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly",
        action="store_true",
        help="also run the tests marked nightly, and draw many more examples",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("nightly" if config.getoption("--nightly") else "commit")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every command compiles the whole package
    sys.dont_write_bytecode = False  # nor do the tests
    if "KVPLAN_TESTS_SHARE" not in os.environ:  # workers and commands inherit all of these
        shared = config.stash[_shared] = tempfile.mkdtemp(prefix="kvplan-tests-")
        os.environ["KVPLAN_TESTS_SHARE"] = shared
        cache: pytest.Cache | None = getattr(
            config, "cache", None
        )  # loops are compiled once for all sessions
        os.environ.setdefault("KVPLAN_CACHE_DIR", str(cache.mkdir("loops")) if cache else shared)
        numba = str(cache.mkdir("numba")) if cache else shared  # of what tests compile themselves
        os.environ.setdefault("NUMBA_CACHE_DIR", numba)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _shared in config.stash:
        del os.environ["KVPLAN_TESTS_SHARE"]
        shutil.rmtree(config.stash[_shared], ignore_errors=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what `-m quick` leaves out."""
    left_out = config.option.markexpr == "quick" and collection_path.suffix == ".py"
    return True if left_out and not is_quick(collection_path) else None


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without a burst and advice, which take most of their time."""
    from measured import leave_out_runs

    leave_out_runs(monkeypatch)


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates last that do so in runs as long as those of the command."""
    from measured import DAYS

    for name, most in DAYS.items():
        monkeypatch.setattr(f"kvplan.study.lasting.{name}", most)


@pytest.hookimpl(tryfirst=True)  # before the tests that `-m` does not ask for are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from measured import remember  # where tests run, and not where they are only handed out

    remember()
    for item in items:
        if is_quick(item.path):
            item.add_marker(pytest.mark.quick)
    if not config.getoption("--nightly"):
        seen: dict[str, int] = {}
        kept = [is_kept(item, seen) for item in items]
        config.hook.pytest_deselected(items=[item for item, on in zip(items, kept, strict=True) if not on])
        items[:] = [item for item, on in zip(items, kept, strict=True) if on]
