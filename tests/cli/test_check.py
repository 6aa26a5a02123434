"""`kvplan check` and `kvplan diff` as a pipeline runs them: exit codes, streams, files, GitHub, many profiles."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import documents
import pytest
from command import run

# One class, input 1, decode 2, disaggregated: 5 token-iterations a request, so 60 tokens and iterations of 1 s sustain
# 12 requests/s; at 8 offered the headroom is 0.5.
PROFILE = """schema = 1
name = "{name}"
gpu = {{ memory_tokens = 60, prefill = "disaggregated" }}
timing = {{ d0 = "1 s" }}
classes = [{{ name = "a", input = 1, decode = 2, rate = {rate} }}]
[gate]
require = ["load.headroom >= 0.25", {more}]
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return written(tmp_path / "good.toml", rate=8.0)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return written(tmp_path / "bad.toml", rate=11.0)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return written(tmp_path / "broken.toml", rate=8.0, more='"load.headrom >= 0.2"')


def written(path: Path, *, rate: float, more: str = "", name: str | None = None) -> Path:
    path.write_text(PROFILE.format(name=name or path.stem, rate=rate, more=more), encoding="utf-8")
    return path


def test_a_profile_that_fails_is_exit_code_one_with_remedies_on_demand(bad: Path) -> None:
    """12/1.25 = 9.6 requests/s would do, or 11·5·1.25 = 68.75 tokens, or two replicas of 5.5 requests/s each."""
    plain = run("check", bad)
    assert (plain.returncode, plain.stderr) == (1, "")
    assert "FAIL" in plain.stdout
    assert "rate down" not in plain.stdout
    result = run("check", bad, "--remedies")
    assert (result.returncode, result.stderr) == (1, "")
    text = " ".join(result.stdout.split())
    assert "rate down 12.7% to 9.6 requests/s (classes[0].rate = 9.6); or memory up 15% to 69 tokens" in text
    assert "(gpu.memory_tokens = 69); or 2 replicas in place of one (classes[0].rate = 5.5 each)." in text


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_a_profile_that_cannot_be_judged_is_exit_code_two_and_passes_nowhere(
    form: str, broken: Path, tmp_path: Path
) -> None:
    result = run("check", broken, "--format", form, "--junit", tmp_path / "junit.xml")
    assert result.returncode == 2
    says = f"{broken}:7: gate.require[1]: unknown key 'load.headrom'; did you mean load.headroom?"
    assert result.stderr == f"error: {says}\n"
    assert "PASS" not in result.stdout
    (case,) = ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase")
    assert [child.tag for child in case] == ["error"]


@pytest.mark.parametrize("empty", ["no-such-profile", "/", ""])
def test_a_profile_that_cannot_be_read_does_not_hide_the_others(empty: str, good: Path) -> None:
    result = run("check", good, empty, "--format", "json")
    assert result.returncode == 2
    assert [p["outcome"] for p in documents.read("check", result.stdout)["profiles"]] == [
        "passed",
        "unusable",
    ]


