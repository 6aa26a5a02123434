"""A limit on the tokens of a request: what of single requests it rejects, and what becomes of conversations."""

import math
import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st

from kvplan.analysis.equilibrium import per_request
from kvplan.errors import ProfileError, UsageError
from kvplan.model import Prefill, Recorded
from kvplan.model.context import limited
from kvplan.model.gaps import Exponential
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions
from kvplan.model.streams import session_stream
from kvplan.profile.reading import Profile, from_tables
from kvplan.report.blocks import context
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.sessions import population, stream_of_sessions

REPLICA = {"gpu": {"memory_tokens": 100_000, "block_tokens": 4}, "timing": {"d0": "10 ms", "d2": "20 us"}}
CHAT = Sessions(
    first=Lengths.uniform(10, 60),
    user=Lengths.of({5: 1.0, 30: 1.0}),
    decode=Lengths.uniform(3, 40),
    turns=Lengths.uniform(1, 12),
    think=Exponential(4.0),
    shared=20,
)
MOST, CONTEXTS = 120, ("end", "slide", 0.3)


def profile(most: int | None, *classes: dict[str, Any], **tables: Any) -> Profile:
    engine = {} if most is None else {"engine": {"max_model_len": most}}
    return from_tables({"schema": 1, "name": "a", **REPLICA, **engine, "classes": [*classes], **tables}, "a")


def one(name: str = "a", rate: float = 1.0, **lengths: Any) -> dict[str, Any]:
    return {"name": name, "rate": rate, **lengths}


# ------------------------------------------------------------------------------------------ single requests

SHORT = {"10": 2, "40": 1, "90": 1}  # lengths and weights, in fractions below
LONG = {"5": 3, "30": 4, "70": 1}


@every("most", (200, 160, 159, 119, 95, 40, 16))
def test_requests_beyond_the_limit_are_rejected_to_the_fraction(most: int) -> None:
    model = profile(most, one(input=SHORT, decode=LONG, rate=3.0)).model
    pairs = {(int(s), int(d)): Fraction(p * q, 32) for s, p in SHORT.items() for d, q in LONG.items()}
    kept = {pair: p for pair, p in pairs.items() if sum(pair) <= most}
    share = sum(kept.values())
    found = context(model)
    assert found.rejected_share == pytest.approx(float(1 - share), abs=1e-15)
    assert model.total_rate_rps == pytest.approx(3 * float(share), rel=1e-14)
    assert (found.limit, found.largest) == (most, max(map(sum, kept)))
    assert found.mean == pytest.approx(
        float(sum(p * sum(pair) for pair, p in kept.items()) / share), rel=1e-14
    )
    mix = model.mix  # every pair that is taken, with its share
    of = {
        (s, d): p
        for s, d, p in zip(mix.input_tokens.tolist(), mix.decode_tokens.tolist(), mix.share, strict=True)
    }
    assert of.keys() == kept.keys()
    assert all(of[pair] == pytest.approx(float(p / share), rel=1e-14) for pair, p in kept.items())


