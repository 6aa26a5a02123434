"""What cannot be done is refused in one line, before any work: the commands of `refusals.txt`."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Run
from every import check_every

CASES = Path(__file__).with_name("refusals.txt").read_text("utf-8")
LOG = "GPU KV cache size: 60,000 tokens\n"
FILES = {
    "WORDS": "hello\nworld\n",
    "EMPTY": "",
    "TRACE": "time,input,output\n0,100,20\n1,100,40\n2,300,5\n",
    "LOG": LOG,
    "OTHER": f"max_num_seqs=9\n{LOG}",
    "BOTH": "time,input,output,kv_tokens,iteration_ms\n1,2,3,4,5\n",
    "LONG": "time,input,output\n1,90000,3\n2,90000,3\n",
    "FREE": "kv_tokens,iteration_ms\n1000,1\n2000,2\n3000,3\n3000,3\n",
    "WRONG": "kv_tokens,iteration_ms\n1,x\n",
    "ONE": "time,input,output\n1,2,3\n",
    "METRICS": 'vllm:cache_config_info{block_size="16",num_gpu_blocks="2588"} 1\n'
    "# TYPE vllm:request_prompt_tokens histogram\n"
    f'vllm:request_prompt_tokens_bucket{{le="{"[" * 5000}"}} 5\nvllm:request_prompt_tokens_bucket{{le="+Inf"}} 5\n'
    "vllm:request_prompt_tokens_count 5\nvllm:request_prompt_tokens_sum 500\n",
    "TABLE": "a" * 200_000 + "\n1\n",
    "TWICE": '{"schema_version": 2, "load": {"sustainable_rps": 1, "sustainable_rps": 54}}',
    "replayed.toml": """schema = 1
name = "replayed"
gpu = { memory_tokens = 6000 }
timing = { d0 = "20 ms" }
classes = [{ name = "a", input = 300, decode = 20, rate = 2.0 }]
workload = { trace = "LONG" }
""",
    "two.toml": """schema = 1
name = "two classes"
gpu = { memory_tokens = 1000, prefill = "disaggregated" }
timing = { d0 = 0.5, d1 = 0.001 }
classes = [
  { name = "tool calls", input = 9, decode = 3, rate = 1.0 },
  { name = "b.c", input = 20, decode = { 5 = 1, 7 = 2 }, rate = 0.5 },
]
""",
}


def cases() -> Iterator[tuple[str, str]]:
    """Pairs of a command and some of its refusal."""
    before = ""
    for line in CASES.splitlines():
        if heading := re.fullmatch(r"\[(.*)\]", line):
            before = heading[1]
        elif line and not line.startswith("#"):
            words, says = re.split(" *->  ?", line, maxsplit=1)
            yield f"{before} {words}", says


def test_each_is_one_line_and_leaves_nothing_behind(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def check(case: tuple[str, str]) -> None:
        command, says = case
        code, out, messages = run(*shlex.split(command))
        *notes, error = messages.splitlines()
        assert code == 2
        assert not out or (command.startswith("check ") and "PASS" not in out)
        assert error.startswith("error: ")
        assert says in error
        assert error.isprintable()
        assert len(error) < 1000
        assert not any(note.startswith("error") for note in notes), notes
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == FILES

    check_every(cases(), check)


def test_long_values_are_shortened_in_messages(run: Run) -> None:
    """A word, words that are quoted, the name of a file with blanks: 150 characters or so, and the last 50."""
    for words in (
        ("analyze", "x" * 5000),
        ("analyze", "a b " * 1500),
        ("analyze", "-o", "a b " * 1500),
        ("analyze", f"--section={'a b ' * 1500}"),
        ("simulate", "--set", "a b " * 1500),
        ("simulate", "--policy", f"vllm,{'y' * 3000}"),
        ("models", "--format", "x y " * 1500),
    ):
        code, out, error = run(*words)
        assert (code, out) == (2, "")
        assert len(error) < 800, words
        assert "…" in error or "..." in error
