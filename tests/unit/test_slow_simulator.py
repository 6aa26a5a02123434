"""The slow simulator against traces worked out by hand; what it promises is proved of the fast one beside it."""

from collections import Counter

import numpy as np
import pytest
from slow_simulator import SlowResult, simulate

from kvplan.model import Prefill, Replica, Timing
from kvplan.simulation.requests import Requests

SLOT = Timing(d0=1.0)


def requests(*rows: tuple[float, int, int], classes: list[int] | None = None) -> Requests:
    """Rows of arrival, input length, decode length."""
    arrival, inputs, decode = zip(*rows, strict=True)
    return Requests(
        np.array(arrival, dtype=np.float64),
        np.array(inputs),
        np.array(decode),
        np.array(classes or [0] * len(rows)),
    )


def ready_made(memory_tokens: int) -> Replica:
    return Replica(memory_tokens, prefill=Prefill.DISAGGREGATED)


def stage_counts(result: SlowResult, stages: int) -> list[tuple[int, ...]]:
    """How many requests ran each stage, iteration by iteration."""
    return [tuple(Counter(k for _, k in batch)[k] for k in range(stages)) for batch in result.batches]


# -- greedy and its cap -----------------------------------------------------------------------------------------


def test_greedy_reproduces_the_trace_of_sic_example_1() -> None:
    """s=2, d=3, M=24: (1,1,2), five arrive, (5,1,1), one is evicted and one admitted, (1,4,1)."""
    arrivals = [0, 0, 1, 2, 3, 3, 3, 3, 3]
    result = simulate("greedy", requests(*((t, 2, 3) for t in arrivals)), SLOT, ready_made(24), {})
    assert stage_counts(result, 3)[2:5] == [(1, 1, 2), (5, 1, 1), (1, 4, 1)]
    assert result.kv_per_iteration[2:5] == [17, 24, 24]
    assert result.evicted_per_iteration[2:5] == [0, 0, 1]
    assert result.waiting_per_iteration[2:5] == [0, 0, 0]
    assert result.evictions == [0] * 8 + [1]


def test_a_readmitted_request_recomputes_a_prompt_that_came_ready_made() -> None:
    """Weights 3, 4 in M=6: the second is evicted with 3 tokens and begins again when the first has left."""
    timing = Timing(d0=1.0, d2=0.1)
    result = simulate("greedy", requests((0, 2, 2), (0, 2, 2)), timing, ready_made(6), {})
    assert result.batches == [[(0, 0), (1, 0)], [(0, 1)], [(1, 0)], [(1, 1)]]
    assert result.first_token_s == [1.0, 1.0]
    assert result.finish_s == pytest.approx([2.0, 4.2])
    assert result.recomputed_tokens == 3
    assert result.computed_tokens == 5 + 2
    assert result.waiting_per_iteration == [0, 1, 0, 0]


def test_an_inline_prefill_is_an_iteration_that_emits_nothing() -> None:
    """Weights 2, 3, 4 over three iterations; blocks of 4 hold 4 tokens throughout."""
    timing = Timing(d0=1.0, d1=0.01, d2=0.1, d3=0.5)
    replica = Replica(8, block_tokens=4, prefill=Prefill.INLINE)
    result = simulate("greedy", requests((0.25, 2, 2)), timing, replica, {})
    ends = np.cumsum([0.25 + 1 + 0.02 + 0.2 + 0.5, 1 + 0.03 + 0.5, 1 + 0.04 + 0.5])
    assert result.first_token_s == pytest.approx([ends[1]])
    assert result.finish_s == pytest.approx([ends[2]])
    assert result.kv_per_iteration == [4, 4, 4]
    assert result.computed_tokens == 2 + 2


def test_a_fused_prefill_emits_the_first_token() -> None:
    result = simulate("greedy", requests((0, 2, 2)), SLOT, Replica(8), {})
    assert (result.first_token_s, result.finish_s) == ([1.0], [2.0])
    assert result.kv_per_iteration == [3, 4]