def test_long_laws_keep_what_they_hold_and_runs_draw_them_alike() -> None:
    """Against sums over every pair: formulas to a thousandth, runs to four standard errors."""
    law = {"lognormal": {"mean": 60, "cv": 0.9}}
    model = profile(150, one(input=law, decode=law)).model
    lengths = Lengths.lognormal(60.0, float(f"{math.sqrt(math.log1p(0.9**2)):.12g}"))
    inputs, decode = np.meshgrid(lengths.values, lengths.values, indexing="ij")
    chance = np.outer(lengths.probabilities, lengths.probabilities) * (inputs + decode <= 150)
    share = chance.sum()
    held = sum(  # blocks of 4 at stages 0, 1, … of each pair
        p * sum(-(-(s + k) // 4) * 4 for k in range(1, d + 1))
        for s, d, p in zip(
            inputs.ravel().tolist(), decode.ravel().tolist(), chance.ravel().tolist(), strict=True
        )
        if p
    )
    assert 1 - model.total_rate_rps == pytest.approx(1 - share, abs=1e-12)
    assert per_request(model).held == pytest.approx(held / share, rel=2e-3)
    assert model.mix.mean(model.mix.input_tokens) == pytest.approx((chance * inputs).sum() / share, rel=1e-3)
    drawn = generate(model, Load(requests=100_000), 1)
    assert (drawn.input_tokens + drawn.decode_tokens).max() <= 150
    for seen, all_of in (
        (drawn.input_tokens, inputs),
        (drawn.decode_tokens, decode),
        (drawn.input_tokens * drawn.decode_tokens, inputs * decode),
    ):
        assert abs(seen.mean() - (chance * all_of).sum() / share) < 4 * seen.std() / math.sqrt(seen.size)


def test_a_class_of_nothing_else_is_rejected_whole() -> None:
    model = profile(50, one(input=20, decode=10), one("b", 3.0, input=60, decode=10)).model
    assert [c.name for c in model.classes] == ["a"]
    assert context(model).rejected_share == 0.75
    with pytest.raises(
        ProfileError, match="all requests have at least 70 tokens, and the engine refuses more"
    ):
        _ = profile(50, one("b", input=60, decode=10)).model


def test_memory_need_not_hold_what_is_rejected() -> None:
    tables = {"gpu": {"memory_tokens": 100, "block_tokens": 4}}
    assert profile(
        100, one(input={"60": 1, "200": 1}, decode=40), **tables
    ).model.mix.input_tokens.tolist() == [60]
    with pytest.raises(ProfileError, match="104 KV tokens"):
        _ = profile(104, one(input={"60": 1, "200": 1}, decode=44), **tables).model


def test_a_replay_leaves_out_what_is_rejected() -> None:
    recorded = Recorded(np.arange(4.0), np.array([90, 10, 99, 20]), np.array([20, 5, 1, 80]))
    kept = recorded.within(100)
    assert kept.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert kept.input_tokens.tolist() == [10, 99, 20]
    assert recorded.within(180) is recorded
    with pytest.raises(
        UsageError, match="all requests of the trace are longer than max_model_len, 10 tokens"
    ):
        recorded.within(10)


@given(st.integers(1, 400), st.integers(1, 40), st.integers(0, 10**6))
def test_a_limit_above_the_longest_changes_nothing(inputs: int, decode: int, more: int) -> None:
    laws = {"input": {"uniform": [1, inputs]}, "decode": {"uniform": [1, decode]}}
    free, held = (profile(most, one(**laws)).model for most in (None, inputs + decode + more))
    assert replace(held, engine=None) == replace(free, engine=None)
    assert held.mix.share.tolist() == free.mix.share.tolist()
    for rule in CONTEXTS:
        assert limited(CHAT, CHAT.longest + more, rule) is CHAT


# -------------------------------------------------------------------------------------------- conversations


class Slow:
    """Conversations one after the other, turn by turn, as they would be told."""

    def __init__(self, sessions: Sessions, most: int, rule: float | str, count: int) -> None:
        laws = sessions.first, sessions.user, sessions.decode, sessions.turns
        self.laws = [(law.values.tolist(), law.weights.tolist()) for law in laws]
        self.shared, self.most, self.rule = sessions.shared, most, rule
        self.dice, self.rejected = random.Random(5), 0
        self.rows: list[
            tuple[int, int, int, int]
        ] = []  # conversation, prompt, answer, what was there of the prompt
        begun = 0
        while begun < count:
            before = len(self.rows)
            self.converse(begun)
            self.rejected += len(self.rows) == before
            begun += len(self.rows) > before

    def draw(self, law: int) -> int:
        return self.dice.choices(*self.laws[law])[0]

    def converse(self, number: int) -> None:
        past: list[int] = []  # tokens of each turn that is still remembered
        there = self.shared
        for turn in range(self.draw(3)):
            new, answer = self.draw(1 if turn else 0), self.draw(2)
            room = self.most - self.shared - new - answer
            if sum(past) > room and isinstance(self.rule, float):
                past, there = [round(self.rule * sum(past))], self.shared
            while sum(past) > room and self.rule == "slide" and past:
                past, there = past[1:], self.shared
            if sum(past) > room:
                return
            self.rows.append((number, self.shared + sum(past) + new, answer, there))
            past.append(new + answer)
            there = self.shared + sum(past) - 1  # the last token is never computed


def near(found: float, told: np.ndarray, conversation: np.ndarray) -> None:
    """Within four standard errors of a mean over turns, of which those of a conversation go together.

    `found` is that of a sample of more conversations, of which the error is no larger.
    """
    sums = np.bincount(conversation, told - told.mean())
    error = math.sqrt((sums**2).sum()) / told.size
    assert abs(found - told.mean()) < 4 * math.sqrt(2) * error


@every("rule", CONTEXTS)
def test_conversations_are_as_a_slow_sampler_has_them(rule: float | str) -> None:
    """Moments of formulas, requests of runs, and what they find of prompts as long as nothing is thrown away."""
    conversation, prompt, answer, there = np.array(Slow(CHAT, MOST, rule, 6_000).rows).T
    held = limited(CHAT, MOST, rule)
    stream = session_stream(held, 1.0, Prefill.FUSED, 1)
    drawn = stream_of_sessions([held], [1.0], np.random.default_rng(3), requests=None, horizon_s=20_000.0)
    for formula, told, run in (
        (stream.prompt, prompt, drawn.input_tokens),
        (stream.prompt_squares, prompt**2.0, drawn.input_tokens**2.0),
        (stream.decode, answer, drawn.decode_tokens),
        (stream.read, answer * prompt + answer * (answer + 1) / 2, None),
        (stream.shared[0].tokens + stream.reused, np.minimum(there, prompt - 1), None),
        (stream.reused_pairs + 20 * 21 / 2, there * (there + 1) / 2, None),
    ):
        near(formula, told, conversation)
        if run is not None:
            near(run.mean(), told, conversation)
    begun = np.count_nonzero(~np.isnan(drawn.arrival_s))
    turns = np.bincount(conversation)
    for mean in (held.turns.mean, drawn.arrival_s.size / begun):
        assert abs(mean - turns.mean()) < 4 * math.sqrt(2) * turns.std() / math.sqrt(turns.size)
    assert (drawn.input_tokens + drawn.decode_tokens).max() <= MOST


@every("rule", CONTEXTS)
def test_the_first_request_of_a_conversation_may_be_rejected(rule: float | str) -> None:
    table = {
        **{"name": "chat", "rate": 2.0, "shared": 20, "first": {"uniform": [10, 60]}, "context": rule},
        **{"user": {"5": 1, "30": 1}, "decode": {"uniform": [3, 40]}, "turns": {"uniform": [1, 12]}},
        "think": {"law": "fixed", "value": "4 s"},
    }
    if isinstance(rule, float):
        table["context"] = {"compact": rule}
    rejected = Fraction(sum(20 + s + d > 90 for s in range(10, 61) for d in range(3, 41)), 51 * 38)
    found = profile(90, sessions=[table]).model
    (c,) = found.classes
    assert c.sessions is not None
    shares = rejected, (1 - rejected) * Fraction(c.sessions.turns.mean)  # of sessions, and turns for each
    assert context(found).rejected_share == pytest.approx(float(shares[0] / sum(shares)), abs=1e-14)
    assert found.total_rate_rps == pytest.approx(2 * float(1 - rejected) * c.sessions.turns.mean, rel=1e-12)
    slow = Slow(CHAT, 90, rule, 5_000)
    assert slow.rejected / (slow.rejected + 5_000) == pytest.approx(float(rejected), abs=0.02)
    mix = found.mix
    assert (mix.input_tokens + mix.decode_tokens).max() <= 90
    conversation, prompt, answer, _ = np.array(slow.rows).T
    near(mix.mean(mix.input_tokens), prompt, conversation)
    near(mix.mean(mix.decode_tokens), answer, conversation)


def test_streams_begin_anew_where_history_is_cut() -> None:
    """Of fixed lengths, by hand: 20 shared, turns of 10 + 5; at most 60, so that two turns are remembered."""
    fixed = Sessions(*(Lengths.of({n: 1.0}) for n in (10, 10, 5, 5)), Exponential(1.0), shared=20)
    prompts = {
        "end": [30, 45],  # the third would be 60 + 5
        "slide": [30, 45, 45, 45, 45],
        0.5: [30, 45, 45, 45, 45],  # 30 of history become 15, and each turn fills it up
        0.25: [30, 45, 38, 53, 40],  # 30 become 8, then 23, then 38, whose quarter is 10
    }
    streams = {"end": 1, "slide": 4, 0.5: 4, 0.25: 3}
    for rule, expected in prompts.items():
        held = limited(fixed, 60, rule)
        drawn = stream_of_sessions(
            [held], [1.0], np.random.default_rng(0), requests=len(expected), horizon_s=None
        )
        assert drawn.prefixes is not None
        first = drawn.turns.following
        order = [0]
        while first[order[-1]] >= 0:
            order.append(int(first[order[-1]]))
        assert drawn.input_tokens[order].tolist() == expected, rule
        assert np.unique(drawn.prefixes.stream[order]).size == streams[rule], rule
        again = population([held], np.random.default_rng(0), users=[2], requests=40)
        assert set(again.input_tokens.tolist()) == set(expected)
