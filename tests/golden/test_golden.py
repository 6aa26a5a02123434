"""What `analyze` prints: four profiles, which have every block of a report, to the byte; the others without a defect.

After an intended change write the files anew and read the difference::

    KVPLAN_REGENERATE=1 pytest tests/golden tests/cli
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from every import check_every
from rich.cells import cell_len
from shipped import LOOKED_AT, report

from kvplan.report.assembly import to_document
from kvplan.show import html, markdown, terminal
from kvplan.show.page import Document
from kvplan.show.report import build
from kvplan.show.view import json_text

FOLDER = Path(__file__).parent
KEPT = ("agents-brief", "eagle-3-h100", "gemma-3-27b-h100", "split-brief")
NEVER_SHIPPED = {"cost"}  # blocks that an option fills


def _document(name: str) -> Document:
    return build(report(name))


RENDERERS = {
    "txt": lambda name: terminal.render(_document(name)),
    "json": lambda name: json_text(to_document(report(name))),
}
OTHERS = {
    "markdown": lambda name: markdown.render(_document(name)),
    "html": lambda name: html.render(_document(name)),
}
WIDTHS = {"txt": 80}


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, item in items for leaf in _leaves(item, f"{path}.{key}")]
    return [(path, value)]


@pytest.mark.parametrize("kind", RENDERERS)
@pytest.mark.parametrize("name", KEPT)
def test_the_rendered_report_is_the_known_one(name: str, kind: str) -> None:
    text = RENDERERS[kind](name)
    path = FOLDER / f"{name}.{kind}"
    if os.environ.get("KVPLAN_REGENERATE"):
        path.write_text(text, encoding="utf-8")
        pytest.skip("written")
    known = path.read_text("utf-8")
    if kind != "json":
        assert text == known
        return
    # the last digits of a float may differ between processors; keys, their order and everything else may not
    for (key, value), (known_key, known_value) in zip(
        _leaves(json.loads(text)), _leaves(json.loads(known)), strict=True
    ):
        assert key == known_key
        close = isinstance(known_value, float) and known_value != 0
        assert value == (pytest.approx(known_value, rel=1e-9) if close else known_value), key


def test_every_shipped_profile_is_rendered_in_every_format() -> None:
    def check(name: str) -> None:
        for kind, render in (RENDERERS | OTHERS).items():
            text = render(name)
            assert text == render(name), kind
            assert text.endswith("\n"), kind
            assert max(map(cell_len, text.splitlines())) <= WIDTHS.get(kind, 10**6), kind

    check_every(LOOKED_AT, check)


SAID = {  # by profiles of which no file is kept
    "azure-conv-overloaded": (
        "more of this mix than compute allows.",
        "Bring the load below",
        "or serve it with at least 2 replicas.",
        "the queue grows:",
        "It does not fit: what the offered load would hold in memory without preemptions.",
        "FC Theorem 3.6 says nothing: the mean does not fit.",
        "which is far more than this traffic has in flight; both suit many small requests.",
    ),
    "llama-3.1-8b-rtx4090": ("limited by compute; any backlog", "more; see --format json"),
    "paper-fc-budgets": ("limited by kv_memory; any backlog",),
    "paper-sic-limit-cycle": (
        "under a backlog no more than",
        "once collapsed the replica can stay collapsed.",
        "exact for Poisson arrivals and a constant iteration time",
        "SIC eq. 25, worst cycle of one decode length",
    ),
    "paper-wait-nested": ("any backlog in random order drains by itself.", "Kind simulated simulated"),
    "reasoning-h100": (
        "Does not fit: whole requests at every stage would take",
        "It suits far more than the",
    ),
    "shared-prompt": ("Collapse possible no computed",),
    "tool-calls-h100": ("FC Theorem 3.6 bounds the overflows in the horizon by",),
    "two-tier-100-125": ("Inputs: gpu and timing estimated, workload assumed (data sheet", "Kind pulse"),
}


def test_what_the_kept_reports_have_no_occasion_to_say_is_said_by_others() -> None:
    def check(name: str) -> None:
        text = " ".join(RENDERERS["txt"](name).split())
        assert [words for words in SAID[name] if words not in text] == []

    check_every([name for name in SAID if name in LOOKED_AT], check)


def test_every_block_of_a_report_is_in_a_file() -> None:
    documents = [json.loads((FOLDER / f"{name}.json").read_text("utf-8")) for name in KEPT]
    assert {key for key in documents[0] if all(d[key] is None for d in documents)} == NEVER_SHIPPED


def test_nothing_else_is_kept() -> None:
    expected = {f"{name}.{kind}" for name in KEPT for kind in RENDERERS}
    assert {p.name for p in FOLDER.iterdir() if p.is_file()} - {"test_golden.py"} == expected
