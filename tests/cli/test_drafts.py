"""What an engine says of its drafts, and what they cost, goes into a profile and from there to an engine again."""

import math
import random
from pathlib import Path

import pytest
import tomli
from command import Run
from every import every

from kvplan.profile.reading import parse_profile
from kvplan.profile.schema import Document

PROFILE = """\
schema = 1
name = "drafting"
gpu = { memory_tokens = 40_000 }
timing = { d0 = "10 ms" }
classes = [{ name = "a", input = 10, decode = 20, rate = 1 }]

[speculative]
tokens = 3
accepted = [0.7, 0.5, 0.3]
draft_time = "1 ms"
verify_time = "10 us"
lookahead = false
"""
START = "INFO 01-30 03:19:14 [kv_cache_utils.py:395] GPU KV cache size: 50,000 tokens\n"


def spoken(drafted: int, *rates: str) -> str:
    """vLLM's line since the last one, as 0.11 writes it."""
    return (
        "INFO 01-30 03:20:14 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.10, Accepted throughput: "
        f"1.00 tokens/s, Drafted throughput: 2.00 tokens/s, Accepted: 1 tokens, Drafted: {drafted} tokens, "
        f"Per-position acceptance rate: {', '.join(rates)}, Avg Draft acceptance rate: 55.0%\n"
    )


@pytest.fixture
def base(tmp_path: Path) -> str:
    path = tmp_path / "base.toml"
    path.write_text(PROFILE)
    return str(path)


def test_acceptance_in_a_log_is_weighed_by_what_was_drafted(run: Run, base: str, tmp_path: Path) -> None:
    """(200·.7 + 600·.6)/800 = .625, (200·.4 + 600·.5)/800 = .475; another number of drafts before does not count."""
    log = tmp_path / "serve.log"
    lines = spoken(900, "0.100"), spoken(200, "0.700", "0.400"), spoken(600, "0.600", "0.500")
    log.write_text(START + "".join(lines))
    code, text, messages = run("import", str(log), "--base", base)
    assert code == 0
    assert "of 2 drafts in an iteration 62.5%, 47.5% were accepted" in messages
    table = tomli.loads(text)["speculative"]
    assert table == {
        "tokens": 2,
        "accepted": [0.625, 0.475],
        "draft_time": "1 ms",
        "verify_time": "10 us",
        "lookahead": False,
    }
    code, text, messages = run("import", str(log))
    assert (code, "speculative" in tomli.loads(text)) == (0, False)
    assert "go into a --base with [speculative]" in messages


def counters(drafts: int, *accepted: int) -> str:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    each = "".join(
        f'{name}{{model_name="m",engine="{engine}",position="{at}"}} {count}\n'
        for engine in "01"
        for at, count in enumerate(accepted)
    )
    times = "".join(
        f'vllm:spec_decode_num_drafts_total{{model_name="m",engine="{engine}"}} {drafts}\n' for engine in "01"
    )
    capacity = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="2588",model_name="m",engine="0"} 1\n'
    return capacity + times + each


def test_acceptance_in_metrics_is_that_between_two_snapshots(run: Run, base: str, tmp_path: Path) -> None:
    """Of 1,000 drafts at each of two engines: 750, 500 and 500 in 12 positions, sorted by number and not by name."""
    before, after = tmp_path / "before.prom", tmp_path / "after.prom"
    before.write_text(counters(500, *[100] * 12))
    after.write_text(counters(1500, 850, *[600] * 11))
    given = ("import", str(after), "--since", str(before), "--interval", "10 s", "--base", base)
    code, text, _ = run(*given)
    assert code == 0
    assert tomli.loads(text)["speculative"]["accepted"] == [0.75, *[0.5] * 11]
    after.write_text(counters(1500, 850).replace('position="0"', 'position="first"'))
    before.write_text(counters(0))
    code, _, error = run(*given)
    assert (code, "position='first'; must be a whole number" in error) == (2, True)


RNG = random.Random(2)
COSTS = {"overhead": 1.5e-3, "draft_time": 0.8e-3, "verify_time": 12e-6}
ACCEPTED = (0.8, 0.6, 0.45, 0.4)


