"""Admission by the first chunk: a prompt begins once its first part fits, and gives way when the next does not."""

import numpy as np
import pytest
from small_runs import Case, agree, run

from kvplan.model import Replica, Timing
from kvplan.simulation.requests import Requests

WHOLE_PROMPT, FIRST_CHUNK = {"admission": (0.0,)}, {"admission": (1.0,)}


@pytest.mark.parametrize(
    ("policy", "parameters", "evictions", "recomputed"),
    [("vllm", WHOLE_PROMPT, 0, 0), ("vllm", FIRST_CHUNK, 2, 3 + 3), ("trtllm-max-utilization", {}, 2, 6 + 3)],
)
def test_a_prompt_gives_way_as_often_as_its_next_part_does_not_fit(
    policy: str, parameters: dict[str, tuple[float, ...]], evictions: int, recomputed: int
) -> None:
    """A prompt of 4 that generates 6, and one of 8 behind it; 4 tokens an iteration, blocks of 1: 11 usable in vLLM.

    The first holds 4 … 9 tokens in iterations 1 … 6, and leaves 3 of the budget to the other. In vLLM the other has 3
    tokens in iterations 2 and 4, whose next part would come to 12 and 14 with the first. With all 12 blocks it has 3
    and 6 in iterations 2 and 3, gives way in 4, has 3 in 5, and gives way in 6. Then it is alone, 4 and 4.
    """
    two = Requests(np.zeros(2), np.array([4, 8]), np.array([6, 1]), np.zeros(2, dtype=np.int64))
    replica = Replica(12, max_num_batched_tokens=4)
    outcome = run(policy, Case(two, Timing(1.0), replica, parameters))
    assert outcome.evictions.tolist() == [0, evictions]
    assert outcome.recomputed_tokens == recomputed
    assert outcome.finish_s.tolist() == [6.0, 8.0]


def test_a_watermark_is_kept_free_beside_the_first_part() -> None:
    """11 usable blocks, of which 2 are kept free: a part of 3 fits beside 5 tokens that run, not beside 7."""
    two = Requests(np.zeros(2), np.array([4, 8]), np.array([6, 1]), np.zeros(2, dtype=np.int64))
    kept = FIRST_CHUNK | {"watermark": (0.2,)}
    case = Case(two, Timing(1.0), Replica(12, max_num_batched_tokens=4), kept)
    outcome = run("vllm", case)
    assert outcome.evictions.tolist() == [0, 1]
    assert outcome.recomputed_tokens == 3
    agree("vllm", case, outcome)
