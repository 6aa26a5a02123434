"""The simulator against an independent slow one, and the invariants that every policy keeps, on random requests."""

from dataclasses import replace

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from small_runs import CLASSES, GAPS, PAIRS, Case, agree, bytes_of, cases, run
from tiers import examples

from kvplan.model import Prefill, Replica, Timing
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import Span

ENGINES = [p.name for p in POLICIES.values() if p.engine]
MAY_HANG = [p.name for p in POLICIES.values() if p.may_livelock]
# a parameter of those that know decode lengths may say that they do not
BLIND = [p.name for p in POLICIES.values() if "assume" in p.parameters or not p.knows_lengths]
every_policy = pytest.mark.parametrize("name", list(POLICIES))


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


@every("batched, gap_s", [(None, 2.0), (7, 0.0)])
@every("conservativeness", [0.0, 0.3])
def test_sglang_retracts_who_is_least_far(conservativeness: float, batched: int | None, gap_s: float) -> None:
    """Those who come at once are equally far, and mostly equally long, so that the order of admission decides.

    The longest outputs are far off.
    """
    evictions = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        kinds = rng.integers(0, CLASSES, 60)
        requests = Requests(gap_s * np.arange(60), rng.integers(4, 6, 60), rng.integers(30, 60, 60), kinds)
        parameters = {"conservativeness": (conservativeness,), "max_new": (60.0, 70.0, 90.0)}
        replica = Replica(400, max_num_batched_tokens=batched)
        case = Case(requests, Timing(1.0), replica, parameters)
        outcome = run("sglang", case)
        evictions += int(outcome.evictions.sum())
        agree("sglang", case, outcome)
    assert evictions >= 10


@every_policy
@examples(15)
@given(data=st.data())
def test_a_run_keeps_every_invariant(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(name))
    outcome = run(name, case)
    for invariant in (agree, conserve, fit, keep_limits, end):
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
        # an answer's next request comes while the iteration runs that begins as the answer ends
        came = np.less if case.requests.clients is not None else np.less_equal
        assert came(outcome.arrival_s, begins[k]).sum() <= present
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
    took = np.diff(outcome.series.busy_s, prepend=0.0)
    assert outcome.totals[Span.KV_S] == pytest.approx(held @ took, rel=1e-9)
    assert outcome.totals[Span.RUNNING_S] == pytest.approx(outcome.series.running @ took, rel=1e-9)
    assert outcome.totals[Span.WAITING_S] == pytest.approx(outcome.series.waiting @ took, rel=1e-9)
    assert outcome.kv_histogram.sum() == pytest.approx(outcome.busy_s * 1e9, abs=outcome.iterations)


def keep_limits(name: str, case: Case, outcome: Outcome) -> None:
    """No more run at once than the profile allows, where the policy's record says that it asks."""
    limit = case.replica.max_num_seqs
    if limit is not None and "max_num_seqs" in POLICIES[name].limits:
        assert (outcome.series.running <= limit).all()


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


@given(case=cases("pairs", possible=True, horizon=False))
def test_a_further_policy_needs_nothing_of_the_package_but_its_actions(case: Case) -> None:
    outcome = case.kernel(PAIRS, "pairs")
    assert outcome.ending is Ending.FINISHED
    assert (outcome.series.running <= 2).all()
    assert outcome.kv_peak <= case.replica.memory_tokens