def test_drift_from_a_baseline(good: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    assert run("analyze", good, "--format", "json", "-o", old).returncode == 0
    arguments = ("--baseline", old, "--tolerance", "load.sustainable_rps=2%")
    assert run("check", good, *arguments).returncode == 0
    smaller = tmp_path / "smaller.toml"
    smaller.write_text(good.read_text().replace("memory_tokens = 60", "memory_tokens = 58"))
    result = run("check", smaller, *arguments, "--format", "json")
    assert result.returncode == 1  # 58/60 is 3.3 % less
    own, drift = documents.read("check", result.stdout)["profiles"][0]["requirements"]
    assert (own["passed"], drift["passed"], drift["origin"], drift["wanted"]) == (
        True,
        False,
        "baseline",
        12.0,
    )
    assert drift["margin"] == pytest.approx(0.02 * 12 - 0.4)
    assert run("check", good, smaller, *arguments).returncode == 1
    other = written(tmp_path / "other.toml", rate=8.0)
    result = run("check", good, other, *arguments)
    assert result.returncode == 2
    assert "is a report on 'good', not on 'other'" in result.stderr


@pytest.mark.parametrize(("kind", "word", "says"), [("good", "PASS", "passed"), ("bad", "FAIL", "failed")])
@pytest.mark.parametrize("place", ["/dev/full", "/proc/nowhere/summary"])
def test_what_cannot_be_written_elsewhere_hides_no_result(
    kind: str, word: str, says: str, place: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(kind)
    for result in (
        run("check", path, env={"GITHUB_STEP_SUMMARY": place}),
        run("check", path, "--junit", place),
    ):
        assert result.returncode == 2
        assert word in result.stdout
        assert result.stderr.startswith(f"error: {place}: cannot be written")
        assert result.stderr.endswith(f"; the gate itself has {says}\n")


def test_nothing_that_is_read_is_overwritten(good: Path, bad: Path, tmp_path: Path) -> None:
    old, link = tmp_path / "old.json", tmp_path / "link"
    run("analyze", good, "--format", "json", "-o", old)
    link.symlink_to(good)
    contents = {path: path.read_bytes() for path in (good, bad, old)}
    drift = ("--baseline", old, "--tolerance", "load.headroom=1%")
    for target in (good, old, link):
        for option in ("-o", "--junit"):
            result = run("check", good, *drift, option, target)
            assert (result.returncode, result.stdout) == (2, "")
            assert result.stderr == f"error: {option} {target}: would overwrite what is read\n"
    assert {path: path.read_bytes() for path in contents} == contents
    new = tmp_path / "new"
    result = run("check", good, "-o", new, "--junit", tmp_path / "." / "new")
    assert (result.returncode, result.stderr) == (
        2,
        f"error: --junit and -o are both {new}; one would overwrite the other\n",
    )
    assert not new.exists()


def test_annotations_point_at_the_line_of_the_requirement(bad: Path, broken: Path) -> None:
    result = run("check", bad, broken, env={"GITHUB_ACTIONS": "true"})
    assert result.returncode == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("::")]
    assert [line.partition(",title=")[0] for line in lines] == [
        f"::error file={bad},line=7",
        f"::error file={broken},line=7",
    ]
    assert run("check", bad, env={"GITHUB_ACTIONS": "false"}).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--require", "load.headrom >= 20%"),
            "--require: unknown key 'load.headrom'; did you mean load.headroom?",
        ),
        (
            ("--tolerance", "load.headroom=2%"),
            "--tolerance says how far a report may drift from --baseline, which",
        ),
        (("--baseline", "nowhere.json", "--tolerance", "load.headroom=2%"), "nowhere.json: "),
    ],
)
def test_what_refuses_the_whole_call_is_annotated_too(
    arguments: tuple[str, ...], says: str, good: Path
) -> None:
    result = run("check", good, *arguments, env={"GITHUB_ACTIONS": "true"})
    annotation, error = result.stderr.splitlines()
    said = error.removeprefix("error: ")
    assert said.startswith(says)
    assert (result.returncode, annotation) == (2, f"::error title=kvplan::{said.replace('%', '%25')}")
    assert run("check", good, *arguments).stderr == f"{error}\n"


