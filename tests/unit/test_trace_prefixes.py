"""What traces say of prompts that begin alike: hashes of blocks, chats and sessions."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli

from kvplan.ingest.trace.prefixes import Prefixes
from kvplan.ingest.trace.text import prefix_part
from kvplan.ingest.trace.traffic import measure
from kvplan.model import Origin

SHARED, TAIL, TURN = 6, 3, 4  # blocks of a system prompt, of a first question, of a turn


def prefixes(tmp_path: Path, content: str) -> Prefixes | None:
    path = tmp_path / "trace"
    path.write_text(content)
    return measure(path).prefixes


def known(tmp_path: Path, content: str) -> Prefixes:
    found = prefixes(tmp_path, content)
    assert found is not None
    return found


def mooncake(prompts: Iterable[tuple[int, int, int, Sequence[Any]]]) -> str:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in prompts)


def qwen(rows: Iterable[dict[str, Any]]) -> str:
    """As the data set is described: chats and their parents, seconds, blocks of 16 tokens."""
    return "".join(json.dumps({"type": "text", **row}) + "\n" for row in rows)


def test_mooncake_blocks_are_of_512_tokens_and_parts_of_one_are_nobody_elses(tmp_path: Path) -> None:
    """The second prompt has 1,024 tokens: of its two blocks the last is never looked up, being the last token's."""
    rows = [(0, 1300, 101, [7, 8, 9]), (1000, 1024, 1, [7, 8]), (3000, 1300, 1, [7, 8, 9])]
    found = known(tmp_path, mooncake(rows))
    assert (found.hashed, found.block_tokens, found.requests, found.complete) == (True, 512, 3, True)
    prompt_tokens = 1300 + 1024 + 1300
    # the first left 1,400 tokens: the two blocks, used last, and 376; the third finds both of them
    assert found.curve == ((512, round(1024 / prompt_tokens, 4)), (1024, round(1536 / prompt_tokens, 4)))


def test_hashes_of_blocks_mean_the_same_only_after_the_same(tmp_path: Path) -> None:
    """Qwen-Bailian hashes each block for itself: 5 after 1 is another block than 5 after 2."""
    row = {"input_length": 40, "output_length": 1}
    rows = [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "turn": 1, "hash_ids": [1, 5, 3], **row},
        {"chat_id": 2, "parent_chat_id": -1, "timestamp": 1.0, "turn": 1, "hash_ids": [2, 5, 4], **row},
    ]
    found = known(tmp_path, qwen(rows))
    assert (found.block_tokens, found.curve, found.reuse) == (16, (), None)


@pytest.fixture
def chats() -> list[dict[str, Any]]:
    """200 chats of 3 turns with one system prompt, or each fifth with another; 60 s from turn to turn."""
    rows = []
    fresh = iter(range(100, 10**6))
    for chat in range(200):
        hashes = [10 * (chat % 5 == 0) + block for block in range(SHARED)]
        for turn in range(3):
            hashes = [*hashes, *(next(fresh) for _ in range(TURN if turn else TAIL))]
            rows.append(
                {
                    "chat_id": 3 * chat + turn,
                    "parent_chat_id": 3 * chat + turn - 1 if turn else -1,
                    "timestamp": 7.0 * chat + 60.0 * turn,
                    "input_length": 16 * len(hashes) + 5,
                    "output_length": 28,
                    "turn": turn + 1,
                    "hash_ids": [*hashes, next(fresh)],
                }
            )
    return rows


def test_shared_prompts_and_turns_are_told_apart(tmp_path: Path, chats: list[dict[str, Any]]) -> None:
    found = known(tmp_path, qwen(chats))
    assert [(one.tokens, one.weight) for one in found.shared] == [(16 * SHARED, 0.8), (16 * SHARED, 0.2)]
    assert found.reuse is not None
    assert found.reuse.from_arrival
    assert found.reuse.share == pytest.approx(2 / 3, abs=5e-4)  # no turn follows the third
    assert set(found.reuse.gap.values_s) == {60.0}  # type: ignore[union-attr]
    firsts, seconds = SHARED + TAIL, SHARED + TAIL + TURN
    left = 2 * (5 + 28 - 1) + 16 * (firsts + seconds)
    assert found.reuse.tokens == pytest.approx(16 * (firsts + seconds) / left, abs=5e-4)
    tokens = sum(row["input_length"] for row in chats)
    hits = 16 * (200 * (firsts + seconds) + 198 * SHARED)  # the first of each kind computes the system prompt
    assert found.reusable == pytest.approx(hits / tokens, abs=5e-5)


@pytest.mark.parametrize("name", ["Session ID", "conversation_id"])
def test_sessions_without_hashes_repeat_what_came_before_where_prompts_are_long_enough(
    tmp_path: Path, name: str
) -> None:
    """BurstGPT's columns. The third turn is too short to repeat the second; a blank session is nobody's."""
    header = f"Timestamp,{name},Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    turns = [
        (0, "u-1", 100, 29),
        (10, "", 500, 1),
        (40, "u-1", 200, 10),
        (90, "u-1", 150, 10),
        (91, "", 500, 1),
    ]
    rows = (f"{t},{who},1,GPT-4,{s},{d},{s + d},Conversation log\n" for t, who, s, d in turns)
    found = known(tmp_path, header + "".join(rows))
    assert (found.hashed, found.requests, found.shared) == (False, 5, ())
    # 128 tokens of the first turn in whole pages, its answer's included; 500 of another between
    assert found.curve[-1] == (128 + 500, round(128 / 1450, 4))
    assert found.reuse is not None
    assert (found.reuse.tokens, found.reuse.share) == (1.0, 0.2)
    assert set(found.reuse.gap.values_s) == {40.0}  # type: ignore[union-attr]


def test_chats_without_hashes_go_on_from_their_parents(tmp_path: Path) -> None:
    row = {"input_length": 64, "output_length": 17}
    rows = [
        {"chat_id": 5, "parent_chat_id": -1, "timestamp": 0.0, **row},
        {"chat_id": 6, "parent_chat_id": -1, "timestamp": 1.0, **row},
        {"chat_id": 9, "parent_chat_id": 5, "timestamp": 4.0, "input_length": 100, "output_length": 1},
    ]
    found = known(tmp_path, qwen(rows))
    # 80 tokens of the first, its answer's included, and as many of the second between
    assert found.curve[-1] == (80 + 80, round(80 / 228, 4))


def test_the_table_is_the_curve_and_the_comment_the_classes(
    tmp_path: Path, chats: list[dict[str, Any]]
) -> None:
    found = known(tmp_path, qwen(chats))
    part = prefix_part(found, Origin())
    assert part.values == {"hit_curve": [list(point) for point in found.curve]}
    table = tomli.loads("\n".join(line.strip() for line in part.about if line.startswith("  ")))
    assert [list(one) for one in table["shared"]] == [["tokens", "weight"]] * 2
    assert sum(one["weight"] for one in table["shared"]) <= 1
    assert table["reuse"]["from"] == "arrival"
    assert table["reuse"]["gap"] == {"law": "quantiles", "values": ["60 s"] * 20}
    assert "hash" in part.about[0]
