"""The records of the policies: none is missing, and what they say of a policy is what it does."""

from dataclasses import replace
from pkgutil import iter_modules

import numpy as np
import pytest
import slow_simulator
from every import every
from strategies import one_class

from kvplan.errors import UsageError
from kvplan.model import Plan, Replica, ServingModel, Timing
from kvplan.model.drafts import Drafts
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.simulation import engine, policies
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.parameters import LIMITS
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests

SHARED = {"parameters", "protocol"}
GIVEN = {  # where the default follows from decode lengths or the plan, or keeps so much room that nothing happens
    "sglang": {"max_new": (30,), "conservativeness": (0,)},
    "trtllm-no-evict": {"max_new": (30,)},
    "a-min": {"shortest": (1,)},
    "rate-limited": {"beta": (3,)},
    "flow": {"budgets": (3,)},
    "flow-unknown": {"budget": (3,)},
    "adaptive": {"budget": (3,)},
    "wait": {"thresholds": (2,)},
    "nested-wait": {"boundaries": (4, 9), "thresholds": (2, 2)},
}
ROOMY = Replica(120, block_tokens=2)
TIGHT = Replica(40, block_tokens=2)
every_policy = every("name", list(POLICIES))


def crowd(decode: list[int], arrival_s: list[float] | None = None) -> Requests:
    """Prompts of four tokens, all there at the beginning unless it says when."""
    size = len(decode)
    arrivals = np.array(arrival_s or [0.0] * size)
    return Requests(arrivals, np.full(size, 4), np.array(decode), np.zeros(size, dtype=np.int64))


LENGTHS = [5, 9, 2, 7, 9, 3, 8, 6, 9, 9, 4, 8]


def run(name: str, requests: Requests, replica: Replica = TIGHT) -> Outcome:
    timing = Timing(1.0, d1=0.01, d2=0.02)
    scenario = Scenario(ServingModel((one_class(1, 1),), timing, replica), Plan(), requests, ("trace",))
    setup, _ = POLICIES[name].prepare(scenario, Settings(name, GIVEN.get(name, {})))
    return engine.run(POLICIES[name].form_batch, requests, timing, replica, setup, compile=False)


WINDOW, FULL = Layers(Attention.WINDOW, 5, 64, 10), Layers(Attention.FULL, 1, 64)


@every(
    ("layers", "given", "message"),
    [
        ((FULL, Layers(Attention.STATE, 2, 64)), {}, "only full attention beside windows of one size"),
        ((FULL, Layers(Attention.CHUNK, 2, 64, 10)), {}, "only full attention beside windows of one size"),
        ((FULL, WINDOW, Layers(Attention.WINDOW, 2, 64, 20)), {}, "only full attention beside windows"),
        ((WINDOW,), {}, "only full attention beside windows of one size"),
        ((FULL, WINDOW), {"swa_full_tokens_ratio": (0.0,)}, "ratio = 0: a share of the tokens, above 0 and"),
        (
            (FULL, WINDOW),
            {"swa_full_tokens_ratio": (1.5,)},
            "ratio = 1.5: a share of the tokens, above 0 and",
        ),
        (
            (FULL, WINDOW),
            {"shed_after": (1.0,)},
            "shed_after: not modelled beside drafts or layers of several",
        ),
        ((FULL, WINDOW), {"prefix_caching": (1.0,)}, "a prefix cache beside layers of several kinds is not"),
        ((), {"swa_full_tokens_ratio": (0.5,)}, "ratio = 0.5: the profile has no layers with a window"),
    ],
)
def test_what_sglang_has_no_pools_for_is_refused(
    layers: tuple[Layers, ...], given: dict[str, tuple[float, ...]], message: str
) -> None:
    layout = KvLayout(layers, 16) if layers else None
    replica = Replica(1600, block_tokens=16, layout=layout)
    model = ServingModel((one_class(1, 1),), Timing(1.0), replica)
    scenario = Scenario(model, Plan(), crowd(LENGTHS), ("trace",))
    with pytest.raises(UsageError, match=message):
        POLICIES["sglang"].prepare(scenario, Settings("sglang", given))


def test_drafts_and_layers_are_refused_where_they_are_not_modelled() -> None:
    alone = ServingModel((one_class(1, 1),), Timing(1.0), ROOMY)
    drafting = replace(alone, drafts=Drafts(2, (0.7, 0.5)))
    layered = replace(alone, replica=Replica(1600, 16, layout=KvLayout((FULL, WINDOW), 16)))
    for name, model, said in (
        ("sglang", drafting, "drafts; there are greedy, rate-limited, vllm"),
        ("mc", layered, "layers of several kinds; there are greedy, rate-limited, sglang, vllm"),
    ):
        job = Job(Settings(name, {}), Scenario(model, Plan(), crowd(LENGTHS), ("trace",)))
        with pytest.raises(UsageError, match=f"policy {name}: not modelled beside {said}$"):
            job.prepare()


def test_every_module_is_a_policy_under_its_own_name_with_a_second_opinion() -> None:
    modules = {found.name.replace("_", "-") for found in iter_modules(policies.__path__)} - SHARED
    assert set(POLICIES) == modules
    assert set(slow_simulator.POLICIES) == modules


@every_policy
def test_every_policy_says_which_limits_it_keeps(name: str) -> None:
    """The token budget binds engines alone, and WAIT, which has requests wait while they hold memory, neither."""
    policy = POLICIES[name]
    expected = set(LIMITS) if policy.engine else set() if policy.gathers else {"max_num_seqs"}
    assert policy.limits == expected


@every_policy
def test_lengths_show_beforehand_to_policies_that_know_them(name: str) -> None:
    """Until the first request is done, batches are the same whatever is still to come of the others."""
    alike, longer = (run(name, crowd([6, *[d] * 11])).series for d in (6, 25))
    rows = min((one.completions == 0).sum() for one in (alike, longer))
    assert rows >= 4
    same = alike.kv_tokens[:rows].tolist() == longer.kv_tokens[:rows].tolist()
    assert same is not POLICIES[name].knows_lengths
