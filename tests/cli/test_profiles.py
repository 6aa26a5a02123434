"""`init`, `profiles` and `schema` as commands."""

import json
from pathlib import Path

from command import Run
from every import every

from kvplan.profile.reading import DEFAULT_PROFILE, load_profile, shipped_profiles, starter
from kvplan.profile.schema import json_schema


def test_init_writes_a_profile_that_analyze_reads(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    assert run("init", str(path)) == (0, "", "")
    assert run("init") == (0, path.read_text("utf-8"), "")
    code, report, messages = run("analyze", str(path))
    assert (code, messages) == (0, "")
    assert report.startswith("My service\n")


def test_init_replaces_a_file_only_where_told_to(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("precious")
    assert run("init", str(path)) == (2, "", f"error: {path}: exists already; --force replaces it\n")
    assert path.read_text() == "precious"
    assert run("init", str(path), "--force") == (0, "", "")
    assert path.read_text("utf-8") == starter()


def test_the_starter_names_every_key_of_a_profile() -> None:
    text = starter()
    schema = json_schema()
    for table in (schema, *schema["$defs"].values()):
        for key in table.get("properties", {}):
            assert key in text, key


def test_profiles_are_listed_with_a_line_each(run: Run) -> None:
    code, out, error = run("profiles")
    assert (code, error) == (0, "")
    lines = out.splitlines()
    assert [line.removesuffix(" (default)") for line in lines[::2]] == sorted(shipped_profiles())
    assert f"{DEFAULT_PROFILE} (default)" in lines
    for about in lines[1::2]:
        assert about.startswith("  ")
        assert len(about.strip()) > 20, "each file begins with a comment that says what the profile is"
        assert len(about) <= 80, about


@every("name", sorted(shipped_profiles()))
def test_a_printed_profile_is_the_shipped_one(name: str, run: Run, tmp_path: Path) -> None:
    code, out, error = run("profiles", name)
    assert (code, error) == (0, "")
    copy = tmp_path / "mine.toml"
    copy.write_text(out, encoding="utf-8")
    with copy.open("rb") as unread:
        assert load_profile(str(copy), stdin=unread).sha256 == load_profile(name, stdin=unread).sha256


def test_the_schema_is_printed_and_written(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    assert run("schema", "-o", str(path)) == (0, "", "")
    code, out, error = run("schema")
    assert (code, error, path.read_text("utf-8")) == (0, "", out)
    assert json.loads(out) == json_schema()


def test_the_schema_of_the_report_is_printed(run: Run) -> None:
    code, out, error = run("schema", "--of", "report")
    assert (code, error) == (0, "")
    assert json.loads(out)["title"] == "kvplan report"


def test_models_and_gpus_are_listed_by_a_word_of_any_name(run: Run) -> None:
    """Sizes by hand: 80 layers of 8 heads of 128 numbers, keys and values of 2 bytes."""
    code, out, _ = run("models", "llama-3.3-70b")
    row = next(line for line in out.splitlines() if line.startswith("  meta-llama/Llama-3.3-70B-Instruct "))
    assert (code, row.split()[1:]) == (
        0,
        ["70.6", "B", f"{80 * 8 * 128 * 2 * 2 / 1000:.4g}", "kB", "131,072"],
    )
    assert "is also Llama-3.3-70B" in out
    for kind, entry in (("models", "Qwen/Qwen3-8B"), ("gpus", "H100 PCIe")):
        found = json.loads(run(kind, "--format", "json")[1])[kind]
        assert entry in [one["name"] for one in found]
        assert len(found) > len(json.loads(run(kind, entry, "--format", "json")[1])[kind]) == 1
        assert max(map(len, run(kind)[1].splitlines())) <= 80
    powers = {row["name"]: row["watts"] for row in json.loads(run("gpus", "--format", "json")[1])["gpus"]}
    assert (powers["H100 SXM"], powers["H800 PCIe"]) == (700, None)
    assert [line.split()[-2:] for line in run("gpus", "H100 SXM")[1].splitlines()[1:3]] == [
        ["8-bit", "power"],
        ["700", "W"],
    ]
    assert run("models", "no such")[::2] == (2, "error: 'no such' is in no name; kvplan models lists all\n")
