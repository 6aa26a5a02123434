"""What is said to remedy a requirement does, written into the profile's text; and nothing smaller does."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from every import every
from hypothesis import assume, given
from hypothesis import strategies as st
from tiers import examples

from kvplan.gate import check as checking
from kvplan.gate import remedy as searching
from kvplan.gate.check import Outcome
from kvplan.gate.judgement import Subject, holds
from kvplan.gate.remedy import MAX_FACTOR, Lever, Remedy
from kvplan.gate.requirement import parse
from kvplan.profile.reading import Profile, parse_profile
from kvplan.report.assembly import Analyses

NUMBERS = (
    "load.headroom >= {}",
    "load.offered_rps <= {}",
    "load.sustainable_rps >= {}",
    "load.work_rate < {}",
    "equilibrium.kv_utilization <= {}",
    "equilibrium.iteration_time_s <= {}",
    "equilibrium.requests_in_flight >= {}",
    "saturation.admissions_per_iteration > {}",
    "worst_cycle.throughput_rps >= {}",
    "rate_cap.per_second >= {}",
    "wait.kv_tokens <= {}",
    "wait.classes[0].mean_wait_bound_s <= {}",
)
WORDS = (
    "verdict.status == stable",
    "verdict.status != overloaded",
    "wait.fits == true",
    "verdict.binding != kv_memory",
    "verdict.binding != max_num_seqs",
    "verdict.binding != max_num_batched_tokens",
    "worst_cycle.kind == none",
)


@st.composite
def profiles(draw: st.DrawFn) -> str:
    """The text of a profile, its memory and rates given in each of the ways there are."""
    prefill = draw(st.sampled_from(["fused", "inline", "disaggregated"]))
    limits = "".join(
        f"\n{key} = {draw(st.integers(*span))}"
        for key, span in (("max_num_seqs", (1, 200)), ("max_num_batched_tokens", (400, 4000)))
        if draw(st.booleans())
    )
    block = draw(st.sampled_from([1, 16]))
    memory = draw(st.integers(20, 4000)) * 16 + 600
    gpu = (
        f"memory_tokens = {memory}"
        if draw(st.booleans())
        else f'memory = "{memory / 1000} MB"\nkv_bytes_per_token = 1000'
    )
    shared = draw(st.booleans())
    lines = [
        "schema = 1",
        'name = "random"',
        f'[gpu]\n{gpu}\nblock_tokens = {block}\nprefill = "{prefill}"{limits}',
        f'[timing]\nd0 = "{draw(st.integers(1, 50))} ms"\nd1 = "{draw(st.sampled_from([0, 0.1, 1]))} us"',
        f"[workload]\nrate = {draw(st.integers(1, 400)) / 4}" if shared else "",
    ]
    count = draw(st.integers(1, 3))
    for i in range(count):
        share = [[1.0], [0.5, 0.5], [0.25, 0.25, 0.5]][count - 1][i]
        traffic = f"share = {share}" if shared else f"rate = {draw(st.integers(1, 400)) / 8}"
        decode = draw(st.sampled_from(["20", "60", "{ 10 = 1, 30 = 2 }"]))
        prompt = draw(st.integers(1, 300))
        lines.append(f'[[classes]]\nname = "c{i}"\ninput = {prompt}\ndecode = {decode}\n{traffic}')
    return "\n".join(lines) + "\n"


def profile(text: str) -> Profile:
    return parse_profile(text.encode(), "random.toml")


def written(text: str, remedy: Remedy) -> str:
    """The profile with the values of a remedy put where the old ones stood, by hand."""
    for change in remedy.changes:
        after = f'"{change.after}"' if isinstance(change.after, str) else repr(change.after)
        *table, key = change.path
        if table[0] == "classes":
            parts = text.split("[[classes]]\n")
            parts[int(table[1]) + 1] = re.sub(
                rf"(?m)^{key} = .*$", f"{key} = {after}", parts[int(table[1]) + 1]
            )
            text = "[[classes]]\n".join(parts)
        else:
            text = re.sub(rf"(?ms)^(\[{table[0]}\]\n.*?^{key} = )[^\n]*$", rf"\g<1>{after}", text, count=1)
    return text


def outcome(text: str, *requirements: str) -> Outcome:
    return checking.check(profile(text), None, [parse(r) for r in requirements]).outcome


@pytest.mark.nightly
@given(text=profiles(), data=st.data())
@examples(3)
def test_a_suggested_remedy_applied_to_the_profile_passes(text: str, data: st.DataObject) -> None:
    template = data.draw(st.sampled_from(NUMBERS + WORDS))
    requirement = template.format(
        data.draw(st.sampled_from([0.001, 0.02, 0.2, 0.5, 0.9, 1, 3, 20, 500, 20000]))
    )
    found = checking.check(profile(text), None, [parse(requirement)])
    assume(found.outcome is Outcome.FAILED)
    sizes = [remedy.relative for remedy in found.results[0].remedies]
    assert sizes == sorted(sizes)
    for remedy in found.results[0].remedies:
        changed = written(text, remedy)
        assert changed != text
        assert outcome(changed, requirement) is Outcome.PASSED


LIMITED = """schema = 1
name = "limited"
timing = {{ d0 = "10 ms", d1 = "1 us" }}
classes = [{{ name = "a", input = 20, decode = 40, rate = {rate}.0 }}]
[gpu]
memory_tokens = 1_000_000
{key} = {limit}
"""


@given(
    key=st.sampled_from(["max_num_seqs", "max_num_batched_tokens"]),
    limit=st.integers(1, 300),
    rate=st.integers(1, 200),
)
def test_a_limit_that_binds_is_raised_to_what_the_formula_gives(key: str, limit: int, rate: int) -> None:
    """α <= B/(d0·need + B·Λ) turned round: B >= d0·need·α/(1 - α·Λ), in fractions.

    A request of 20 in and 40 out stays 40 iterations, computes 20 + 39 tokens, and reads 40·20 + 40·41/2 of them.
    """
    text = LIMITED.format(key=key, limit=limit, rate=rate)
    found = checking.check(profile(text), None, [parse("load.headroom >= 25%")])
    d0, wanted = Fraction(1, 100), rate * Fraction(5, 4)
    work = wanted * (40 * 20 + 40 * 41 // 2) / 10**6
    need = wanted * (40 if key == "max_num_seqs" else 59)
    least = -(-(d0 * need) // (1 - work))
    if found.outcome is Outcome.PASSED:
        assert limit >= least
        return
    by_lever = {remedy.lever.value: remedy for remedy in found.results[0].remedies}
    assert least <= by_lever[key].amount <= least + 1
    assert by_lever[key].changes[0].key == f"gpu.{key}"
    assert outcome(written(text, by_lever[key]), "load.headroom >= 25%") is Outcome.PASSED


@every(("rate", "limit"), [(37, 16), (38, None)])
def test_a_limit_is_lowered_where_that_excludes_evictions_and_serves_enough(
    rate: int, limit: int | None
) -> None:
    """1,000 tokens hold 16 requests of 60, which sustain 16/(0.4 + 16·0.00162) = 37.57 requests/s; memory 56.1."""
    text = LIMITED.format(key="max_num_seqs", limit=100, rate=rate).replace("1_000_000", "1_000")
    (result,) = checking.check(profile(text), None, [parse("worst_cycle.kind == none")]).results
    amounts = {remedy.lever: remedy.amount for remedy in result.remedies}
    assert amounts.get(Lever.MAX_NUM_SEQS) == limit


def test_a_budget_below_the_prompts_is_raised_no_further_than_it_takes() -> None:
    """Prompts of 20 come in parts of 7 before, and whole afterwards."""
    text, wanted = (
        LIMITED.format(key="max_num_batched_tokens", limit=7, rate=37),
        "load.sustainable_rps >= 500",
    )
    (result,) = checking.check(profile(text), None, [parse(wanted)]).results
    (budget,) = (r.amount for r in result.remedies if r.lever is Lever.MAX_NUM_BATCHED_TOKENS)
    enough, less = (
        LIMITED.format(key="max_num_batched_tokens", limit=n, rate=37) for n in (budget, budget - 1)
    )
    assert (outcome(enough, wanted), outcome(less, wanted)) == (Outcome.PASSED, Outcome.FAILED)


def with_memory(loaded: Profile, subject: Subject, more: float) -> Subject:
    """With so much more memory, in whole blocks, whatever one would write."""
    replica = loaded.model.replica
    blocks = math.ceil(replica.memory_tokens * (1 + more) / replica.block_tokens)
    larger = replace(replica, memory_tokens=blocks * replica.block_tokens)
    return Subject(Analyses(replace(loaded.model, replica=larger), loaded.plan))


def plainly(change: Callable[[float], Subject], requirement: str) -> float | None:
    """The first of the steps, each four times the one before, after which it holds."""
    steps = (MAX_FACTOR / 4**k for k in reversed(range(12)))
    return next((x for x in steps if holds(parse(requirement), change(x))), None)


@given(text=profiles(), data=st.data())
@examples(3)
def test_what_one_of_the_steps_remedies_is_found(text: str, data: st.DataObject) -> None:
    template = data.draw(st.sampled_from(NUMBERS + WORDS))
    requirement = template.format(
        data.draw(st.sampled_from([0.001, 0.02, 0.2, 0.5, 0.9, 1, 3, 20, 500, 20000]))
    )
    loaded = profile(text)
    subject = Subject(Analyses(loaded.model, loaded.plan))
    assume(not holds(parse(requirement), subject))
    found = {remedy.lever: remedy for remedy in searching.remedies(loaded, subject, [parse(requirement)])}
    for lever, change in (
        (Lever.RATE, lambda x: searching._with_rate(subject, 1 / (1 + x))),
        (Lever.MEMORY, lambda x: with_memory(loaded, subject, x)),
    ):
        step = plainly(change, requirement)
        if step is None:
            assert lever not in found
            continue
        assert lever in found
        size = step / (1 + step) if lever is Lever.RATE else step
        assert found[lever].relative <= size + 0.02 * (1 + size)  # rounded as one would write it


WINDOWED = LIMITED.format(key="max_num_seqs", limit=200, rate=350).replace("1_000_000", "24_000")
TWO = """schema = 1
name = "two"
gpu = { memory_tokens = 200_000 }
timing = { d0 = "10 ms", d1 = "1 us" }
[[classes]]
name = "a"
input = 200
decode = 40
rate = 80.0
[[classes]]
name = "b"
input = 100
decode = 60
rate = 5.0
"""


@every(
    ("text", "requirement", "lever", "least", "most"),
    [  # 24,000 tokens hold 400 requests of 60; 323.1 serve 350 requests/s, by the formula of the tests above
        (WINDOWED, "verdict.status == stable", Lever.MAX_NUM_SEQS, 324, 400),
        (WINDOWED, "verdict.recovers_up_to_rps >= 350", Lever.MAX_NUM_SEQS, 324, 400),
        # thresholds are 5, 3, 2, 1 as rates fall: 3 and 1 are as near to 2
        (TWO, "wait.thresholds[0] == 2", Lever.RATE, 40, 85),
    ],
)
def test_what_is_met_only_between_too_little_and_too_much_is_found(
    text: str, requirement: str, lever: Lever, least: float, most: float
) -> None:
    found = checking.check(profile(text), None, [parse(requirement)])
    remedies = {remedy.lever: remedy for remedy in found.results[0].remedies}
    assert lever in remedies
    assert least <= remedies[lever].amount <= most
    assert outcome(written(text, remedies[lever]), requirement) is Outcome.PASSED