def test_pages_are_rounded_up_at_admission() -> None:
    """Weight 3 takes a block of 4: two fit in 11 tokens, though three of them weigh 9."""
    result = simulate(
        "greedy", requests((0, 2, 1), (0, 2, 1), (0, 2, 1)), SLOT, Replica(11, block_tokens=4), {}
    )
    assert result.kv_per_iteration == [8, 4]


def test_a_request_that_can_never_end_is_a_livelock() -> None:
    """Weights 3, 4, 5 in M=4: alone at stage 2 it does not fit."""
    result = simulate("greedy", requests((0, 2, 3), (0, 2, 1)), SLOT, ready_made(4), {})
    assert result.livelock
    assert result.finish_s == [None, None]
    assert (result.iterations, result.end_s) == (2, 2.0)


def test_a_request_that_cannot_even_begin_is_a_livelock_once_nobody_else_comes() -> None:
    result = simulate("greedy", requests((0, 4, 1), (5, 1, 1)), SLOT, ready_made(4), {})
    assert result.livelock
    assert (result.iterations, result.end_s) == (0, 5.0)


def test_a_cap_of_one_half_admits_in_every_second_iteration() -> None:
    """t = 0 admits nobody and is passed over, t = 1, 3, 5 admit one each."""
    result = simulate("rate-limited", requests(*[(0, 1, 3)] * 3), SLOT, ready_made(99), {"beta": 0.5})
    assert result.batches == [
        [(0, 0)],
        [(0, 1)],
        [(0, 2), (1, 0)],
        [(1, 1)],
        [(1, 2), (2, 0)],
        [(2, 1)],
        [(2, 2)],
    ]


def test_a_cap_does_not_idle_an_empty_replica() -> None:
    result = simulate("rate-limited", requests(*[(0, 1, 1)] * 3), SLOT, ready_made(99), {"beta": 0.5})
    assert (result.iterations, result.end_s) == (3, 3.0)


# -- thresholds -------------------------------------------------------------------------------------------------


def test_wait_pauses_a_class_below_its_threshold_and_drains_at_the_end() -> None:
    """Class 0 has n=2, class 1 has n=1: class 1 starts alone, then holds 2 tokens while class 0 starts."""
    arrivals = requests((0, 1, 2), (0, 1, 3), (0.5, 1, 2), classes=[0, 1, 0])
    result = simulate("wait", arrivals, SLOT, ready_made(99), {"thresholds": [2, 1]})
    assert result.batches == [[(1, 0)], [(0, 0), (2, 0)], [(1, 1), (0, 1), (2, 1)], [(1, 2)]]
    assert result.kv_per_iteration == [2, 2 + 2 + 2, 9, 4]
    assert result.waiting_per_iteration == [1, 0, 0, 0]
    assert result.finish_s == [3.0, 4.0, 3.0]


def test_wait_evicts_the_last_admitted_of_all_classes() -> None:
    """M=5. Request 1 pauses with 2 tokens and goes when request 0 needs 4; it holds 2 and loses them."""
    arrivals = requests((0, 1, 3), (1, 1, 3), (2, 1, 1), (2, 1, 1), classes=[0, 1, 0, 0])
    result = simulate("wait", arrivals, SLOT, ready_made(5), {"thresholds": [1, 1]})
    assert result.batches == [
        [(0, 0)],
        [(1, 0)],  # class 0 has nobody in its queue: it pauses with 2 tokens
        [(0, 1)],  # 3 and 2 leave no room to admit request 2
        [(0, 2)],  # 4 and 2 do not fit: request 1 is evicted, and nobody is admitted
        [(2, 0), (1, 0)],
        [(3, 0)],  # class 1 has nobody in its queue
        [(1, 1)],
        [(1, 2)],
    ]
    assert result.evictions == [0, 1, 0, 0]
    assert result.recomputed_tokens == 2


