"""What ends the collapse of agents, by a second simulator: a cap on conversations (CONCUR's), and host memory."""

import math
from dataclasses import replace

import numpy as np
import pytest
import shipped
from slow_conversations import Conversations

from kvplan.model import Plan, ServingModel
from kvplan.model.replica import Offload
from kvplan.planning.host_memory import GIB, LINK
from kvplan.simulation.policies import engine_settings
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.sessions import Burst
from kvplan.study.warm_cache import _LIMITED_BURST, _LIMITED_LIVES, _LIMITED_SEEDS, _collapsible, session_cap
from kvplan.study.windows import life_s

END = 0.75  # of a run, from where what it serves and finds counts
CHOSEN, TOKEN = 440, 70_272  # GiB, as `plan --offload auto` chooses; bytes


def ends(
    model: ServingModel, end_s: float, burst: Burst, seed: int, cap: float = math.inf
) -> tuple[int, float]:
    """How many a run after a burst serves in its end, and what share of prompts it finds; kvplan has the same run."""
    replica, settings = _collapsible(model), engine_settings(model)
    assert replica is not None
    if cap < math.inf:
        settings = Settings("session-cap", {**settings.given, "cap": (cap,)})
    job = replica.job(Plan(), settings, end_s, burst, seed)
    requests, fast = job.scenario.requests, job.run(lambda _: True, None, True)
    found = Conversations(requests, model.timing, model.replica, cap).run(end_s)
    np.testing.assert_allclose(fast.first_token_s, found.first_token_s, rtol=1e-9)
    np.testing.assert_allclose(fast.finish_s, found.finish_s, rtol=1e-9)
    late = found.first_token_s >= END * end_s
    hit_ratio = found.hit_tokens[late].sum() / requests.input_tokens[late].sum()
    return int(np.count_nonzero(found.finish_s >= END * end_s)), float(hit_ratio)


@pytest.mark.nightly
def test_the_best_cap_serves_as_much_more_from_the_collapsed_state_as_is_said() -> None:
    model = shipped.profile("agents-collapse").model
    replica, found = _collapsible(model), session_cap(model, Plan())
    assert replica is not None
    assert found is not None
    run = _LIMITED_LIVES * life_s(model), Burst(_LIMITED_BURST * replica.burst), _LIMITED_SEEDS[0]
    without, collapsed = ends(model, *run)
    within, warm = ends(model, *run, found.settings[0].value)
    assert collapsed < 0.01
    assert warm > 0.8
    assert within > 1.05 * without
    assert within / without == pytest.approx(1 + found.gain, rel=0.03)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_the_host_memory_that_is_chosen_brings_them_back_and_a_quarter_less_does_not(seed: int) -> None:
    """After a standard burst upon a warm cache, of three times the sessions of two minutes."""
    agents, found = shipped.profile("agents-collapse").model, []
    warm_s = life_s(agents)
    for share in (0.75, 1.0):
        host = Offload(int(share * CHOSEN * GIB) // TOKEN, TOKEN / LINK)
        model = replace(agents, replica=replace(agents.replica, offload=host))
        found.append(ends(model, 2 * warm_s, Burst(300, warm_s), seed)[1])
    assert found[0] < 0.01
    assert found[1] > 0.8
