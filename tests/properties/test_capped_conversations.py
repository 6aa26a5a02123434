"""CONCUR's setting: a cap on conversations from the collapsed state, at a size of its own, against blocks by number."""

from dataclasses import replace

import numpy as np
import pytest
import shipped
import slow_prefix_cache
from session_shapes import settings_of
from small_runs import Case, run

from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.sessions import Burst
from kvplan.study.warm_cache import _collapsible
from kvplan.study.windows import life_s

PART = 20  # of `agents-collapse`: its load on as much of its memory, with iterations that are as long
END = 0.75  # of a run, from where what it serves counts


class Capped(slow_prefix_cache.Capped):
    """Blocks of these conversations, which share nothing, are known by their stream and place alone."""

    streams: np.ndarray

    def name(self, request: slow_prefix_cache.Request, place: int) -> int:
        return int(self.streams[request.index]) << 32 | place


@pytest.mark.nightly
def test_a_cap_serves_more_from_the_collapsed_state_by_runs_that_know_every_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = shipped.profile("agents-collapse")
    model, timing = profile.model, profile.model.timing
    model = replace(
        model,
        classes=tuple(replace(c, rate_rps=c.rate_rps / PART) for c in model.classes),
        timing=replace(timing, d1=PART * timing.d1, d2=PART * timing.d2, d3=PART * timing.d3),
        replica=replace(model.replica, memory_tokens=model.replica.memory_tokens // PART, block_tokens=64),
    )
    replica, end_s = _collapsible(model), 2 * life_s(model)
    assert replica is not None
    monkeypatch.setattr(slow_prefix_cache, "spelt", lambda *_: None)
    served, hits = [], []
    for cap in (1e6, 16.0):
        settings = Settings("session-cap", {"cap": (cap,)})
        requests = replica.job(profile.plan, settings, end_s, Burst(3 * replica.burst), 0).scenario.requests
        assert requests.prefixes is not None
        Capped.streams = requests.prefixes.stream
        parameters = {"prefix_caching": (1.0,), "cap": (cap,)}
        case = Case(requests, model.timing, model.replica, parameters, end_s)
        fast: Outcome = run("session-cap", case, compile=True)
        slow = Capped(requests, model.timing, model.replica, settings_of(case)).run(end_s)
        finish_s = np.array(slow.finish_s, dtype=np.float64)
        np.testing.assert_allclose(fast.finish_s, finish_s, rtol=1e-9)
        late = fast.first_token_s >= END * end_s
        served.append(np.count_nonzero(finish_s >= END * end_s))
        hits.append(fast.found.hit_tokens[late].sum() / requests.input_tokens[late].sum())
    assert served[1] > 1.05 * served[0]
    assert hits[0] < 0.1
    assert hits[1] > 0.5