def test_nested_wait_keeps_survivors_at_the_boundary() -> None:
    """Segments up to 1 and 3 tokens, n = (2, 1): request 0 waits at 1 s until two more have come, at 2 s."""
    arrivals = requests((0, 1, 3), (0, 1, 1), (1, 1, 1), (2, 1, 1))
    params = {"boundaries": [1, 3], "thresholds": [2, 1]}
    result = simulate("nested-wait", arrivals, SLOT, ready_made(99), params)
    assert result.batches == [[(0, 0), (1, 0)], [(0, 1), (2, 0), (3, 0)], [(0, 2)]]
    assert result.kv_per_iteration == [4, 3 + 2 + 2, 4]
    assert result.finish_s == [4.0, 1.0, 3.0, 3.0]


def test_nested_wait_leaves_out_segments_behind_one_below_its_threshold() -> None:
    """Both survivors of segment 1 are too few for n_2 = 3; they pause with 2 tokens each until the drain."""
    arrivals = requests(*[(0, 1, 2)] * 2, *[(1, 1, 1)] * 2)
    params = {"boundaries": [1, 2], "thresholds": [2, 3]}
    result = simulate("nested-wait", arrivals, SLOT, ready_made(99), params)
    assert result.batches == [[(0, 0), (1, 0)], [(2, 0), (3, 0)], [(0, 1), (1, 1)]]
    assert result.kv_per_iteration == [4, 8, 6]


# -- flow control ------------------------------------------------------------------------------------------------


def test_flow_admits_a_budget_of_each_class() -> None:
    """Budgets 2 and 1: of three requests of each class the first iteration takes 0, 1 and 3."""
    arrivals = requests(*[(0, 2, 2)] * 6, classes=[0, 0, 0, 1, 1, 1])
    result = simulate("flow", arrivals, SLOT, ready_made(99), {"budgets": [2, 1]})
    assert result.batches == [
        [(0, 0), (1, 0), (3, 0)],
        [(0, 1), (1, 1), (3, 1), (2, 0), (4, 0)],
        [(2, 1), (4, 1), (5, 0)],
        [(5, 1)],
    ]


def test_flow_unknown_admits_nobody_where_it_evicts() -> None:
    """Weights 3, 4 in M=7, one an iteration: 3, 4 + 3, then 5 lacks 1 and the second goes, though it could begin."""
    arrivals = requests((0, 2, 3), (0, 2, 3))
    result = simulate("flow-unknown", arrivals, SLOT, ready_made(8), {"budget": 1})
    assert result.batches == [[(0, 0)], [(0, 1), (1, 0)], [(0, 2)], [(1, 0)], [(1, 1)], [(1, 2)]]
    assert result.evictions == [0, 1]
    assert result.waiting_per_iteration == [1, 0, 1, 0, 0, 0]


def test_alpha_protection_clears_all_of_memory() -> None:
    """M=11, 9.9 for admissions: 3 + 3, then 4 + 4 + 1, then 5 + 5 + 2 do not fit; begun together they just do."""
    arrivals = requests((0, 2, 3), (0, 2, 3), (1, 0, 2))
    result = simulate("alpha-protection", arrivals, SLOT, ready_made(11), {"alpha": 0.1})
    assert result.batches == [
        [(0, 0), (1, 0)],
        [(0, 1), (1, 1), (2, 0)],
        [(0, 0), (1, 0), (2, 0)],
        [(0, 1), (1, 1), (2, 1)],
        [(0, 2), (1, 2)],
    ]
    assert result.kv_per_iteration == [6, 9, 7, 10, 10]
    assert result.evictions == [1, 1, 1]
    assert result.recomputed_tokens == 4 + 4 + 1


def test_alpha_protection_keeps_a_share_free_at_admission() -> None:
    """The same with 8.8 for admissions: the third waits for the others, and nobody is evicted."""
    arrivals = requests((0, 2, 3), (0, 2, 3), (1, 0, 2))
    result = simulate("alpha-protection", arrivals, SLOT, ready_made(11), {"alpha": 0.2})
    assert [len(batch) for batch in result.batches] == [2, 2, 2, 1, 1]
    assert result.evictions == [0, 0, 0]


