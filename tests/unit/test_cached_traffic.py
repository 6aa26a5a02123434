"""What classes and sessions leave in a prefix cache, against every request counted out one by one."""

import math
from itertools import product

import numpy as np
import pytest
from every import every
from oracles import stage_weights

from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Exponential, Gap, Lognormal, Quantiles
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Reuse, Sessions, SharedPrompt
from kvplan.model.streams import Stream, class_streams, session_stream

THINK = Exponential(3.0)
LAWS = {
    "first": {5: 0.25, 12: 0.75},
    "user": {1: 0.5, 7: 0.5},
    "decode": {1: 0.2, 4: 0.5, 9: 0.3},
    "turns": {1: 0.3, 2: 0.2, 4: 0.5},
}
MEANS = (
    *("stages", "read", "held", "held_squares", "prompt", "prompt_squares", "prefill", "computed", "decode"),
    *("left", "left_squares", "reused", "reused_squares"),
)


def counted_out(prefill: Prefill, page: int, shared: int) -> dict[str, float]:
    """Means over the turns of every possible session."""
    sums = dict.fromkeys(MEANS, 0.0)
    requests = 0.0
    common = min(shared // page, (shared + min(LAWS["first"]) - 1) // page) * page
    for turns, w in LAWS["turns"].items():
        for j in range(turns):
            # the lengths that this turn depends on: the first prompt, j pairs of an answer and what follows, an answer
            steps = [LAWS["first"], *[LAWS["decode"], LAWS["user"]] * j, LAWS["decode"]]
            for lengths in product(*steps):
                p = w * math.prod(law[n] for law, n in zip(steps, lengths, strict=True))
                s, d = shared + sum(lengths[:-1]), lengths[-1]
                held = stage_weights(prefill, s, d, page)
                left = (s + d - 1) // page * page - common
                again = left if j < turns - 1 else 0
                work = 0 if prefill is Prefill.DISAGGREGATED else s
                values = (
                    len(held),
                    sum(stage_weights(prefill, s, d)),
                    sum(held),
                    sum(h * h for h in held),
                    *(s, s * s, work, len(held) + max(work - 1, 0), d, left, left**2, again, again**2),
                )
                requests += p
                for name, value in zip(MEANS, values, strict=True):
                    sums[name] += p * value
    return {name: value / requests for name, value in sums.items()} | {"requests": requests}


@every("prefill", Prefill)
@every(("page", "shared"), [(1, 0), (1, 3), (4, 0), (4, 9), (16, 40), (7, 14)])
def test_moments_of_sessions_are_those_of_all_their_turns(prefill: Prefill, page: int, shared: int) -> None:
    laws = {name: Lengths.of(law) for name, law in LAWS.items()}
    sessions = Sessions(**laws, think=THINK, shared=shared)
    stream = session_stream(sessions, 2.0, prefill, page)
    expected = counted_out(prefill, page, shared)
    assert sessions.turns.mean == pytest.approx(expected.pop("requests"), rel=1e-12)
    assert sum(share * tokens for share, tokens, _ in sessions.prompts) == pytest.approx(expected["prompt"])
    assert {name: getattr(stream, name) for name in MEANS} == pytest.approx(expected, rel=1e-9)


def test_kinds_of_prompts_keep_the_means() -> None:
    laws = {name: Lengths.of(law) for name, law in LAWS.items()}
    stream = session_stream(Sessions(**laws, think=THINK, shared=40), 2.0, Prefill.FUSED, 16)
    assert sum(k.share for k in stream.prompts) == pytest.approx(1)
    assert sum(k.share * k.tokens for k in stream.prompts) == pytest.approx(stream.prompt)
    assert sum(k.share * k.asked_for for k in stream.prompts) == pytest.approx(32 + stream.reused)


def stream_of(
    decode: dict[int, float], reuse: Reuse | None, *shared: SharedPrompt, s: int = 100, b: int = 16
) -> Stream:
    one = RequestClass("a", s, tuple(decode), tuple(decode.values()), 2.0, shared, reuse)
    model = ServingModel((one,), Timing(0.01), Replica(10_000, b))
    (found,) = class_streams(model)
    return found


def test_a_class_leaves_its_full_pages() -> None:
    """s + d - 1 = 108 and 139 tokens: 96 and 128 in full pages of 16."""
    stream = stream_of({9: 1.0, 40: 3.0}, None)
    assert (stream.left, stream.left_squares) == pytest.approx((120, (96**2 + 3 * 128**2) / 4))
    assert (stream.reused, stream.gap, stream.prompts[1].share) == (0, None, 0)


@every(("tokens", "found"), [(0.5, 64), (1.0, 96), (50, 48), (10**6, 96), (96, 96), (15, 0)])
def test_reuse_is_of_full_pages_that_a_prompt_can_find(tokens: float, found: int) -> None:
    stream = stream_of({40: 1.0}, Reuse(tokens, 0.25, THINK))
    assert (stream.reused, stream.reused_squares) == (found / 4, found**2 / 4)


@pytest.mark.parametrize("gap", [Exponential(3.0), Lognormal(2.0, 0.7), Quantiles((0.5, 2.0, 2.0, 7.0))])
def test_laws_of_gaps_integrate_and_slope_as_they_should(gap: Gap) -> None:
    g = np.linspace(0, 20, 200_001)
    reached, passed = gap.until(g)
    step = g[1] - g[0]
    assert np.abs(np.cumsum(1 - reached)[:-1] * step - passed[1:]).max() <= 2e-4
    assert gap.until(1e9)[1] == pytest.approx(gap.mean_s)
    if not isinstance(gap, Quantiles):
        rise = (gap.until(2.001)[0] - gap.until(1.999)[0]) / 0.002
        assert gap.density(2.0) == pytest.approx(rise, rel=1e-5)
