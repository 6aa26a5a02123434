"""`kvplan calibrate` as a command."""

from pathlib import Path

import pytest
from command import Run

from kvplan.model import Knowledge, MeasuredRange, Origin, Provenance
from kvplan.profile.reading import parse_profile

# A server whose iterations take 10 ms, 1 us per KV token, 100 us per prefill token.
ROWS = [(k, p, 10 + k / 1000 + p / 10) for k in (0, 1000, 4000, 20000) for p in (0, 50, 200)]
TABLE = "kv_tokens,prefill_tokens,iteration_ms\n" + "".join(f"{k},{p},{t:.3f}\n" for k, p, t in ROWS)


def series(capacity: int) -> str:
    """The same server with memory of so many tokens, a second a line."""
    lines = ["t,prompt_throughput,gen_throughput,running,kv_cache_pct"]
    for i in range(1, 30):
        seconds = 0.01 + 1e-6 * capacity * (10 + 3 * i) / 100
        lines.append(f"{i},0,{(20 + i % 7) / seconds:.6f},{20 + i % 7},{10 + 3 * i}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "iterations.csv"
    path.write_text(TABLE)
    return str(path)


def test_the_timing_goes_into_a_profile_and_its_trust_to_standard_error(
    run: Run, table: str, tmp_path: Path
) -> None:
    code, text, messages = run("calibrate", table)
    assert code == 0
    profile = parse_profile(text.encode(), "")
    timing = profile.model.timing
    assert (timing.d0, timing.d1, timing.d2, timing.d3) == (0.01, 1e-6, 1e-4, 0)
    assert profile.name.startswith("replica of iterations.csv")
    assert "Measured time against the fit:" in messages
    assert "12 samples, none left out" in messages
    assert "sha256" in text
    assert text.count("# Kept from llama-3.1-8b-rtx4090, the shipped default") == 3  # gpu, workload, classes
    assumed = Origin(Knowledge.ASSUMED, "another model's, llama-3.1-8b-rtx4090")
    measured = Origin(Knowledge.MEASURED, "iterations.csv")
    assert profile.model.provenance == Provenance(assumed, measured, assumed)
    assert profile.model.measured == MeasuredRange((0, 20_000), (0, 200), (1, 1))
    file = tmp_path / "out.toml"
    assert run("calibrate", table, "-o", str(file))[1] == ""
    assert file.read_text("utf-8") == text


def test_all_but_the_timing_is_kept_from_a_base(run: Run, table: str) -> None:
    code, text, _ = run("calibrate", table, "--base", "tool-calls-h100")
    _, base, _ = run("profiles", "tool-calls-h100")
    one, other = parse_profile(text.encode(), ""), parse_profile(base.encode(), "")
    assert code == 0
    assert one.name == other.name
    assert (one.model.replica, one.model.classes) == (other.model.replica, other.model.classes)
    assert one.model.timing.d0 == 0.01
    assert one.model.provenance.timing == Origin(Knowledge.MEASURED, "iterations.csv")
    assert one.model.provenance.gpu == other.model.provenance.gpu
    assert one.model.provenance.workload == other.model.provenance.workload


def test_usage_is_a_share_of_the_capacity_that_is_given(run: Run, tmp_path: Path) -> None:
    """A default capacity is never assumed."""
    file = tmp_path / "series.csv"
    file.write_text(series(41_408))
    code, text, messages = run("calibrate", str(file))
    assert (code, text) == (2, "")
    assert messages.endswith("a capacity that is not stated here; give --capacity, or a --base that has it\n")
    for given, d1 in (
        (["--capacity", "41408"], 1e-6),
        (["--capacity", "20704"], 2e-6),
        (["--base", "llama-3.1-8b-rtx4090"], 1e-6),
        (["--base", "llama-3.1-8b-rtx4090", "--capacity", "20704"], 2e-6),
    ):
        code, text, _ = run("calibrate", str(file), *given)
        timing = parse_profile(text.encode(), "").model.timing
        assert code == 0
        assert (timing.d0, timing.d1) == pytest.approx((0.01, d1), rel=1e-3)


def test_an_iteration_without_a_fixed_time_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "iterations.csv"
    file.write_text("kv_tokens,iteration_ms\n1000,1\n2000,2\n3000,3\n3000,3\n")
    code, text, messages = run("calibrate", str(file))
    assert (code, text) == (2, "")
    assert "no fixed time of an iteration (d0 = 0)" in messages.splitlines()[-1]


def test_a_file_of_several_replicas_needs_a_choice(run: Run, tmp_path: Path) -> None:
    header = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"
    rows = [
        f"llama,{gpu},{size},{batch},128,{20 + size * batch * 0.1 * factor},{20 + size * batch * 0.001},1\n"
        for gpu, factor in (("a100", 2), ("h100", 1))
        for size in (128, 512)
        for batch in (1, 2, 4)
    ]
    path = tmp_path / "model.csv"
    path.write_text(header + "".join(rows))
    code, text, messages = run("calibrate", str(path))
    assert (code, text) == (2, "")
    assert "2 replicas; choose one with --group" in messages
    code, text, messages = run("calibrate", str(path), "--format", "text")
    assert (code, messages) == (0, "")
    assert "llama, a100, TP1" in text
    assert "Held out" in text
    code, text, _ = run("calibrate", str(path), "--group", "llama, h100, TP1")
    assert code == 0
    assert parse_profile(text.encode(), "").model.timing.d2 == pytest.approx(1e-4, rel=0.02)
    assert run("calibrate", str(path), "--group", "llama")[0] == 2


@pytest.mark.parametrize("options", [(), ("--group", "llama")])
def test_groups_with_endless_names_do_not_fill_the_screen(
    run: Run, tmp_path: Path, options: tuple[str, ...]
) -> None:
    header = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"
    path = tmp_path / "model.csv"
    path.write_text(header + "".join(f"{i}{'x' * 5000},h100,128,1,128,20,20,1\n" for i in range(100)))
    code, _, messages = run("calibrate", str(path), *options)
    assert code == 2
    assert 200 < len(messages.splitlines()[-1]) < 2500
    assert messages.endswith(", …\n")


@pytest.mark.parametrize(
    "line",
    [
        f"Avg prompt throughput: {'1' * 5000} tokens/s, Avg generation throughput: 9.0 tokens/s, Running: 4 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 4.6%, Prefix cache hit rate: 0.0%",
        "GPU KV cache usage: 4..6%",
        f"vLLM API server version {'1' * 5000}.2",
        f"decode_log_interval={'1' * 5000}",
        f"Prefill batch. #new-token: {'1' * 5000}",
    ],
    ids=lambda line: line[:30],
)
def test_numbers_of_a_log_that_are_none_are_passed_over(run: Run, tmp_path: Path, line: str) -> None:
    path, log = tmp_path / "serve.log", Path(__file__).parents[2] / "docs/example/serve.log"
    path.write_text(f"{log.read_text()}INFO 03-02 10:00:00 [loggers.py:259] Engine 000: {line}\n")
    whole, found = (run("calibrate", str(one), "--capacity", "41408") for one in (log, path))
    assert (whole[0], found[0]) == (0, 0)
    assert (
        parse_profile(found[1].encode(), "").model.timing == parse_profile(whole[1].encode(), "").model.timing
    )


def test_markdown_has_the_plot_in_a_fence(run: Run, table: str) -> None:
    code, text, _ = run("calibrate", table, "--format", "markdown")
    assert code == 0
    assert text.count("```") == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "empty; a log, a series or a table of iterations is wanted"),
        ("hello\n", "no samples of iterations"),
        ("kv_tokens,iteration_ms\n1,x\n", ":2: iteration_ms: 'x'; must be a number"),
    ],
)
def test_what_cannot_be_fitted_exits_2(run: Run, table: str, rows: str, message: str) -> None:
    Path(table).write_text(rows)
    code, text, messages = run("calibrate", table)
    assert (code, text) == (2, "")
    assert message in messages.splitlines()[-1]
    assert run("calibrate", table + ".none")[0] == 2
    assert run("calibrate")[0] == 2