def test_alpha_protection_hangs_where_those_who_begin_together_overflow_together() -> None:
    """Weights 3, 4, 5 in M=9: two begin, two are evicted, two begin again."""
    result = simulate("alpha-protection", requests((0, 2, 3), (0, 2, 3)), SLOT, ready_made(9), {"alpha": 0.0})
    assert result.livelock
    assert [len(batch) for batch in result.batches] == [2, 2, 2, 2]
    assert result.evictions == [2, 2]


# -- looking ahead ----------------------------------------------------------------------------------------------

# weights 3 4 5 6, then 1, then 2 3 in M=9
MIXED = requests((0, 2, 4), (0, 0, 1), (0, 1, 2), (0, 2, 4))


def test_mc_admits_in_order_while_nobody_will_overflow() -> None:
    """3 + 1 + 2, then 4 + 3; the last would fit next to 5, but not with 4 next to 6."""
    result = simulate("mc", MIXED, SLOT, ready_made(9), {})
    assert result.batches[:2] == [[(0, 0), (1, 0), (2, 0)], [(0, 1), (2, 1)]]
    assert result.batches[2:4] == [[(0, 2)], [(0, 3), (3, 0)]]
    assert result.kv_per_iteration == [6, 7, 5, 9, 4, 5, 6]
    assert sum(result.evictions) == 0


def test_mc_holds_up_the_queue_behind_one_that_does_not_fit() -> None:
    """The second overlaps the first by no iteration in M=8; the third could, but is not the first in line."""
    arrivals = requests((0, 2, 4), (0, 2, 4), (0, 0, 1))
    result = simulate("mc", arrivals, SLOT, ready_made(8), {})
    assert result.batches == [[(0, k)] for k in range(4)] + [[(1, 0), (2, 0)], [(1, 1)], [(1, 2)], [(1, 3)]]


def test_mc_takes_unknown_lengths_for_the_longest() -> None:
    """1 2 3 4 next to 3 4 5 6 is too much, 1 2 3 4 next to 4 5 6 is not, nor 2 3 4 5 next to 5 6."""
    result = simulate("mc", MIXED, SLOT, ready_made(9), {"assume": "max"})
    assert result.batches[:3] == [[(0, 0)], [(0, 1), (1, 0)], [(0, 2), (2, 0)]]
    assert sum(result.evictions) == 0


def test_mc_sf_takes_the_shortest_first() -> None:
    """In M=9 three of them: 1 + 2 + 3, then 3 + 4; in M=6 the third has to wait for an iteration."""
    result = simulate("mc-sf", MIXED, SLOT, ready_made(9), {})
    assert result.batches[:2] == [[(1, 0), (2, 0), (0, 0)], [(2, 1), (0, 1)]]
    result = simulate("mc-sf", MIXED, SLOT, ready_made(6), {})
    order = [[index for index, _ in batch] for batch in result.batches]
    assert order == [[1, 2], [2, 0], [0], [0], [0], [3], [3], [3], [3]]


def test_a_min_raises_the_length_it_expects_of_those_it_evicts() -> None:
    """M=9, weights 3 4 5 6 taken for 3. Expected lengths, after each eviction: 1 2, 3 2, 3 3, 3 3.

    At 5 + 5 the second goes, of equals; at 6 + 4 the first, expected to be shorter; at 5 + 6 the second.
    """
    arrivals = requests((0, 2, 4), (0, 2, 4))
    result = simulate("a-min", arrivals, SLOT, ready_made(9), {"shortest": 1})
    assert result.batches == [
        [(0, 0), (1, 0)],
        [(0, 1), (1, 1)],
        [(0, 2), (1, 0)],
        [(1, 1), (0, 0)],
        [(1, 2), (0, 1)],
        [(0, 2), (1, 0)],
        [(0, 3), (1, 0)],
        [(1, 1)],
        [(1, 2)],
        [(1, 3)],
    ]
    assert result.evicted_per_iteration == [0, 0, 1, 1, 0, 1, 1, 0, 0, 0]
    assert result.recomputed_tokens == 4 + 5 + 5 + 3