def measured(*, noise: float = 0.0, batches: tuple[int, ...] = (1, 8, 64)) -> str:
    """Runs of an engine with these costs, whose plain iterations take 9 ms and 20 us a request."""
    rows = ["drafts,sequences,mean_acceptance_length,tpot_ms"]
    for sequences in batches:
        plain = 9e-3 + 20e-6 * sequences
        rows.append(f"0,{sequences},1,{1e3 * plain}")
        for k in (1, 2, 4):
            emitted = 1 + math.fsum(ACCEPTED[:k])
            more = COSTS["overhead"] + k * COSTS["draft_time"] + k * sequences * COSTS["verify_time"]
            between = 1e3 * (plain + more) / emitted * RNG.uniform(1 - noise, 1 + noise)
            rows.append(f"{k},{sequences},{emitted},{between}")
    return "\n".join(rows) + "\n"


def test_costs_come_from_runs_with_different_numbers_of_drafts(run: Run, base: str, tmp_path: Path) -> None:
    table = tmp_path / "drafts.csv"
    table.write_text(measured())
    code, text, messages = run("import", str(table), "--base", base)
    assert code == 0, messages
    drafts = parse_profile(text.encode(), "").model.drafts
    found = {"overhead": drafts.overhead_s, "draft_time": drafts.draft_s, "verify_time": drafts.verify_s}
    assert found == pytest.approx(COSTS, rel=1e-3)
    assert drafts.accepted == (0.8, 0.6, 0.425, 0.425)  # the third and fourth were only run together
    assert (drafts.tokens, drafts.lookahead) == (4, False)
    assert tomli.loads(text)["timing"] == {"d0": "10 ms"}


@every(
    ("rows", "said"),
    [
        ("2,3.5,4\n0,1,7", "2: mean_acceptance_length: 3.5; must be from 1 to 3, with 2 drafts"),
        ("1.5,2,4\n0,1,7", "2: drafts: 1.5; must be a whole number, at most 100"),
        ("2,2,0\n0,1,7", "2: times and sequences must be more than 0"),
        ("2,2,x\n0,1,7", "2: tpot_ms: 'x'; must be a number"),
        ("2,2,4\n", "no run without drafts of 1 requests at a time"),
        ("0,1,7\n", "there are: none"),
    ],
)
def test_runs_that_cannot_be_are_refused_in_a_line(run: Run, tmp_path: Path, rows: str, said: str) -> None:
    table = tmp_path / "drafts.csv"
    table.write_text(f"drafts,mean_acceptance_length,tpot_ms\n{rows}\n")
    code, out, error = run("import", str(table))
    assert (code, out) == (2, "")
    assert said in error.splitlines()[-1]


@pytest.mark.usefixtures("brief")
def test_the_number_of_drafts_goes_to_the_engine(run: Run, base: str) -> None:
    code, text, _ = run("emit", "--target", "vllm", base)
    assert code == 0
    assert "--speculative-config '{\"num_speculative_tokens\": 3}'" in " ".join(
        text.replace("\\\n", " ").split()
    )
    for engine in ("sglang", "trtllm"):
        code, _, error = run("emit", "--target", engine, base)
        assert (code, f"--target {engine}: its scheduler is not simulated beside drafts" in error) == (
            2,
            True,
        )


def test_what_a_base_says_of_drafts_aims_and_costs_is_kept(run: Run, base: str, tmp_path: Path) -> None:
    """Every table of a profile: none is lost when another one is measured."""
    whole = tmp_path / "whole.toml"
    more = '\n[slo]\nttft_s.p95 = "2 s"\n\n[cost]\ngpu_hour = 2.5\n\n[gate]\nrequire = ["load.headroom >= 0"]\n[plan]\n'
    whole.write_text(PROFILE + more + "delta = 0.05\n")
    log = tmp_path / "serve.log"
    log.write_text(START)
    code, text, messages = run("import", str(log), "--base", str(whole))
    assert code == 0, messages
    before, after = tomli.loads(whole.read_text()), tomli.loads(text)
    tables = {name: before[name] for name in Document.model_fields if name in before}
    assert {"speculative", "slo", "cost", "gate", "plan", "timing", "classes"} <= tables.keys()
    assert {name: after[name] for name in tables if name not in ("gpu", "name")} == {
        name: table for name, table in tables.items() if name not in ("gpu", "name")
    }
