"""`kvplan fit` as a command."""

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import Run

from kvplan.profile.reading import parse_profile

ROWS = "time,input,output\n0,100,20\n1,100,40\n2,300,5\n4,300,0\n5,300,5\n"
DEFAULT = "note: no --base given; what is not measured is that of the shipped llama-3.1-8b-rtx4090\n"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(ROWS)
    return str(path)


def test_fit_writes_a_profile_that_analyze_reads(run: Run, trace: str, tmp_path: Path) -> None:
    code, text, messages = run("fit", trace)
    assert code == 0
    assert messages == DEFAULT + "note: 1 of 5 rows has no tokens and is left out\n"
    kept = "# Kept from llama-3.1-8b-rtx4090, the shipped default, for want of a --base: not measured.\n"
    assert text.count(kept) == 2
    assert text.count(f"{kept}[gpu]\n") == text.count(f"{kept}[timing]\n") == 1
    profile = parse_profile(text.encode(), "")
    assert [(c.input_tokens, c.decode_tokens) for c in profile.model.classes] == [
        (100, (20, 40)),
        (300, (5,)),
    ]
    assert [c.rate_rps for c in profile.model.classes] == [0.3, 0.3]
    file = tmp_path / "fitted.toml"
    assert run("fit", trace, "-o", str(file))[:2] == (0, "")
    assert file.read_text("utf-8") == text
    assert run("analyze", str(file))[0] == 0


def test_fit_keeps_the_replica_of_a_base_profile_or_of_standard_input(
    run: Run, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text, messages = run("fit", trace, "--base", "tool-calls-h100")
    assert (code, messages) == (0, "note: 1 of 5 rows has no tokens and is left out\n")
    _, base, _ = run("profiles", "tool-calls-h100")
    one, other = parse_profile(text.encode(), ""), parse_profile(base.encode(), "")
    assert (one.model.replica, one.model.timing) == (other.model.replica, other.model.timing)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(base.encode())))
    code, piped, _ = run("fit", trace, "--base", "-")
    assert code == 0
    assert "kept from <stdin>" in piped
    assert parse_profile(piped.encode(), "").model == one.model


def test_compact_classes_say_what_they_distort(run: Run, trace: str) -> None:
    code, text, messages = run("fit", trace, "--classes", "2")
    assert code == 0
    profile = parse_profile(text.encode(), "")
    assert [(c.input_tokens, c.decode_tokens) for c in profile.model.classes] == [(100, (30,)), (300, (5,))]
    assert "1 - ρ is " in messages
    assert "1 - ρ is " in " ".join(text.replace("# ", "").split("\n"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "empty; a trace has a row for every request"),
        ("time,input,output\n", "no requests with tokens; 0 rows"),
        ("time,input,output\n1,2,3\n", "1 request; a rate needs arrivals at two times at least"),
        ("time,input,output\n1,2,3\n2,x,3\n3,4,5\n", "input: 'x'; must be a whole number of tokens"),
        ("time,input,output\n1,90000,3\n2,90000,3\n", "does not go with the rest of llama-3.1-8b-rtx4090"),
    ],
)
def test_what_cannot_be_fitted_exits_2(run: Run, trace: str, rows: str, message: str) -> None:
    Path(trace).write_text(rows)
    code, text, messages = run("fit", trace)
    assert (code, text) == (2, "")
    assert messages.startswith(DEFAULT + f"error: {trace}")
    assert message in messages
    assert messages.count("\n") == 2


def test_bad_usage_exits_2(run: Run, trace: str) -> None:
    assert run("fit")[0] == 2
    assert run("fit", trace, "--classes", "0")[0] == 2
    assert run("fit", trace, "--base", "no-such-profile")[0] == 2
    assert run("fit", trace + ".none")[0] == 2


def test_hashes_become_a_hit_curve_and_what_classes_would_have_in_its_place(run: Run, tmp_path: Path) -> None:
    """Six chats of two turns, 30 s apart: the second repeats the 64 tokens of the first; nothing else is shared."""
    rows = []
    for chat in range(6):
        first = [10 * chat + block for block in range(4)]
        for turn, hashes in enumerate((first, [*first, 10 * chat + 7])):
            name = {"chat_id": 2 * chat + turn, "parent_chat_id": 2 * chat if turn else -1, "turn": turn + 1}
            lengths = {"input_length": 16 * len(hashes), "output_length": 17}
            rows.append({**name, "timestamp": 50.0 * chat + 30.0 * turn, **lengths, "hash_ids": hashes})
    trace = tmp_path / "chats.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, text, messages = run("fit", str(trace), "--base", "tool-calls-h100")
    assert code == 0
    found = 6 * 64 / (6 * (64 + 80))
    assert f"note: a prefix cache finds {100 * found:.3g}% of the prompt tokens in" in messages
    profile = parse_profile(text.encode(), "")
    assert profile.model.hit_curve[-1] == (64, round(found, 4))
    # again, with what the comment says
    lines = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
    without = re.sub(r"\[prefix\]\nhit_curve = \[.*?\n\]\n", "", text, flags=re.DOTALL)
    other = parse_profile(without.replace("[[classes]]", "\n".join(["[[classes]]", *lines])).encode(), "")
    assert other.model.hit_curve == ()
    for c in other.model.classes:
        assert c.reuse is not None
        assert (c.reuse.share, c.reuse.from_arrival) == (0.5, True)
        assert set(c.reuse.gap.values_s) == {30.0}  # type: ignore[union-attr]
    fitted = tmp_path / "fitted.toml"
    fitted.write_text(text)
    assert run("analyze", str(fitted))[0] == 0