def test_a_min_leaves_out_whoever_would_not_fit_at_the_length_expected() -> None:
    """Taken for 3 long, 3 4 5 next to 4 5 is too much for M=7: the second waits. Taken for 1 it begins."""
    result = simulate("a-min", requests((0, 2, 3), (1, 2, 3)), SLOT, ready_made(7), {"shortest": 3})
    assert result.batches == [[(0, 0)], [(0, 1)], [(0, 2)], [(1, 0)], [(1, 1)], [(1, 2)]]
    result = simulate("a-min", requests((0, 2, 3), (1, 2, 3)), SLOT, ready_made(7), {"shortest": 1})
    assert result.batches[1] == [(0, 1), (1, 0)]


# -- vllm -------------------------------------------------------------------------------------------------------


def test_vllm_preempts_the_last_and_recomputes_prompt_and_generated_tokens() -> None:
    """Four usable blocks of 4, two requests (7, 5) with two blocks each: the ninth token preempts the second."""
    timing = Timing(d0=1.0, d1=0.01, d2=0.1, d3=0.5)
    result = simulate("vllm", requests((0, 7, 5), (0, 7, 5)), timing, Replica(20, block_tokens=4), {})
    assert result.batches == [
        [(0, 7), (1, 7)],
        [(0, 1), (1, 1)],
        [(0, 1)],
        [(0, 1)],
        [(0, 1)],
        [(1, 9)],
        [(1, 1)],
        [(1, 1)],
    ]
    ends = np.cumsum(
        [
            1 + 0.14 + 1.4 + 1,
            1 + 0.16 + 1,
            1 + 0.09 + 0.5,
            1 + 0.10 + 0.5,
            1 + 0.11 + 0.5,
            1 + 0.09 + 0.9 + 0.5,
            1 + 0.10 + 0.5,
            1 + 0.11 + 0.5,
        ]
    )
    assert result.first_token_s == pytest.approx([ends[0], ends[0]])
    assert result.finish_s == pytest.approx([ends[4], ends[7]])
    assert result.evictions == [0, 1]
    assert result.recomputed_tokens == 8
    assert result.computed_tokens == 14 + 9 + 10
    assert result.kv_per_iteration == [16, 16, 12, 12, 12, 12, 12, 12]
    assert result.waiting_per_iteration == [0, 0, 1, 1, 1, 0, 0, 0]
    assert result.evicted_per_iteration == [0, 0, 1, 0, 0, 0, 0, 0]


def test_vllm_chunks_a_long_prefill_by_the_budget() -> None:
    """Budget 4: a prompt of 6 takes 4 and 2, and what is left of the second budget admits the next."""
    replica = Replica(20, block_tokens=4, max_num_batched_tokens=4)
    result = simulate("vllm", requests((0, 6, 2), (0, 1, 1)), SLOT, replica, {})
    assert result.batches == [[(0, 4)], [(0, 2), (1, 1)], [(0, 1)]]
    assert result.first_token_s == [2.0, 2.0]
    assert result.kv_per_iteration == [4, 12, 8]
    assert result.computed_tokens == 4 + 2 + 3


def test_vllm_keeps_the_watermark_free_only_while_something_runs() -> None:
    """Four usable blocks, a quarter kept free: alone a prompt may take four, beside another only what leaves one."""
    replica = Replica(20, block_tokens=4)
    alone = simulate("vllm", requests((0, 16, 1)), SLOT, replica, {"watermark": 0.25})
    beside = simulate("vllm", requests((0, 8, 1), (0, 8, 1)), SLOT, replica, {"watermark": 0.25})
    assert alone.iterations == 1
    assert beside.waiting_per_iteration == [1, 0]


def test_vllm_seats_no_more_than_max_num_seqs() -> None:
    result = simulate("vllm", requests(*[(0, 1, 1)] * 5), SLOT, Replica(100, max_num_seqs=2), {})
    assert [len(batch) for batch in result.batches] == [2, 2, 1]


