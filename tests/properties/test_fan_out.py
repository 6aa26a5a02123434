"""Sessions that send others out and wait for them, against a slow model and by hand."""

from dataclasses import replace

import numpy as np
import pytest
import slow_prefix_cache
from cached_cases import LIMITS_S, REPLICAS, case_of
from hypothesis import given
from hypothesis import strategies as st
from session_shapes import TURN, same
from small_runs import GAPS, TIMINGS, Case, bytes_of, run
from tiers import examples

from kvplan.profile.reading import parse_profile
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.requests import Prefixes, Requests, Turns

SENT = st.lists(st.lists(TURN, min_size=1, max_size=3), max_size=3)  # the turns of each
SESSION = st.tuples(st.lists(st.tuples(TURN, SENT), min_size=1, max_size=3), GAPS)


class Drawn:
    """Sessions with 5 tokens in common: `requests` has those who come unasked first."""

    users = None

    def __init__(self, sessions: list[tuple[list[tuple[tuple[int, int, float], list]], float]]) -> None:
        rows: list[list[float]] = []  # arrival, input, decode, stream, think, following, instead, beside
        streams, clock = 0, 0.0

        def turn(arrival: float, context: int, its: tuple[int, int, float], instead: int) -> int:
            new, decode, think = its
            rows.append([arrival, context + new, decode, streams, think, -1, instead, -1])
            return len(rows) - 1

        for turns, gap in sessions:
            clock += gap
            streams += 1
            own, context, before = streams, 5, -1
            plan: list[tuple[int, list]] = []
            for t, (its, sent) in enumerate(turns):
                streams = own
                at = turn(clock if t == 0 else np.nan, context, its, -1)
                if before >= 0:
                    rows[before][5] = at
                plan.append((at, sent if t + 1 < len(turns) else []))
                context, before = context + its[0] + its[1], at
            streams = max(int(row[3]) for row in rows)
            for at, sent in plan:
                last = at
                for session in sent:
                    streams += 1
                    context, before = 5, -1
                    for its in session:
                        mine = turn(np.nan, context, its, int(rows[at][5]))
                        rows[last if before < 0 else before][7 if before < 0 else 5] = mine
                        last, before = (mine if before < 0 else last), mine
                        context += its[0] + its[1]
                    rows[before][5] = rows[at][5]
        order = sorted(range(len(rows)), key=lambda r: (np.isnan(rows[r][0]), r))
        place = {row: at for at, row in enumerate(order)} | {-1: -1}
        table = np.array([rows[r] for r in order])
        links = np.array([[place[int(row)] for row in rows[r][5:]] for r in order])
        self.known = Requests(
            table[:, 0],
            *(table[:, column].astype(np.int64) for column in (1, 2)),
            np.zeros(len(rows), dtype=np.int64),
            prefixes=Prefixes(
                table[:, 3].astype(np.int64),
                np.array([-1] + [0] * streams),
                np.array([5] + [0] * streams),
            ),
            turns=Turns(links[:, 0], table[:, 4], links[:, 1], links[:, 2]),
        )

    def requests(self) -> Requests:
        return self.known


CASES = st.builds(
    case_of,
    st.builds(Drawn, st.lists(SESSION, min_size=1, max_size=5)),
    TIMINGS,
    REPLICAS,
    st.just(0.0),
    st.sampled_from([0.0, 1.0]),
    st.none() | LIMITS_S,
    st.none() | st.floats(0.0, 60.0),
)


@examples(8)
@given(case=CASES, cap=st.integers(1, 3))
def test_turns_wait_for_all_whom_the_one_before_sent_out(case: Case, cap: int) -> None:
    same(run("vllm", case), slow_prefix_cache.Cached, case)
    parameters = {key: value for key, value in case.parameters.items() if key != "shed_after"}
    capped = replace(case, parameters={**parameters, "cap": (float(cap),)})
    same(run("session-cap", capped), slow_prefix_cache.Capped, capped)


TEXT = """\
schema = 1
name = "subagents"
gpu = { memory_tokens = 1_000_000, block_tokens = 16 }
timing = { d0 = "10 ms", d2 = "1 ms" }

[[sessions]]
name = "agent"
rate = 0.01
shared = 160
first = 40
user = 10
decode = 2
turns = 3
think = { law = "fixed", value = "1 s" }
fan_out = { reader = 2, writer = 1 }

[[sessions]]
name = "reader"
first = 40
user = 10
decode = 4
turns = 2
think = { law = "fixed", value = "2 s" }

[[sessions]]
name = "writer"
first = 30
user = 10
decode = 6
turns = 1
think = { law = "fixed", value = "2 s" }
"""


def test_rates_and_prompts_of_subagents_follow_from_who_sends_them_out() -> None:
    """Two of three turns of .01 sessions/s send out two readers of two turns, and a writer.

    The second prompt has the first of 200, an answer of 2, 10 of the user, and 4 + 4 + 6 of subagents: 226; the third
    252. A reader's are 200 and 214, a writer's 190.
    """
    model = parse_profile(TEXT.encode(), "subagents.toml").model
    assert [c.rate_rps for c in model.classes] == pytest.approx([0.03, 0.08, 0.02])
    assert [c.input_tokens for c in model.classes] == [226, 207, 190]
    drawn = generate(model, Load(requests=1300), 0)
    assert drawn.turns is not None
    for index, inputs in enumerate(({200, 226, 252}, {200, 214}, {190})):
        assert set(drawn.input_tokens[drawn.class_index == index].tolist()) == inputs
    share = np.bincount(drawn.class_index) / drawn.class_index.size
    assert share == pytest.approx([3 / 13, 8 / 13, 2 / 13], rel=0.01)


def of_text(requests: int) -> Case:
    model = parse_profile(TEXT.encode(), "subagents.toml").model
    drawn = generate(model, Load(requests=requests), 0)
    return Case(drawn, model.timing, model.replica, {"prefix_caching": (1.0,)})


@pytest.mark.nightly
def test_compiled_runs_leave_the_same_bytes() -> None:
    case = of_text(400)
    assert bytes_of(run("vllm", case, compile=True)) == bytes_of(run("vllm", case))


def test_a_session_alone_takes_as_long_as_its_subagents() -> None:
    """An iteration takes .01 s and .001 for each token of a prompt that is computed: .22 s for 200 and a second answer.

    Of those sent out all but the 160 that are shared is computed in one iteration, 40 + 40 + 30, and the readers are
    done 3 iterations later, the writer meanwhile. After 2 s each finds 192 of 214 tokens, the whole blocks of 203 that
    are known, and takes 4 iterations; a second later the agent goes on.
    """
    case = of_text(13)
    drawn, outcome = case.requests, run("vllm", case)
    (first,) = np.flatnonzero(~np.isnan(drawn.arrival_s))
    assert drawn.turns is not None
    then = drawn.turns.following[first]
    finish, arrival = outcome.finish_s, outcome.arrival_s
    assert finish[first] - arrival[first] == pytest.approx(0.22)
    sent, again = 0.01 + 0.11 + 3 * 0.01, 0.01 + 2 * 0.022 + 3 * 0.01
    assert arrival[then] - finish[first] == pytest.approx(sent + 2.0 + again + 1.0)
