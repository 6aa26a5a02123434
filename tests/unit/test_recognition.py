"""Files are told apart by content, and what is imported of them holds nothing of another machine."""

from pathlib import Path

import pytest
from campaign.files import kinds
from tiers import is_night

from kvplan.errors import UsageError
from kvplan.ingest.gathering import Asked, gather
from kvplan.ingest.reader import FileKind
from kvplan.ingest.recognition import kind_of

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared/data"
OWN = {  # by the end of a path
    "docs/example/serve.log": FileKind.LOG,
    "docs/example/requests.csv": FileKind.REQUESTS,
    "docs/example/drafts.csv": FileKind.DRAFTS,
    "profiles/tool-calls-h100.toml": FileKind.PROFILE,
}
PUBLISHED = {
    "engine-logs/startup_lines.txt": FileKind.LOG,
    "engine-logs/hybrid_startup_lines.txt": FileKind.LOG,
    "engine-logs/vllm_metrics_snapshot.prom": FileKind.METRICS,
    "azure-code/*.csv": FileKind.REQUESTS,
    "azure-conv/*.csv": FileKind.REQUESTS,
    "mooncake-conversation/*.jsonl": FileKind.REQUESTS,
    "servegen/chunk-*": FileKind.REQUESTS,
    "vllm-*/requests.jsonl": FileKind.REQUESTS,
    "vllm-*/timeseries.csv": FileKind.TIMING,
    "inference-perf/*/stage_*.json": FileKind.TIMING,
    "inference-perf/sweeps.csv": FileKind.TIMING,
    "silicon-*/*.csv": FileKind.TIMING,
    "splitwise-sim/perf_model.csv": FileKind.TIMING,
    "speculative-20780.csv": FileKind.DRAFTS,
    "model-configs/*.json": FileKind.MODEL,
}


@pytest.mark.parametrize("name", OWN)
def test_files_of_the_checkout_are_recognized(name: str) -> None:
    assert kind_of(ROOT / name) is OWN[name]


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_published_files_are_recognized(pattern: str) -> None:
    files = sorted(DATA.glob(pattern))
    if not files:
        pytest.skip("shared data is not there")
    assert {kind_of(path) for path in files} == {PUBLISHED[pattern]}


def test_what_is_none_of_them_is_refused_with_all_that_was_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"  # a name says nothing
    texts = '[{"id": "a_0", "conversations": [{"from": "human", "value": "Hi"}]}]'  # ShareGPT: neither times nor tokens
    for text in ("hello\n", "a,b\n1,2\n", '{"a": 1}\n', "[]\n", "key: value\n", texts):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"not recognized.*--as KIND=FILE") as refusal:
            kind_of(path)
        assert all(f"{kind}: " in str(refusal.value) for kind in FileKind)


def test_no_reader_brings_numbers_of_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shipped profile is opened, and a table is there only where a file of its kind was."""

    def opened(*_: object) -> None:
        raise AssertionError("a shipped profile is opened")

    for name in ("shipped_profiles", "load_profile", "read_reference"):
        monkeypatch.setattr(f"kvplan.profile.reading.{name}", opened)
    gives = {
        FileKind.LOG: {"gpu", "timing", "engine", "model"},
        FileKind.TIMING: {"timing"},
        FileKind.REQUESTS: {"classes", "workload", "prefix", "timing"},
        FileKind.METRICS: {"gpu", "classes"},
    }
    seen = set()
    published = [
        path for pattern in PUBLISHED for path in sorted(DATA.glob(pattern))[: 2 if is_night() else 1]
    ]
    for path in [*written(tmp_path), *published, ROOT / "docs/example/serve.log"]:
        if "azure" in str(path) or path.stat().st_size > 30_000_000:
            continue  # long, and of a format that others have
        kind = kind_of(path)
        if kind not in gives:
            continue
        interval = "9 s" if kind is FileKind.METRICS else None
        capacity = 50_000 if kind is FileKind.TIMING else None
        try:
            found = gather({kind: [path]}, Asked(interval=interval, capacity=capacity)).profile
        except UsageError:
            continue  # too little to tell, or of several replicas
        seen.add(kind)
        tables = set(found.tables) - {"schema", "name", "provenance"}
        assert tables <= gives[kind] | ({"gpu"} if capacity else set()), path
        for name, origin in found.tables["provenance"].items():
            source = origin["source"] if isinstance(origin, dict) else origin
            assert path.name in source or source == "--capacity", (path, name)
    assert seen == set(gives)


def written(folder: Path) -> list[Path]:
    """The samples of the campaign, in files whose names say nothing."""
    found = []
    for number, kind in enumerate(kinds()):
        path = folder / f"sample-{number}"
        path.write_bytes(kind.content)
        if kind.arguments[0] == "import" and not kind.beside:
            kind_of(path)
            found.append(path)
    return found


def test_rows_without_line_ends_are_no_table(tmp_path: Path) -> None:
    """A header of 120,000 columns would be looked at by every reader for minutes."""
    path = tmp_path / "file"
    path.write_text("input_tokens,output_tokens,timestamp " * 40_000)
    with pytest.raises(UsageError, match="not recognized"):
        kind_of(path)
