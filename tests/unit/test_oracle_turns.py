"""Conversations in the oracle, against the slow cache on small cases."""

from dataclasses import replace

import numpy as np
import pytest
import slow_prefix_cache
from oracle import Script, talk, tell

from kvplan.engine import Admission, Engine
from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.model.gaps import Exponential
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions
from kvplan.simulation.requests import Prefixes, Requests, Turns

LAW = Timing(0.01, 1e-6, 2e-5, 1e-4, 3e-4, 4e-5, 40)


def drawn(rng: np.random.Generator) -> tuple[ServingModel, Script]:
    """A small replica, and some conversations for it, or users who begin new ones."""
    turns = rng.integers(1, 6, 12)
    n, first = int(turns.sum()), np.cumsum(turns) - turns
    session = np.repeat(np.arange(turns.size), turns)
    shared = int(rng.choice([0, 13, 40]))
    decodes, added = rng.integers(1, 30, n), rng.integers(1, 40, n)
    added[first] += shared
    before = np.cumsum(added) + np.cumsum(decodes) - decodes
    inputs = before - (before - added)[first][session]
    following, arrivals = np.arange(n) + 1, np.full(n, np.nan)
    following[first + turns - 1] = -1
    arrivals[first] = np.cumsum(rng.exponential(rng.choice([0.0, 0.1]), turns.size))
    if rng.random() < 0.5:
        users = int(rng.integers(1, 6))
        following[(first + turns - 1)[:-users]] = first[users:]
        arrivals[first[users:]] = np.nan
    block = int(rng.choice([1, 4, 16]))
    memory = int((inputs + decodes).max() * rng.uniform(1, 2)) + 2 * block
    replica = Replica(memory, block, max_num_seqs=int(rng.integers(3, 12)), max_num_batched_tokens=50)
    replica = replace(replica, prefix_caching=bool(rng.random() < 0.9))
    engine = Engine(admission=Admission(rng.choice(list(Admission))))
    model = ServingModel((RequestClass("a", 1, (1,), (1.0,), 1.0),), LAW, replica, engine=engine)
    think = rng.exponential(rng.choice([0.05, 1.0]), n)
    return model, Script(arrivals, inputs, decodes, session, following, think, shared)


def test_turns_fare_as_in_the_slow_cache() -> None:
    evictions, hits = 0, 0
    for seed in range(25):
        model, turns = drawn(np.random.default_rng(seed))
        told = tell(model, turns)
        order = np.argsort(turns.arrivals, kind="stable")  # those that come unasked first
        place = np.append(np.argsort(order), -1)
        count = int(turns.session.max()) + 1
        first_chunk = model.engine.admission is Admission.FIRST_CHUNK
        settings = {"prefix_caching": model.replica.prefix_caching, "admission": int(first_chunk)}
        slow, pool = slow_prefix_cache.simulate(
            Requests(
                turns.arrivals[order], turns.inputs[order], turns.decodes[order], np.zeros(order.size, np.int64),
                prefixes=Prefixes(
                    1 + turns.session[order], np.append(-1, np.zeros(count, np.int64)),
                    np.append(turns.shared, np.zeros(count, np.int64)),
                ),
                turns=Turns(place[turns.following[order]], turns.think_s[order], np.full(order.size, -1)),
            ),
            LAW, model.replica, settings,
        )  # fmt: skip
        assert told.evicted[order].tolist() == slow.evictions, seed
        assert told.found[order].tolist() == pool.hits, seed
        for ours, theirs in ((told.first_s, slow.first_token_s), (told.finish_s, slow.finish_s)):
            np.testing.assert_allclose(ours[order], np.array(theirs, float), rtol=1e-9)
        evictions, hits = evictions + sum(slow.evictions), hits + sum(pool.hits)
    assert evictions > 50
    assert hits > 2_000


def test_conversations_have_the_lengths_of_their_law() -> None:
    """One user on a free replica: no waits, all but what is new is found, and a turn takes as long as its answer."""
    lengths = Lengths.of({40: 1.0})
    law = Sessions(
        lengths, lengths, Lengths.of({10: 1.0}), Lengths.of({4: 1.0}), Exponential(0.4), 16, users=1
    )
    one = RequestClass("a", 131, (10,), (1.0,), 2.0, sessions=law)
    seen = talk(ServingModel((one,), Timing(0.01), Replica(100_000, 1)), requests=4_000)
    assert seen.figures["ttft_s.p99"] == pytest.approx(0.01)
    assert seen.figures["e2e_s.mean"] == pytest.approx(0.1)
    assert seen.completed == pytest.approx(4_000, rel=0.06)  # a turn in .5 s
    assert seen.hit_ratio == pytest.approx((16 + 65 + 115 + 165) / 524, rel=0.02)