def test_the_summary_is_appended(good: Path, bad: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    run("check", good, env={"GITHUB_STEP_SUMMARY": str(summary)})
    run("check", bad, env={"GITHUB_STEP_SUMMARY": str(summary)})
    text = summary.read_text("utf-8")
    assert text.startswith("before\n")
    markdown = [run("check", path, "--format", "markdown").stdout for path in (good, bad)]
    assert text == "before\n" + "".join(markdown)


@pytest.mark.usefixtures("brief")
def test_a_difference_is_told_and_is_no_failure(good: Path, bad: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    run("analyze", good, "--format", "json", "-o", old)
    same = run("diff", old, good)
    assert (same.returncode, same.stderr) == (0, "")
    assert "Nothing differs." in same.stdout
    found = run("diff", old, bad, "--format", "json")
    assert found.returncode == 0
    moved = {c["key"]: c["relative_change"] for c in json.loads(found.stdout)["changes"]}
    assert moved["load.offered_rps"] == pytest.approx(11 / 8 - 1)
    assert moved["load.headroom"] == pytest.approx((12 / 11 - 1) / 0.5 - 1)
    for form in ("text", "markdown"):
        assert "load.headroom" in run("diff", old, bad, "--format", form).stdout


# -- a running service: 120 requests of 1 token in and 2 out, in 60 s

METRICS = """vllm:request_prompt_tokens_sum {inputs}
vllm:request_prompt_tokens_count 120
vllm:request_prompt_tokens_bucket{{le="+Inf"}} 120
vllm:request_generation_tokens_sum 240
vllm:request_generation_tokens_count 120
vllm:request_generation_tokens_bucket{{le="+Inf"}} 120
"""


def metrics(folder: Path, inputs: float = 120.0) -> Path:
    path = folder / "now.prom"
    path.write_text(METRICS.format(inputs=inputs), encoding="utf-8")
    return path


def test_a_service_is_compared_by_its_counters(good: Path, tmp_path: Path) -> None:
    junit, summary = tmp_path / "junit.xml", tmp_path / "summary.md"
    service = metrics(tmp_path)
    result = run("check", good, "--metrics", service, "--interval", "60 s", "--format", "json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document["metrics"]["rate_rps"] == 2.0
    assert {f["key"]: f["verdict"] for f in document["figures"]} == {
        **{"input_tokens": "inside", "output_tokens": "inside", "rate_rps": "inside"},
        **dict.fromkeys(("itl_s", "itl_at_batch_s", "preemptions"), "not judged"),
    }
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    longer = metrics(tmp_path, inputs=144.0)
    result = run("check", good, "--metrics", longer, "--interval", "60 s", "--junit", junit, env=env)
    assert result.returncode == 1
    assert "Input tokens: wanted 0.95 to 1.05, got 1.2" in result.stderr
    assert "| FAIL | Input tokens | 1 | 1.2 | 0.95 to 1.05 |" in summary.read_text(encoding="utf-8")
    assert ElementTree.parse(junit).getroot().attrib["failures"] == "1"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--since", "now.prom"], "go with --metrics"),
        (["--metrics", "now.prom", "--require", "load.headroom >= 0"], "calls? of their own"),
        (["--metrics", "empty.prom"], "empty.prom: empty"),
        (["--metrics", "nan.prom"], "must be a number, at least 0"),
        (["--metrics", "twice.prom"], "two values for the same labels"),
        (["--metrics", "now.prom", "--since", "later.prom"], "went down from 240 in .*later.prom to 120"),
        (["--metrics", "now.prom", "--since", "now.prom"], "no request ended in this time"),
        (["--metrics", "now.prom", "--interval", "soon"], "--interval: 'soon' is not a time"),
        (["--metrics", "good.toml"], "not Prometheus text"),
    ],
)
def test_what_is_no_service_to_compare_is_refused_in_a_line(
    arguments: list[str], says: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = metrics(tmp_path).read_text()
    for name, written in {
        **{"empty": "", "nan": text.replace("_sum 240", "_sum NaN"), "later": text.replace("120", "240")},
        "twice": text + text.replace("_sum 240", "_sum 250"),
    }.items():
        (tmp_path / f"{name}.prom").write_text(written, encoding="utf-8")
    result = run("check", good, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert re.search(says, result.stderr)
    assert result.stderr.count("\n") == 1


def test_metrics_without_a_time_or_with_few_requests_say_so(good: Path, tmp_path: Path) -> None:
    result = run("check", good, "--metrics", metrics(tmp_path))
    assert result.returncode == 0
    assert "Not judged, no time, so no rate: requests." in result.stdout
    few = tmp_path / "few.prom"
    few.write_text(METRICS.format(inputs=50).replace("120", "50").replace("240", "100"), encoding="utf-8")
    result = run("check", good, "--metrics", few, "--interval", "10 s")
    assert result.returncode == 2
    assert "A drift of 20% shows in 100 requests, 26 s at this rate." in " ".join(result.stdout.split())
