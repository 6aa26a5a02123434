"""Rules and queries by Prometheus's own word for them: `promtool`, of Debian's package prometheus."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

STEP_S = 15  # between two samples


def _run(*arguments: str) -> None:
    if shutil.which("promtool") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "needs promtool, of Debian's package prometheus"
        )
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check(groups: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Have groups of rules read; every query in them is parsed."""
    path = folder / "rules.json"  # JSON is YAML
    path.write_text(json.dumps({"groups": groups}))
    _run("check", "rules", str(path))


def check_queries(queries: Sequence[str], folder: Path) -> None:
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(queries)]
    check([{"name": "queries", "rules": rules}], folder)


class Case(NamedTuple):
    """Series of a sample each `step_s`, and what queries say of them then: samples by their labels."""

    series: Mapping[str, Sequence[float] | str]
    queries: Mapping[str, Mapping[str, float]]
    at_s: int
    step_s: int = STEP_S


def expect(cases: Sequence[Case], folder: Path, *, groups: Sequence[Mapping[str, Any]] = ()) -> None:
    """Have rules run on the series of each case, and compare."""
    (folder / "rules.json").write_text(json.dumps({"groups": groups}))
    tests = {
        "rule_files": ["rules.json"],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [_test(case) for case in cases],
    }
    path = folder / "test.json"
    path.write_text(json.dumps(tests))
    _run("test", "rules", str(path))


def _test(case: Case) -> dict[str, Any]:
    inputs = [
        {"series": name, "values": values if isinstance(values, str) else " ".join(map(repr, values))}
        for name, values in case.series.items()
    ]
    expected = [
        {
            "expr": query,
            "eval_time": f"{case.at_s}s",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
        }
        for query, samples in case.queries.items()
    ]
    return {"interval": f"{case.step_s}s", "input_series": inputs, "promql_expr_test": expected}