def test_vllm_finds_a_request_that_outgrows_all_blocks() -> None:
    result = simulate("vllm", requests((0, 15, 3)), SLOT, Replica(20, block_tokens=4), {})
    fits = simulate("vllm", requests((0, 15, 2)), SLOT, Replica(20, block_tokens=4), {})
    assert (result.livelock, result.iterations) == (True, 2)
    assert (fits.livelock, fits.iterations) == (False, 2)


def test_trtllm_admits_only_what_fits_at_its_longest() -> None:
    """Five blocks of 4; (5, 3) may come to (5, 7), three blocks: one at a time, though two would fit to the end."""
    two = requests((0, 5, 3), (0, 5, 3))
    result = simulate("trtllm-no-evict", two, SLOT, Replica(20, block_tokens=4), {"max_new": [7]})
    both = simulate("trtllm-no-evict", two, SLOT, Replica(20, block_tokens=4), {"max_new": [3]})
    assert result.batches == [[(0, 5)], [(0, 1)], [(0, 1)], [(1, 5)], [(1, 1)], [(1, 1)]]
    assert result.waiting_per_iteration == [1, 1, 1, 0, 0, 0]
    assert result.kv_per_iteration == [8] * 6
    assert both.batches == [[(0, 5), (1, 5)], [(0, 1), (1, 1)], [(0, 1), (1, 1)]]


def test_sarathi_admits_no_more_than_its_cap() -> None:
    """0.5 is one in every second iteration: the first of an empty replica at once, the next two iterations later."""
    four = requests(*[(0, 1, 4)] * 4)
    capped = simulate("sarathi", four, SLOT, Replica(99), {"cap": 0.5})
    assert capped.waiting_per_iteration[:5] == [3, 3, 2, 2, 1]
    assert simulate("sarathi", four, SLOT, Replica(99), {}).waiting_per_iteration == [0] * 4


def test_sarathi_chunks_prompts_beside_decodes_in_all_blocks() -> None:
    """Of six tokens 2 are (2, 3)'s, and 2 half of (4, 1)'s; for the other half 3 are left beside it, one too few."""
    replica = Replica(6, max_num_batched_tokens=4)
    result = simulate("sarathi", requests((0, 2, 3), (0, 4, 1)), SLOT, replica, {})
    assert result.batches == [[(0, 2), (1, 2)], [(0, 1)], [(0, 1)], [(1, 4)]]
    assert result.kv_per_iteration == [4, 3, 4, 4]
    assert result.recomputed_tokens == 2


def test_vllm_v0_computes_whole_prompts_before_any_decode() -> None:
    """(2, 3) waits for (3, 1) and (4, 1). Together they are beyond the budget, and 4 is so alone."""
    replica = Replica(99, max_num_batched_tokens=3)
    arrivals = requests((0, 2, 3), (0.5, 3, 1), (0.5, 4, 1))
    result = simulate("vllm-v0", arrivals, SLOT, replica, {})
    assert result.batches == [[(0, 2)], [(1, 3)], [(2, 4)], [(0, 1)], [(0, 1)]]
    assert result.kv_per_iteration == [2, 5, 6, 3, 4]


def test_vllm_v0_preempts_the_last_and_computes_it_again_whole() -> None:
    """Of 7 tokens 3 and 4 are computed: (2, 3) goes on alone, then 3 input and 2 generated tokens are a prompt."""
    result = simulate("vllm-v0", requests((0, 2, 3), (0, 3, 3)), SLOT, Replica(7), {})
    assert result.batches == [[(0, 2), (1, 3)], [(0, 1), (1, 1)], [(0, 1)], [(1, 5)]]
    assert (result.evictions, result.recomputed_tokens) == ([0, 1], 4)
    assert result.finish_s == [3.0, 4.0]


def test_sglang_computes_prompts_in_iterations_of_their_own() -> None:
    """(2, 3) decodes only once (4, 1) has been computed, in two chunks of 3 and 1."""
    replica = Replica(99, max_num_batched_tokens=3)
    arrivals = requests((0, 2, 3), (0.5, 4, 1))
    result = simulate("sglang", arrivals, SLOT, replica, {"conservativeness": 1, "max_new": [3]})
    assert result.batches == [[(0, 2)], [(1, 3)], [(1, 1)], [(0, 1)], [(0, 1)]]
    assert result.kv_per_iteration == [2, 5, 6, 3, 4]


