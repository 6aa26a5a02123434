"""Small random runs of every policy, and of one that nobody shipped."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import slow_simulator
from hypothesis import strategies as st
from strategies import one_class

from kvplan.model import Plan, Prefill, Replica, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.actions import admit, advance, evict_until_it_fits, fits
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.outcome import Ending, Found, Outcome, Series
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings, one_queue
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import NOBODY, Counter, List, Request, State, kernel

CLASSES = 3


@dataclass(frozen=True)
class Case:
    """A run to be made: what arrives, on what, under which parameters of the policy."""

    requests: Requests
    timing: Timing
    replica: Replica
    parameters: dict[str, tuple[float, ...]]
    horizon_s: float | None = None
    request_overhead_s: float = 0.0

    def kernel(self, policy: Policy, name: str, *, compile: bool = False) -> Outcome:
        names = tuple(f"class {i}" for i in range(CLASSES))
        model = ServingModel(tuple(one_class(1, 1, name=n) for n in names), self.timing, self.replica)
        scenario = Scenario(model, Plan(), self.requests, names)
        apart = (
            {"prefix_caching": (0.0,)} if "prefix_caching" in policy.parameters else {}
        )  # has tests of its own
        setup, _ = policy.prepare(scenario, Settings(name, apart | self.parameters))
        return engine.run(
            policy.form_batch,
            self.requests,
            self.timing,
            self.replica,
            setup,
            request_overhead_s=self.request_overhead_s,
            compile=compile,
            horizon_s=self.horizon_s,
        )

    def slow(self, name: str) -> slow_simulator.SlowResult:
        single = (
            "beta",
            "watermark",
            "admission",
            "budget",
            "alpha",
            "low",
            "high",
            "shortest",
            "conservativeness",
            "cap",
            "swa_full_tokens_ratio",
            "receive_every_steps",
            "prefill_interval",
            "batch_wait_iterations",
            "batch_wait_tokens",
        )
        given: dict[str, Any] = {k: v[0] if k in single else v for k, v in self.parameters.items()}
        if "assume" in given:
            given["assume"] = ("exact", "max")[int(given["assume"][0])]
        return slow_simulator.simulate(
            name,
            self.requests,
            self.timing,
            self.replica,
            given,
            horizon_s=self.horizon_s,
            request_overhead_s=self.request_overhead_s,
        )

    def some_request_never_fits(self, name: str) -> bool:
        """Even alone, at its longest."""
        block, memory = self.replica.block_tokens, self.replica.memory_tokens
        longest = self.requests.input_tokens + self.requests.decode_tokens
        if (
            name == "vllm"
        ):  # the last token's KV is never computed, and a block is reserved; a prompt has a token
            longest = np.maximum(self.requests.input_tokens, 1) + self.requests.decode_tokens
            return bool((-(-(longest - 1) // block) > memory // block - 1).any())
        if name in ("sarathi", "vllm-v0", "trtllm-max-utilization"):  # of the last token no KV is computed
            longest = np.maximum(self.requests.input_tokens, 1) + self.requests.decode_tokens - 1
        if name == "sglang":  # a token at least beside the prompt; of the last one no KV is computed
            longest = np.maximum(self.requests.input_tokens, 1) + np.maximum(
                self.requests.decode_tokens - 1, 1
            )
        if name == "trtllm-no-evict":  # what it could come to counts, not what it does
            max_new = np.array(self.parameters["max_new"])[self.requests.class_index]
            longest = np.maximum(self.requests.input_tokens, 1) + max_new
        if self.parameters.get("assume") == (1.0,):
            longest = self.requests.input_tokens + self.requests.decode_tokens.max()
        if "shortest" in self.parameters:
            longest = self.requests.input_tokens + np.maximum(
                self.requests.decode_tokens, self.parameters["shortest"]
            )
        return bool((-(-longest // block) > memory // block).any())


def run(name: str, case: Case, *, compile: bool = False) -> Outcome:
    return case.kernel(POLICIES[name], name, compile=compile)


def agree(name: str, case: Case, fast: Outcome) -> None:
    """With a simulator written without looking at this one."""
    slow = case.slow(name)
    assert (fast.ending is Ending.LIVELOCK) == slow.livelock
    assert fast.iterations == slow.iterations
    assert fast.series.stride == 1
    assert fast.series.kv_tokens.tolist() == slow.kv_per_iteration
    assert fast.series.waiting.tolist() == slow.waiting_per_iteration
    evictions = np.cumsum(slow.evicted_per_iteration, dtype=np.int64)
    assert fast.series.evictions.tolist() == evictions.tolist()
    assert fast.evictions.tolist() == slow.evictions
    for times, expected in (
        (fast.arrival_s, slow.arrival_s),
        (fast.first_token_s, slow.first_token_s),
        (fast.finish_s, slow.finish_s),
        (fast.end_s, slow.end_s),
    ):
        np.testing.assert_allclose(times, np.array(expected, dtype=np.float64), rtol=1e-9)
    assert fast.recomputed_tokens == slow.recomputed_tokens
    assert fast.computed_tokens == slow.computed_tokens
    assert fast.prefill_peak == max(slow.prefill_per_iteration, default=0)
    assert fast.batch_peak == max(slow.sequences_per_iteration, default=0)
    for latency, until in ((fast.ttft_s, slow.first_token_s), (fast.e2e_s, slow.finish_s)):
        engine_s = np.array(until, dtype=np.float64) - np.array(slow.arrival_s, dtype=np.float64)
        np.testing.assert_allclose(latency, engine_s + case.request_overhead_s, rtol=1e-9, atol=1e-9)


GAPS = st.sampled_from([0.0, 0.0, 0.0, 0.25, 1.0, 2.7, 30.0])
ROW = st.tuples(
    st.integers(0, 9), st.integers(1, 9), st.integers(0, CLASSES - 1), GAPS
)  # input, decode, class, seconds
ROWS = st.lists(ROW, min_size=1, max_size=14) | st.lists(ROW, min_size=7, max_size=14)
TIMINGS = st.builds(
    Timing,
    d0=st.sampled_from([1.0, 0.5, 0.3]),
    d1=st.sampled_from([0.0, 0.01]),
    d2=st.sampled_from([0.0, 0.02]),
    d3=st.sampled_from([0.0, 0.03]),
    d6=st.sampled_from([0.0, 0.001]),
)
REPLICAS = st.builds(
    Replica,
    memory_tokens=st.integers(1, 40) | st.integers(1, 120),
    block_tokens=st.integers(1, 5),
    prefill=st.sampled_from(Prefill),
    max_num_seqs=st.none() | st.integers(1, 6),
    max_num_batched_tokens=st.none() | st.integers(1, 12),
)
CLIENTS = st.none() | st.integers(1, 5)
OVERHEADS = st.sampled_from([0.0, 0.0, 0.4, 2.0])
HORIZONS = st.none() | st.floats(0.0, 40.0)
THRESHOLDS = st.tuples(*[st.integers(1, 4)] * CLASSES)
LONGEST = st.tuples(*[st.integers(9, 12)] * CLASSES)  # tokens; no request generates more
BATCH_WAIT = {
    "batch_wait_iterations": st.tuples(st.sampled_from([0, 1, 3])),
    "batch_wait_tokens": st.tuples(st.sampled_from([0, 4, 9, 30])),
}
PARAMETERS: dict[str, st.SearchStrategy[dict[str, tuple[float, ...]]]] = {
    "rate-limited": st.fixed_dictionaries(
        {"beta": st.tuples(st.sampled_from([0.001, 0.07, 0.125, 0.3, 0.5, 0.8, 1.0, 1.7, 3.0]))}
    ),
    "vllm": st.fixed_dictionaries(
        {
            "watermark": st.tuples(st.sampled_from([0.0, 0.05, 0.3])),
            "admission": st.tuples(st.sampled_from([0.0, 1.0])),
        }
    ),
    "sglang": st.fixed_dictionaries(
        {
            "conservativeness": st.tuples(st.sampled_from([0.0, 0.3, 1.0, 1.5])),
            "max_new": LONGEST,
            "receive_every_steps": st.tuples(st.sampled_from([1, 1, 2, 5])),
            "prefill_interval": st.tuples(st.sampled_from([1, 1, 2, 4])),
        }
    ),
    "sarathi": st.just({})
    | st.fixed_dictionaries(
        {"cap": st.tuples(st.sampled_from([0.001, 0.07, 0.125, 0.3, 0.5, 1.0, 1.7, 3.0]))}
    ),
    "vllm-v0": st.fixed_dictionaries({"watermark": st.tuples(st.sampled_from([0.0, 0.05, 0.3]))}),
    "trtllm-no-evict": st.fixed_dictionaries({"max_new": LONGEST} | BATCH_WAIT),
    "trtllm-max-utilization": st.fixed_dictionaries(BATCH_WAIT),
    "wait": st.fixed_dictionaries({"thresholds": THRESHOLDS}),
    "nested-wait": st.builds(
        lambda boundaries, n: {"boundaries": tuple(sorted(boundaries)), "thresholds": n[: len(boundaries)]},
        st.sets(st.integers(1, 9), min_size=1, max_size=3),
        THRESHOLDS,
    ),
    "mc": st.fixed_dictionaries({"assume": st.tuples(st.sampled_from([0.0, 1.0]))}),
    "a-min": st.fixed_dictionaries({"shortest": st.tuples(st.integers(1, 4))}),
    "flow": st.fixed_dictionaries({"budgets": THRESHOLDS}),
    "flow-unknown": st.fixed_dictionaries(
        {"budget": st.tuples(st.integers(1, 5) | st.sampled_from([0.001, 0.07, 0.3, 0.5, 1.7]))}
    ),
    "adaptive": st.fixed_dictionaries(
        {
            "budget": st.tuples(st.integers(1, 3) | st.sampled_from([0.07, 0.5])),
            "low": st.tuples(st.sampled_from([0.0, 0.3, 0.5])),
            "high": st.tuples(st.sampled_from([0.6, 0.9, 1.0])),
        }
    ),
    "alpha-protection": st.fixed_dictionaries(
        {"alpha": st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.7]))}
    ),
}


@st.composite
def cases(draw: st.DrawFn, name: str, *, horizon: bool = True, possible: bool = False) -> Case:
    """A few requests with everything that has made schedulers disagree.

    Bursts, ties and gaps; empty prompts and single tokens; memory from too small to ample; engine limits that bind;
    clients that wait for answers. `possible`: every request fits into memory when alone.
    """
    inputs, decode, kinds, gaps = (np.array(column) for column in zip(*draw(ROWS), strict=True))
    clients = draw(CLIENTS)
    arrivals = np.cumsum(gaps) if clients is None else np.zeros(gaps.size)
    replica, parameters = draw(REPLICAS), draw(PARAMETERS.get(name, st.just({})))
    if possible:
        longest = max(*parameters.get("max_new", ()), *parameters.get("shortest", ()), int(decode.max()), 1)
        enough = int(np.maximum(inputs, 1).max() + longest + 2 * replica.block_tokens)
        replica = replace(replica, memory_tokens=max(replica.memory_tokens, enough))
    end = draw(HORIZONS) if horizon else None
    more_later = end is not None and clients is None and draw(st.booleans())
    return Case(
        Requests(arrivals, inputs, decode, kinds, clients, more_later, at_once=draw(st.booleans())),
        draw(TIMINGS),
        replica,
        parameters,
        end,
        draw(OVERHEADS),
    )


def bytes_of(outcome: Outcome) -> list[Any]:
    """Everything in an outcome, to the bit."""

    def plain(value: Any) -> Any:
        if isinstance(value, Series | Found):
            return [plain(getattr(value, f.name)) for f in fields(value)]
        return (str(value.dtype), value.tobytes()) if isinstance(value, np.ndarray) else value

    return [plain(getattr(outcome, f.name)) for f in fields(outcome)]


@kernel
def at_most_two(s: State) -> None:
    """Greedy, with no more than two residents."""
    advance(s, 0)
    evict_until_it_fits(s)
    while s.counter[Counter.RESIDENT] < 2:
        request = s.list[0, List.HEAD]
        if request == NOBODY or not fits(s, s.request[request, Request.FIRST_WEIGHT]):
            return
        admit(s, request, 0)


def prepare_at_most_two(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    return one_queue(scenario.requests), {}


PAIRS = Policy("pairs", "greedy for two", prepare_at_most_two, at_most_two)
