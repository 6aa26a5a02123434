"""The simulator against an independent slow one, and the invariants that every policy keeps, on random requests."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import slow_simulator
from hypothesis import given
from hypothesis import strategies as st
from strategies import one_class
from tiers import examples

from kvplan.model import Plan, Prefill, Replica, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.actions import admit, advance, evict_until_it_fits, fits, kernel
from kvplan.simulation.outcome import Ending, Outcome, Series
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings, one_queue
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import FIRST_WEIGHT, HEAD, NOBODY, RESIDENT, Setup, State

CLASSES = 3
ENGINES = [p.name for p in POLICIES.values() if p.engine]
MAY_HANG = [p.name for p in POLICIES.values() if p.may_livelock]
# a parameter of those that know decode lengths may say that they do not
BLIND = [p.name for p in POLICIES.values() if p.parameters or not p.knows_lengths]
every_policy = pytest.mark.parametrize("name", list(POLICIES))


@dataclass(frozen=True)
class Case:
    """A run to be made: what arrives, on what, under which parameters of the policy."""

    requests: Requests
    timing: Timing
    replica: Replica
    parameters: dict[str, tuple[float, ...]]
    horizon_s: float | None = None

    def kernel(self, policy: Policy, name: str, *, compile: bool = False) -> Outcome:
        names = tuple(f"class {i}" for i in range(CLASSES))
        model = ServingModel(tuple(one_class(1, 1, name=n) for n in names), self.timing, self.replica)
        scenario = Scenario(model, Plan(), self.requests, names)
        setup, _ = policy.prepare(scenario, Settings(name, self.parameters))
        return engine.run(
            policy.form_batch,
            self.requests,
            self.timing,
            self.replica,
            setup,
            compile=compile,
            horizon_s=self.horizon_s,
        )

    def slow(self, name: str) -> slow_simulator.SlowResult:
        single = ("beta", "watermark", "budget", "alpha", "shortest", "conservativeness", "cap")
        given: dict[str, Any] = {k: v[0] if k in single else v for k, v in self.parameters.items()}
        if "assume" in given:
            given["assume"] = ("exact", "max")[int(given["assume"][0])]
        return slow_simulator.simulate(
            name, self.requests, self.timing, self.replica, given, horizon_s=self.horizon_s
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
        if name in ("sarathi", "vllm-v0"):  # of the last token no KV is computed
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


# ------------------------------------------------------------------------------------------------ random runs


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
HORIZONS = st.none() | st.floats(0.0, 40.0)
THRESHOLDS = st.tuples(*[st.integers(1, 4)] * CLASSES)
LONGEST = st.tuples(*[st.integers(9, 12)] * CLASSES)  # tokens; no request generates more
PARAMETERS: dict[str, st.SearchStrategy[dict[str, tuple[float, ...]]]] = {
    "rate-limited": st.fixed_dictionaries(
        {"beta": st.tuples(st.sampled_from([0.001, 0.07, 0.125, 0.3, 0.5, 0.8, 1.0, 1.7, 3.0]))}
    ),
    "vllm": st.fixed_dictionaries({"watermark": st.tuples(st.sampled_from([0.0, 0.05, 0.3]))}),
    "sglang": st.fixed_dictionaries(
        {"conservativeness": st.tuples(st.sampled_from([0.0, 0.3, 1.0, 1.5])), "max_new": LONGEST}
    ),
    "sarathi": st.just({})
    | st.fixed_dictionaries(
        {"cap": st.tuples(st.sampled_from([0.001, 0.07, 0.125, 0.3, 0.5, 1.0, 1.7, 3.0]))}
    ),
    "vllm-v0": st.fixed_dictionaries({"watermark": st.tuples(st.sampled_from([0.0, 0.05, 0.3]))}),
    "trtllm-no-evict": st.fixed_dictionaries({"max_new": LONGEST}),
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
    nothing_to_set = name not in POLICIES or not POLICIES[name].parameters
    replica, parameters = draw(REPLICAS), {} if nothing_to_set else draw(PARAMETERS[name])
    if possible:
        longest = max(*parameters.get("max_new", ()), *parameters.get("shortest", ()), int(decode.max()), 1)
        enough = int(np.maximum(inputs, 1).max() + longest + 2 * replica.block_tokens)
        replica = replace(replica, memory_tokens=max(replica.memory_tokens, enough))
    end = draw(HORIZONS) if horizon else None
    more_later = end is not None and clients is None and draw(st.booleans())
    return Case(
        Requests(arrivals, inputs, decode, kinds, clients, more_later),
        draw(TIMINGS),
        replica,
        parameters,
        end,
    )


def bytes_of(outcome: Outcome) -> list[Any]:
    """Everything in an outcome, to the bit."""

    def plain(value: Any) -> Any:
        if isinstance(value, Series):
            return [plain(getattr(value, f.name)) for f in fields(value)]
        return (str(value.dtype), value.tobytes()) if isinstance(value, np.ndarray) else value

    return [plain(getattr(outcome, f.name)) for f in fields(outcome)]


def happened(times: np.ndarray, until_s: float) -> np.ndarray:
    """Times up to and including `until_s`; NaN for those after it."""
    return np.where(times <= until_s, times, np.nan)


# -------------------------------------------------------------------------------------------- a second opinion


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


LONG_ROW = st.tuples(st.integers(1, 3000), st.integers(1, 30), st.integers(0, CLASSES - 1), GAPS)


@given(
    rows=st.lists(LONG_ROW, min_size=4, max_size=14),
    longest=st.tuples(*[st.sampled_from([30, 4090, 4100, 4110, 9000])] * CLASSES),
    memory=st.integers(3100, 25_000),
    batched=st.sampled_from([None, 500, 2000]),
    conservativeness=st.sampled_from([0.3, 1.0, 1.5]),
)
def test_sglang_looks_no_further_ahead_than_4096_tokens(
    rows: list[tuple[int, int, int, float]],
    longest: tuple[int, ...],
    memory: int,
    batched: int | None,
    conservativeness: float,
) -> None:
    """Some start beyond and come within while they run, are done before, or are retracted."""
    inputs, decode, kinds, gaps = (np.array(column) for column in zip(*rows, strict=True))
    requests = Requests(np.cumsum(gaps), inputs, decode, kinds)
    replica = Replica(memory, block_tokens=16, max_num_batched_tokens=batched)
    case = Case(requests, Timing(1.0), replica, {"conservativeness": (conservativeness,), "max_new": longest})
    agree("sglang", case, run("sglang", case))


@pytest.mark.parametrize("batched", [None, 7])
@pytest.mark.parametrize("conservativeness", [0.0, 0.3])
def test_sglang_retracts_among_equals(conservativeness: float, batched: int | None) -> None:
    """Inputs and outputs are often equal, so that the order of admission decides; the longest outputs are far off."""
    evictions = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        kinds = rng.integers(0, CLASSES, 60)
        requests = Requests(np.zeros(60), rng.integers(4, 6, 60), rng.integers(30, 60, 60), kinds)
        parameters = {"conservativeness": (conservativeness,), "max_new": (60.0, 70.0, 90.0)}
        replica = Replica(400, max_num_batched_tokens=batched)
        case = Case(requests, Timing(1.0), replica, parameters)
        outcome = run("sglang", case)
        evictions += int(outcome.evictions.sum())
        agree("sglang", case, outcome)
    assert evictions >= 10


def test_the_share_that_sglang_keeps_decays_for_600_iterations() -> None:
    """One request runs for long, and others arrive that have to wait until less is kept for it; or for another."""
    arrivals = Requests(
        np.array([0.0, *np.arange(0.5, 1000, 60)]),
        np.full(18, 10),
        np.array([1000, *[3, 40] * 8, 3]),
        np.zeros(18, dtype=np.int64),
    )
    for memory in (1700, 2060, 2300):
        case = Case(
            arrivals, Timing(1.0), Replica(memory), {"conservativeness": (1.0,), "max_new": (1000,) * CLASSES}
        )
        agree("sglang", case, run("sglang", case))


# -------------------------------------------------------------------------------------------------- invariants


@every_policy
@examples(40)
@given(data=st.data())
def test_a_run_keeps_every_invariant(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(name))
    outcome = run(name, case)
    for invariant in (agree, conserve, fit, end):
        invariant(name, case, outcome)
    assert bytes_of(run(name, case)) == bytes_of(outcome)  # the same requests, the same run


def conserve(name: str, case: Case, outcome: Outcome) -> None:
    """Whoever has arrived waits or runs or is done."""
    series = outcome.series
    completed = np.array([(outcome.finish_s <= t).sum() for t in series.time_s], dtype=np.int64)
    assert series.completions[1:].tolist() == completed[:-1].tolist()  # recorded before the batch's own leave
    begins = np.concatenate([[0.0], series.time_s])[:-1]
    for k, (waiting, running) in enumerate(zip(series.waiting, series.running, strict=True)):
        present = waiting + running + series.completions[k]
        assert (outcome.arrival_s <= begins[k]).sum() <= present
        assert present <= (outcome.arrival_s < series.time_s[k]).sum()
    if outcome.ending is Ending.FINISHED:
        assert np.isfinite(outcome.finish_s).all()
    done = np.isfinite(outcome.finish_s)
    assert (outcome.arrival_s[done] < outcome.first_token_s[done]).all()
    assert (outcome.first_token_s[done] <= outcome.finish_s[done]).all()
    single = done & (case.requests.decode_tokens == 1)
    assert outcome.first_token_s[single].tolist() == outcome.finish_s[single].tolist()


def fit(name: str, case: Case, outcome: Outcome) -> None:
    """No batch holds more than there is."""
    block = case.replica.block_tokens
    blocks = case.replica.memory_tokens // block - (name == "vllm")
    held = outcome.series.kv_tokens
    assert (held <= blocks * block).all()
    assert (held % block == 0).all()
    assert outcome.kv_peak == held.max(initial=0)
    assert outcome.kv_sum == held.sum()
    assert outcome.kv_histogram.sum() == outcome.iterations


@every_policy
@given(data=st.data())
def test_no_lost_work_silently_evicted_tokens_are_counted(name: str, data: st.DataObject) -> None:
    """An evicted request held something, but for empty prompts before their first step; all that is done twice shows.

    Of runs that end, what was computed is what had to be, and what was lost.
    """
    case = data.draw(cases(name, possible=True, horizon=False))
    outcome = run(name, case)
    requests, replica = case.requests, case.replica
    assert outcome.ending is Ending.FINISHED or name in MAY_HANG
    evicted = int(outcome.evictions.sum())
    if evicted == 0:
        assert outcome.recomputed_tokens == 0
    elif name in ENGINES or (requests.input_tokens > 0).all():
        assert outcome.recomputed_tokens >= evicted
    if (
        name not in ENGINES and outcome.ending is Ending.FINISHED
    ):  # in engines a chunk of a single token is not counted
        ready = replica.prefill is Prefill.DISAGGREGATED
        prompts = 0 if ready else int(requests.input_tokens.sum())
        again = int((requests.input_tokens * outcome.evictions).sum()) if ready else 0
        # what an evicted request held is its prompt and what it had emitted; ready-made prompts are computed only then
        lost = outcome.recomputed_tokens - again if ready else outcome.recomputed_tokens
        assert outcome.computed_tokens == prompts + int(requests.decode_tokens.sum()) + lost + again


@pytest.mark.parametrize("name", BLIND)
@given(data=st.data())
def test_causality_a_decode_length_shows_only_when_it_is_reached(name: str, data: st.DataObject) -> None:
    """One request is made longer: until its shorter version is done, nothing is different."""
    case = data.draw(cases(name))
    if "max_new" in case.parameters:  # declared, and enough for the longer one
        case = replace(case, parameters={**case.parameters, "max_new": (29.0,) * CLASSES})
    size = case.requests.decode_tokens.size
    one = data.draw(st.integers(0, size - 1))
    decode = case.requests.decode_tokens.copy()
    if name == "mc":  # what it knows of unknown lengths is the longest
        case = replace(case, parameters={"assume": (1.0,)})
        decode[one] = data.draw(st.integers(decode[one], decode.max()))
    else:
        decode[one] += data.draw(st.integers(1, 20))
    short = run(name, case)
    long = run(name, replace(case, requests=replace(case.requests, decode_tokens=decode)))

    until = min(short.end_s, long.end_s, np.nan_to_num(short.finish_s[one], nan=np.inf))
    for column in ("arrival_s", "first_token_s", "finish_s"):
        before = np.arange(size) != one if column == "finish_s" else np.full(size, True)
        # in a closed loop the client of a request that is done sends the next one
        before &= (getattr(short, column) < until) | (getattr(long, column) < until)
        a, b = getattr(short, column)[before], getattr(long, column)[before]
        assert a.tolist() == b.tolist()
    rows = int((short.series.time_s <= until).sum())
    assert rows == (long.series.time_s <= until).sum()
    for column in ("time_s", "kv_tokens", "waiting", "running", "evictions", "completions"):
        a, b = getattr(short.series, column)[:rows], getattr(long.series, column)[:rows]
        assert a.tolist() == b.tolist()


def end(name: str, case: Case, outcome: Outcome) -> None:
    """Every run does, and stops moving only where a request never fits."""
    if case.horizon_s is not None:
        assert outcome.end_s <= case.horizon_s
    if outcome.ending is Ending.HORIZON:
        assert outcome.end_s == case.horizon_s
    else:
        stuck = case.some_request_never_fits(name) or (name in MAY_HANG and outcome.ending is Ending.LIVELOCK)
        assert outcome.ending is (Ending.LIVELOCK if stuck else Ending.FINISHED)


# ------------------------------------------------------------------------------- a policy that nobody shipped


@kernel
def at_most_two(s: State) -> None:
    """Greedy, with no more than two residents."""
    advance(s, 0)
    evict_until_it_fits(s)
    while s.counter[RESIDENT] < 2:
        request = s.list[0, HEAD]
        if request == NOBODY or not fits(s, s.request[request, FIRST_WEIGHT]):
            return
        admit(s, request, 0)


def prepare_at_most_two(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    return one_queue(scenario.requests), {}


PAIRS = Policy("pairs", "greedy for two", prepare_at_most_two, at_most_two)


@given(case=cases("pairs", possible=True, horizon=False))
def test_a_further_policy_needs_nothing_of_the_package_but_its_actions(case: Case) -> None:
    outcome = case.kernel(PAIRS, "pairs")
    assert outcome.ending is Ending.FINISHED
    assert (outcome.series.running <= 2).all()
    assert outcome.kv_peak <= case.replica.memory_tokens


# ---------------------------------------------------------------------------------------------------- compiled


@pytest.mark.parametrize("name", [*POLICIES, "pairs"])
@given(data=st.data())
def test_compiled_and_plain_runs_leave_the_same_bytes(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(name))
    policy = POLICIES.get(name, PAIRS)
    assert bytes_of(case.kernel(policy, name, compile=True)) == bytes_of(case.kernel(policy, name))
