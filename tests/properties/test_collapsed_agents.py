"""What ends the collapse of agents, by a second simulator: a cap on conversations (CONCUR's), and host memory."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import shipped
from slow_conversations import Conversations

from kvplan.model import Plan, ServingModel
from kvplan.model.replica import Offload
from kvplan.planning.host_memory import GIB, LINK
from kvplan.profile.reading import parse_profile, shipped_profiles
from kvplan.simulation.policies import engine_settings
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.sessions import Burst
from kvplan.study.warm_cache import _LIMITED_LIVES, _LIMITED_SEEDS, _collapsible, session_cap
from kvplan.study.windows import life_s

END = 0.75  # of a run, from where what it serves and finds counts
CHOSEN, TOKEN = 440, 70_272  # GiB, as `plan --offload auto` chooses; bytes


class End(NamedTuple):
    """How many a run serves in its end, what share of prompts it finds, and the mean TTFT."""

    served: int
    hit_ratio: float
    ttft_s: float


def ends(model: ServingModel, end_s: float, burst: Burst, seed: int, cap: float = math.inf) -> End:
    """The end of a run after a burst, or, without one, in which users all begin at once; kvplan has the same run."""
    replica, settings = _collapsible(model, cold=True), engine_settings(model)
    assert replica is not None
    if cap < math.inf:
        settings = Settings("session-cap", {**settings.given, "cap": (cap,)})
    job = replica.job(Plan(), settings, end_s, burst, seed)
    requests = job.scenario.requests
    if not burst.sessions:
        arrival_s = np.where(np.isnan(requests.arrival_s), math.nan, 0.0)
        requests = replace(requests, arrival_s=arrival_s)
        job = job._replace(scenario=job.scenario._replace(requests=requests))
    fast = job.run(lambda _: True, None, True)
    found = Conversations(requests, model.timing, model.replica, cap).run(end_s)
    np.testing.assert_allclose(fast.first_token_s, found.first_token_s, rtol=1e-9)
    np.testing.assert_allclose(fast.finish_s, found.finish_s, rtol=1e-9)
    late = found.first_token_s >= END * end_s
    hit_ratio = found.hit_tokens[late].sum() / requests.input_tokens[late].sum()
    # when requests came; of a turn, when the one before it was answered and its user had thought
    came_s = requests.arrival_s.copy()
    following = requests.turns.following
    has = following >= 0
    came_s[following[has]] = (found.finish_s + requests.turns.think_s)[has]
    return End(
        int(np.count_nonzero(found.finish_s >= END * end_s)),
        float(hit_ratio),
        float((found.first_token_s - came_s)[late].mean()),
    )


@pytest.mark.nightly
@pytest.mark.parametrize(("who", "times"), [("rate = 0.834", 3), ("users = 800", 0)])
def test_the_best_cap_serves_as_much_more_from_the_collapsed_state_as_is_said(who: str, times: int) -> None:
    text = shipped_profiles()["agents-collapse"].read_text("utf-8").replace("rate = 0.834", who)
    model = parse_profile(text.encode(), "agents.toml").model
    replica, found = _collapsible(model, cold=True), session_cap(model, Plan())
    assert replica is not None
    assert found is not None
    run = _LIMITED_LIVES * (life_s(model) + replica.gap_s), Burst(times * replica.burst), _LIMITED_SEEDS[0]
    without, within = ends(model, *run), ends(model, *run, found.cap)
    assert without.hit_ratio < 0.01
    assert within.hit_ratio > replica.half_hits / replica.cached.mean("prompt")
    assert within.served == pytest.approx((1 + found.gain) * without.served, rel=1e-9)
    assert (without.ttft_s, within.ttft_s) == pytest.approx((found.ttft_s_without, found.ttft_s_with))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_the_host_memory_that_is_chosen_brings_them_back_and_a_quarter_less_does_not(seed: int) -> None:
    """After a standard burst upon a warm cache, of three times the sessions of two minutes."""
    agents, found = shipped.profile("agents-collapse").model, []
    warm_s = life_s(agents)
    for share in (0.75, 1.0):
        host = Offload(int(share * CHOSEN * GIB) // TOKEN, TOKEN / LINK)
        model = replace(agents, replica=replace(agents.replica, offload=host))
        found.append(ends(model, 2 * warm_s, Burst(300, warm_s), seed).hit_ratio)
    assert found[0] < 0.01
    assert found[1] > 0.8
