"""Arrivals that know each other: sessions of turns, bursts of them, populations, and prompts in common."""

import numpy as np
import pytest
from small_runs import Case, run

from kvplan.model import Prefill, Replica, Timing
from kvplan.model.gaps import Exponential, Lognormal, Quantiles
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions, SharedPrompt
from kvplan.model.streams import session_stream
from kvplan.simulation.outcome import Ending
from kvplan.simulation.requests import Requests
from kvplan.simulation.sessions import population, stream_of_sessions, with_shared_prompts

CHAT = Sessions(
    first=Lengths.uniform(10, 30),
    user=Lengths.of({5: 1.0, 9: 1.0}),
    decode=Lengths.uniform(3, 8),
    turns=Lengths.geometric(3.0),
    think=Lognormal(4.0, 0.5),
    shared=40,
)
TOOL = Sessions(
    first=Lengths.of({100: 1.0}),
    user=Lengths.of({1: 1.0}),
    decode=Lengths.of({2: 1.0}),
    turns=Lengths.of({4: 1.0}),
    think=Quantiles((0.0,)),
)

RATES = [2.0, 1.0]  # sessions/s of the two


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def check_turns(requests: Requests, kinds: list[Sessions]) -> None:
    """Every turn goes on where the one before ended, in the same stream; a session begins with its own."""
    stream, begin = requests.prefixes.stream, requests.prefixes.begin_tokens
    unasked = ~np.isnan(requests.arrival_s)
    assert (np.diff(requests.arrival_s[unasked]) >= 0).all()
    assert unasked[: unasked.sum()].all()
    brought = requests.turns.following[requests.turns.following >= 0]
    assert sorted([*brought, *np.flatnonzero(unasked)]) == list(range(unasked.size))
    assert len(set(stream[unasked])) == unasked.sum()
    for request, then in enumerate(requests.turns.following):
        kind = kinds[requests.class_index[request]]
        assert kind.decode.values[0] <= requests.decode_tokens[request] <= kind.decode.values[-1]
        assert begin[stream[request]] == kind.shared
        if then >= 0 and stream[then] == stream[request]:
            new = (
                requests.input_tokens[then] - requests.input_tokens[request] - requests.decode_tokens[request]
            )
            assert new in kind.user.values
            assert requests.class_index[then] == requests.class_index[request]
        if unasked[request] or stream[request] not in stream[:request]:
            assert requests.input_tokens[request] - kind.shared in kind.first.values


def test_turns_carry_all_that_came_before() -> None:
    check_turns(stream_of_sessions([CHAT, TOOL], RATES, rng(), requests=None, horizon_s=60.0), [CHAT, TOOL])
    check_turns(population([CHAT, TOOL], rng(), users=[3, 2], requests=200), [CHAT, TOOL])


def test_sessions_begin_at_their_rates_and_their_turns_have_the_moments_of_the_model() -> None:
    """Within four standard errors; moments from the exact laws."""
    drawn = stream_of_sessions([CHAT, TOOL], RATES, rng(1), requests=None, horizon_s=20_000.0)
    assert drawn.more_later
    unasked = ~np.isnan(drawn.arrival_s)
    for index, kind in enumerate((CHAT, TOOL)):
        mine = drawn.class_index == index
        sessions = np.count_nonzero(mine & unasked)
        expected = RATES[index] * 20_000
        assert abs(sessions - expected) < 4 * np.sqrt(expected)
        turns = session_stream(kind, 1.0, Prefill.FUSED, 1)
        assert drawn.input_tokens[mine].mean() == pytest.approx(turns.prompt, rel=0.02)
        assert (drawn.input_tokens[mine] ** 2).mean() == pytest.approx(turns.prompt_squares, rel=0.05)
        assert np.count_nonzero(mine) / sessions == pytest.approx(kind.turns.mean, rel=0.02)
    think = drawn.turns.think_s[drawn.class_index == 0]
    assert np.median(think) == pytest.approx(4.0, rel=0.02)
    assert np.log(think).std() == pytest.approx(0.5, rel=0.02)
    exponential = Sessions(TOOL.first, TOOL.user, TOOL.decode, TOOL.turns, Exponential(3.0))
    other = stream_of_sessions([exponential], [1.0], rng(), requests=40_000, horizon_s=None)
    assert other.turns.think_s.mean() == pytest.approx(3.0, rel=0.02)


def test_a_turn_arrives_think_time_after_the_answer() -> None:
    drawn = stream_of_sessions([CHAT], [2.0], rng(3), requests=300, horizon_s=None)
    outcome = run("vllm", Case(drawn, Timing(0.01), Replica(20_000), {"prefix_caching": (1.0,)}))
    assert outcome.ending is Ending.FINISHED
    followed = drawn.turns.following >= 0
    gaps = outcome.arrival_s[drawn.turns.following[followed]] - outcome.finish_s[followed]
    np.testing.assert_allclose(gaps, drawn.turns.think_s[followed], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"shed_after": (0.5,)}], ids=["patient", "shed"])
def test_a_population_never_asks_for_more_at_once_than_it_has_users(
    settings: dict[str, tuple[float, ...]],
) -> None:
    drawn = population([CHAT, TOOL], rng(2), users=[3, 2], requests=400)
    outcome = run("vllm", Case(drawn, Timing(0.3), Replica(300), settings))
    assert outcome.ending is Ending.FINISHED
    assert (outcome.series.waiting + outcome.series.running).max() <= 5
    assert outcome.shed.any() == bool(settings)


def test_prompts_in_common_are_drawn_by_weight() -> None:
    size = 20_000
    requests = Requests(np.zeros(size), np.full(size, 99), np.ones(size, dtype=np.int64), np.arange(size) % 2)
    shared = with_shared_prompts(
        requests, [[SharedPrompt(50, 0.6), SharedPrompt(20, 0.1)], []], rng()
    ).prefixes
    assert shared.end_tokens[:2].tolist() == [50, 20]
    parent = shared.parent[shared.stream]
    assert (parent[1::2] == -1).all()
    assert np.bincount(parent[::2] + 1) / (size / 2) == pytest.approx([0.3, 0.6, 0.1], abs=0.02)
