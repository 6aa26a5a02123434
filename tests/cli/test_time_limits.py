"""An answer comes within seconds, in less than a gigabyte, whatever a profile says."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import ENVIRONMENT, Run
from measure import used
from tiers import at_night

SECONDS, MEBIBYTES = 10, 1000
HEAD = (
    'schema = 1\nname = "much"\ngpu = {{ memory_tokens = {}, {} }}\ntiming = {{ d0 = 0.01, d1 = 1e-7, {} }}\n'
)
CLASS = '[[classes]]\nname = "{}"\ninput = {}\ndecode = {}\nrate = {}\n{}\n'
REUSE = "reuse = { tokens = 0.8, share = 0.8, gap = { law = 'lognormal', median = 200, sigma = 0.2 } }"
TALK = (
    "[[sessions]]\nname = '{}'\nfirst = {{ uniform = [1, 100_000] }}\nuser = {{ uniform = [10, 90_000] }}\n"
    "decode = {{ geometric = 20_000 }}\nturns = {{ geometric = 20 }}\nrate = 1e-4\n"
    "think = {{ law = 'lognormal', median = 100, sigma = 2 }}\n"
)
LAYER = "{ kind = 'full', layers = 8, bytes = 1024 }"
WINDOW = "{ kind = 'window', layers = 24, bytes = 1024, window = 4096 }"
DRAFTS = "speculative = {{ tokens = {0}, accepted = [{1}], draft_time = 1e-4, verify_time = 1e-5 }}\n"
Random = random.Random


def head(memory: int = 10**9, gpu: str = "prefix_caching = false", timing: str = "d2 = 1e-5") -> str:
    return HEAD.format(memory, gpu, timing)


def drafted(*accepted: float) -> str:
    head_, timing = head().split("timing")
    return head_ + DRAFTS.format(len(accepted), ", ".join(map(str, accepted))) + "timing" + timing


def layered() -> str:
    return head().replace("memory_tokens = 1000000000", f"kv_blocks = 1000000000, kv = [{LAYER}, {WINDOW}]")


def many(count: int, decode: Callable[[Random], object], more: str = "", rate: float = 1e-4) -> str:
    rng = Random(5)
    classes = ((i, rng.randint(1, 9999), decode(rng), rate, more) for i in range(count))
    return "".join(CLASS.format(*one) for one in classes)


def even(rng: Random, longest: int) -> str:
    lengths = sorted(rng.sample(range(1, longest // 2), 20))
    return "{ " + ", ".join(f"{2 * length} = 1" for length in lengths) + " }"


PROFILES = {
    "a thousand classes": lambda: head() + many(1000, lambda rng: rng.randint(1, 2000)),
    "a hundred classes of even lengths": lambda: head() + many(100, lambda rng: even(rng, 130_000)),
    "a thousand of a million tokens": lambda: head() + many(1000, lambda rng: rng.randint(900_000, 10**6)),
    "even lengths to a million": lambda: head() + many(256, lambda rng: even(rng, 10**6)),
    "all lengths to 131,072": lambda: head() + many(1, lambda rng: "{ uniform = [1, 131_072] }"),
    "odd pages of long lengths": lambda: (
        head(10**11, "block_tokens = 997, prefix_caching = false") + many(70, lambda rng: "{ geometric = 20_000 }")
    ),
    "a knee and many that come again": lambda: (
        head(10**10, "max_num_batched_tokens = 90_000", "d5 = 1e-5, knee_tokens = 50_000")
        + many(32, lambda rng: rng.randint(10, 3000), REUSE, 0.01)
    ),
    "sessions": lambda: head(10**9, "block_tokens = 16") + "".join(TALK.format(i) for i in range(32)),
}  # fmt: skip
PROFILES |= {
    "a long output with drafts": lambda: drafted(0.5) + many(1, lambda rng: 131_072),
    "many lengths with drafts": lambda: (
        drafted(0.75, 0.6, 0.4) + many(1, lambda rng: "{ uniform = [1, 3900] }")
    ),
    "windows of long outputs": lambda: layered() + many(15, lambda rng: 131_072),
}
PLACED = {
    "thirty-nine short classes and a long one": lambda: (
        head() + many(39, lambda rng: rng.randint(1, 200)) + CLASS.format("long", 9, 113_905, 1e-6, "")
    ),
}  # fmt: skip
QUICK = ("a thousand classes", "a hundred classes of even lengths")


@pytest.mark.parametrize("name", [*QUICK, *at_night(*(name for name in PROFILES if name not in QUICK))])
def test_an_answer_takes_seconds(name: str, tmp_path: Path) -> None:
    takes_seconds(PROFILES[name](), tmp_path, "analyze")


@pytest.mark.nightly
@pytest.mark.parametrize("name", PLACED)
def test_placements_are_compared_in_seconds(name: str, tmp_path: Path) -> None:
    takes_seconds(PLACED[name](), tmp_path, "mix", "--replicas", "2", "--no-simulate")


@pytest.mark.nightly
def test_a_fleet_of_very_long_outputs_is_sized_in_seconds(tmp_path: Path) -> None:
    """Thousands of replicas, of whose sixty-four a plain Python step ran each for minutes."""
    profile = (
        head(25_000_000, "max_num_seqs = 12")
        + CLASS.format("long", 11, "{ 2442 = 0.01, 145391 = 11 }", 0.06, "")
        + "[[sessions]]\nname = 'talk'\nshared = 2423\nfirst = 5\nuser = 1\ndecode = 14\nusers = 18\n"
        "turns = { geometric = 35 }\nthink = { law = 'lognormal', median = 2.8, sigma = 0.2 }\n"
    )
    few = ("--requests", "60", "--seeds", "2")
    takes_seconds(profile, tmp_path, "size", "--rate", "139", "--routing", "random", *few)


def test_pages_of_a_million_tokens_take_no_memory_on_each_replica(tmp_path: Path) -> None:
    profile = head(8_000_000, "block_tokens = 1_000_000") + CLASS.format("a", 445, 11, 35, "")
    fleet = "[fleet]\nreplicas = 98\n"
    takes_seconds(profile + fleet, tmp_path, "simulate", "--policy", "greedy,vllm", "--requests", "60")


def test_prompts_of_more_than_ten_thousand_parts_are_not_simulated(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "parts.toml"
    call = ("simulate", str(path), "--policy", "vllm", "--requests", "3")
    for tokens, code in ((20_000, 0), (20_001, 2)):
        path.write_text(head(10**6, "max_num_batched_tokens = 2") + CLASS.format("a", tokens, 3, 1e-9, ""))
        found = run(*call)
        assert found[0] == code
    assert "a prompt has 20,001 tokens, and more than 10,000 times the budget is not simulated" in found[2]


def takes_seconds(profile: str, folder: Path, command: str, *options: str) -> None:
    path = folder / "much.toml"
    path.write_text(profile)
    called = [sys.executable, "-m", "kvplan", command, str(path), *options, "--format", "json"]
    took = used(called, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    assert (took.code, took.err) == (0, "")
    assert took.seconds < SECONDS
    assert took.mib < MEBIBYTES


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (drafted(0.5) + many(1, lambda rng: 131_073), "classes: outputs of up to 131073 tokens"),
        (drafted(0.5, 0.4, 0.3) + many(9, lambda rng: 9000), "classes: outputs of up to 81000 tokens"),
        (layered() + many(1, lambda rng: 131_073), "classes: outputs of up to 131073 tokens, the longest"),
        (layered() + many(20, lambda rng: 131_072), "classes: 20 prompts of up to 131072 tokens"),
        (
            head().replace(
                "memory_tokens = 1000000000",
                "kv_blocks = 9, kv = [" + 65 * f"{LAYER}, " + "]",
            ),
            "gpu.kv: must have",
        ),
    ],
)
def test_more_than_there_is_time_for_is_refused(run: Run, tmp_path: Path, text: str, refused: str) -> None:
    path = tmp_path / "more.toml"
    path.write_text(text)
    code, _, error = run("analyze", str(path))
    assert code == 2
    assert refused in error