def test_sglang_keeps_room_for_a_share_of_what_may_come() -> None:
    """(5, 4) may generate 10: together 15. Then it holds 5, may generate 9, and 0.7·9 = 6.3 are kept.

    Of 19 tokens 7.7 are left for (2, 1) with its 10: it waits, until (6 computed) 8 and 0.7 less 0.602/600 of these
    remain, and so on to the end of the first one. Without any share kept, 12 of 14 are enough at once.
    """
    arrivals = requests((0, 5, 4), (0.5, 2, 1))
    waits = simulate("sglang", arrivals, SLOT, Replica(19), {"conservativeness": 1, "max_new": [10]})
    at_once = simulate("sglang", arrivals, SLOT, Replica(19), {"conservativeness": 0, "max_new": [10]})
    assert [len(batch) for batch in waits.batches] == [1, 1, 1, 1, 1]
    assert waits.finish_s == [4.0, 5.0]
    assert at_once.finish_s == [5.0, 2.0]


def test_sglang_counts_whoever_comes_in_the_same_iteration_whole() -> None:
    """2 and 5 to come; then 2 and 5 more fit into 14 tokens, but not into 13, although nobody runs yet."""
    two = requests((0, 2, 1), (0, 2, 1))
    parameters = {"conservativeness": 0, "max_new": [5]}
    assert simulate("sglang", two, SLOT, Replica(14), parameters).iterations == 1
    assert simulate("sglang", two, SLOT, Replica(13), parameters).iterations == 2


def test_sglang_retracts_the_fewest_outputs_then_the_longest_input_to_the_end_of_the_queue() -> None:
    """Of 12 tokens 6, 2 and 3 are computed; the first has 3 outputs, the others 2 each: the one of input 2 goes.

    (1, 1) is there already, and goes before it when both others are done.
    """
    arrivals = requests((0, 4, 4), (1.5, 1, 3), (2.5, 2, 3), (3.5, 1, 1))
    result = simulate("sglang", arrivals, SLOT, Replica(12), {"conservativeness": 0, "max_new": [4]})
    prompts = [[(0, 4)], [(0, 1)], [(1, 1)], [(2, 2)]]
    assert result.batches == [*prompts, [(0, 1), (1, 1), (2, 1)], [(0, 1), (1, 1)], [(3, 1), (2, 4)]]
    assert result.kv_per_iteration == [4, 5, 6, 8, 11, 10, 5]
    assert result.evictions == [0, 0, 1, 0]
    assert result.recomputed_tokens == 3


# -- the loop ---------------------------------------------------------------------------------------------------


def test_a_batch_that_would_end_after_the_horizon_is_not_run() -> None:
    arrivals = requests((0, 1, 4), (9, 1, 1))
    running = simulate("greedy", arrivals, SLOT, Replica(99), {}, horizon_s=2.5)
    idle = simulate("greedy", arrivals, SLOT, Replica(99), {}, horizon_s=6.0)
    assert (running.iterations, running.end_s, running.finish_s) == (2, 2.5, [None, None])
    assert (idle.iterations, idle.end_s, idle.finish_s) == (4, 6.0, [4.0, None])


def test_in_a_closed_loop_each_completion_brings_the_next() -> None:
    rows = requests((0, 1, 1), (0, 1, 2), (0, 1, 1), (0, 1, 1))
    closed = Requests(rows.arrival_s, rows.input_tokens, rows.decode_tokens, rows.class_index, clients=2)
    whole = simulate("greedy", closed, SLOT, Replica(99), {})
    cut = simulate("greedy", closed, SLOT, Replica(99), {}, horizon_s=1.0)
    assert whole.arrival_s == [0.0, 0.0, 1.0, 2.0]
    assert whole.finish_s == [1.0, 2.0, 2.0, 3.0]
    assert cut.arrival_s == [0.0, 0.0, 1.0, None]
