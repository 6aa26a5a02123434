"""The search for the cheapest replicas: against looking at every size, with verdicts that are given."""

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from tiers import is_night

from kvplan.engine import Engine, EngineName
from kvplan.errors import UsageError
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import find_gpu
from kvplan.ingest.model.roofline import request_overhead_s
from kvplan.model import Parallelism, Plan, Replica, RequestClass, ServingModel, Timing, attention_pairs
from kvplan.model.fleet import Routing
from kvplan.model.slo import parse_slo
from kvplan.options import PlanOptions
from kvplan.planning import options
from kvplan.planning.around import by_short_runs, routers, with_tpot, without_each
from kvplan.planning.demand import Demand, Length, parse_length, parse_turns
from kvplan.planning.intervals import spaced
from kvplan.planning.kinds import Kind, kinds
from kvplan.planning.plan import plan
from kvplan.planning.result import Plan as Planned
from kvplan.planning.result import Request, Status
from kvplan.planning.search import Band, Candidate, Setting, race
from kvplan.planning.service import replica_profile
from kvplan.profile.reading import Profile, from_tables, parse_profile
from kvplan.ranges import MOST_REPLICAS
from kvplan.show.plan import _in_band
from kvplan.study.objectives import Decision, State
from kvplan.study.trial import Judged, Quick, Task


@dataclass(frozen=True)
class Given:
    """A kind that needs so many replicas by token budget; long runs may ask for more than short ones say."""

    needs: dict[int, int]
    more: int = 0
    idle_excess: float = 0.5
    looked: list[tuple[int, int]] = field(default_factory=list)
    model: ServingModel = field(
        default=ServingModel(
            (RequestClass("a", 9, (9,), (1.0,), 1.0),),
            Timing(0.01, d2=1e-5),
            Replica(9_000, max_num_batched_tokens=8192),
        )
    )

    def bound(self, batched_tokens: int) -> int:
        return max(1, self.needs[batched_tokens] // 2)

    def even_budgets(self, replicas: int) -> list[int]:
        return []

    def idle(self, batched_tokens: int) -> Quick:
        return Quick(self.idle_excess, ())

    def quick(self, replicas: int, batched_tokens: int) -> Quick:
        self.looked.append((replicas, batched_tokens))
        return Quick(max(self.needs[batched_tokens] / replicas, self.idle_excess), ())

    def judge(self, replicas: int, batched_tokens: int) -> Judged:
        holds = replicas >= self.needs[batched_tokens] + self.more
        return _Judged(State.HOLDS if holds else State.MISSES)  # type: ignore[return-value]


@dataclass(frozen=True)
class _Judged:
    state: State
    met: State = State.MISSES


def candidate(task: Given, price: float, name: str = "a", *, own_weights: bool = True) -> Candidate:
    listed = tuple(task.needs)
    return Candidate(name, task, price, listed[0], listed=listed, own_weights=own_weights)  # type: ignore[arg-type]


TASKS = st.builds(
    Given,
    st.dictionaries(st.sampled_from([512, 2048, 8192]), st.integers(1, 60), min_size=1),
    st.integers(0, 3),
    st.sampled_from([0.5, 0.5, 0.5, 2.0]),
)


@given(task=TASKS, near=st.integers(1, 80))
def test_the_least_size_is_the_one_that_looking_at_all_finds(task: Given, near: int) -> None:
    found = candidate(task, 1.0).fewest(near=near)
    if task.idle_excess > 1:
        assert found is None
        return
    assert found.replicas == min(task.needs.values())
    assert task.needs[found.batched_tokens or 0] == found.replicas


@given(tasks=st.lists(st.tuples(TASKS, st.floats(0.5, 20)), min_size=1, max_size=5))
def test_no_kind_costs_less_than_the_winner(tasks: list[tuple[Given, float]]) -> None:
    """By trying every size of every kind that an idle replica of meets the objectives."""
    every = [candidate(task, price, str(i)) for i, (task, price) in enumerate(tasks)]
    costs = [(min(task.needs.values()) + task.more) * price for task, price in tasks if task.idle_excess <= 1]
    found = race(every)
    if not costs:
        assert found.winner is None
        assert len(found.refused) == len(every)
        return
    cost = found.found.setting.replicas * found.winner.price
    assert cost <= 1.6 * min(costs)
    if all(task.more == 0 for task, _ in tasks):  # what short runs have right is not beaten
        assert math.isclose(cost, min(costs))


@every(("at_ends", "tried"), [(("itl_s.p95", "itl_s.p95"), 2), (("ttft_s.p95", "itl_s.p95"), 3)])
def test_between_budgets_that_miss_the_same_by_far_none_is_tried(
    at_ends: tuple[str, str], tried: int
) -> None:
    """A small one makes prompts wait, a large one answers; one between may keep both, unless both miss the same."""

    class Tuned(Given):
        def quick(self, replicas: int, batched_tokens: int) -> Quick:
            self.looked.append((replicas, batched_tokens))
            if batched_tokens == 1_024:
                return Quick(0.5, ())
            key = at_ends[batched_tokens > 1_024]
            return Quick(9.0, (Decision(key, 1.0, State.MISSES, None, None, None, 0.45, 0.0, 0.05),))

    task = Tuned({512: 1, 1_024: 1, 4_096: 1})
    found = candidate(task, 1.0, "a").fewest(ceiling=1)
    assert len({tokens for _, tokens in task.looked}) == tried
    assert (found is None) == (tried == 2)


@given(tasks=st.lists(st.tuples(TASKS, st.floats(0.5, 20), st.booleans()), min_size=1, max_size=6))
def test_the_best_with_the_weights_of_the_model_is_always_among_the_sizes(
    tasks: list[tuple[Given, float, bool]],
) -> None:
    every = [candidate(task, price, str(i), own_weights=own) for i, (task, price, own) in enumerate(tasks)]
    own = [
        min(task.needs.values()) * price
        for task, price, is_own in tasks
        if is_own and task.idle_excess <= 1 and not task.more
    ]
    found = race(every)
    costs = [c.cost(setting) for c, setting in found.sizes.items() if c.own_weights]
    assert not own or min(costs) <= min(own) * (1 + 1e-12)


def test_an_interrupted_race_has_the_best_so_far_and_nothing_where_there_is_none() -> None:
    class Interrupted(Given):
        def quick(self, replicas: int, batched_tokens: int) -> Quick:
            raise KeyboardInterrupt

    stopped = candidate(Interrupted({512: 9}), 3.0, "stopped")
    found = race([candidate(Given({512: 10}), 1.0, "first"), stopped])
    assert found.found is None
    assert found.winner.name == "first"
    with pytest.raises(KeyboardInterrupt):
        race([stopped])


@pytest.mark.parametrize("text", ["", "x", "0", "-3", "3:x", "3:20", "1e9", "nan", "inf", "3:nan"])
def test_lengths_that_nobody_means_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--in .*tokens are wanted"):
        parse_length(text, "--in")


@pytest.mark.parametrize(
    ("demand", "rate", "prompt", "answer"),
    [
        (Demand(Length(3000), Length(400, 0.5), 12.0), 12.0, 3000, 400),
        (Demand(Length(800, 0), Length(300, 0), 6.0, system_prompt=2000), 6.0, 2800, 300),
        # turn j carries what came before: 2000 + 100 + (j - 1)·(100 + 50); of 1 … 5 turns, equally often, 15 in all are
        # 1, 2, 2, 3, 3, 3 … , so that j - 1 is 4/3 in the mean
        *(
            (
                Demand(Length(100, 0), Length(50, 0), 6.0, system_prompt=2000, turns=turns),
                6.0,
                2100 + 150 * more,
                50,
            )
            for turns, more in ((parse_turns("3"), 1), (parse_turns("1..5:uniform"), 4 / 3))
        ),
    ],
)
def test_a_demand_is_a_profile_of_those_means(
    demand: Demand, rate: float, prompt: float, answer: float
) -> None:
    replica = {"gpu": {"memory_tokens": 10_000_000}, "timing": {"d0": "10 ms"}}
    model = from_tables({"schema": 1, "name": "a", **replica, **demand.tables}, "a").model
    assert model.total_rate_rps == pytest.approx(rate)
    assert model.mix.mean(model.mix.input_tokens) == pytest.approx(prompt, rel=2e-3)
    assert model.mix.mean(model.mix.decode_tokens) == pytest.approx(answer, rel=2e-3)


def test_kinds_are_the_model_on_each_gpu_and_type_of_weights() -> None:
    shape = read_model("Llama-3.1-8B")
    some = list(kinds(shape, [find_gpu("A100 80GB"), find_gpu("H100")], parallelism=[Parallelism(1)]))
    assert [kind.name for kind in some] == ["A100 80GB TP1 bf16", "H100 SXM TP1 bf16", "H100 SXM TP1 fp8"]
    assert [kind.own_weights for kind in some] == [True, True, False]
    assert some[2].memory.memory_tokens > some[1].memory.memory_tokens


def test_without_objectives_a_size_is_enough_where_the_queue_is_steady() -> None:
    """At .985 of what is sustainable with iterations 5 % longer, no replica more and none less."""
    model = ServingModel(
        (RequestClass("a", 50, (20,), (1.0,), 100.0),), Timing(0.01, d2=2e-4), Replica(50_000)
    )
    task = Task(model, Plan())
    sustainable = task.sustainable_rps(None)
    found = candidate_of(task).fewest()
    assert found.replicas == math.ceil(100 / (0.985 * sustainable))


def candidate_of(task: Task) -> Candidate:
    return Candidate("a", task, 1.0, None, listed=())


def test_what_would_make_a_demand_possible_does() -> None:
    """An idle replica misses it: a first token takes an iteration with the prompt, after what is left of another."""
    [kind] = kinds(
        read_model("Llama-3.1-8B"), [find_gpu("RTX 4090")], parallelism=[Parallelism(1)], weights=["bf16"]
    )

    def planned(prompt_tokens: float, limit_s: float) -> Planned:
        demand = Demand(Length(prompt_tokens, 0), Length(50, 0), 0.01)
        return plan(Request([kind], demand, (parse_slo(f"ttft_s.p95 <= {limit_s} s"),)))

    def slower_s(prompt_tokens: float) -> float:
        timing = kind.speed.timing
        computed = timing(prompt_tokens, prompt_tokens, 1, attention_pairs(prompt_tokens))
        return 1.05 * computed + request_overhead_s(timing, EngineName.VLLM)

    other = 1.05 * kind.speed.timing(1500, 0, 1)

    found = planned(1500, 0.1)
    assert found.status is Status.IMPOSSIBLE
    [refused] = found.refused
    assert [one.key for one in refused.least] == ["ttft_s.p95"]
    [(key, limit)] = found.ways.limits
    assert key == "ttft_s.p95"
    assert 1.1 * 0.999 * slower_s(1500) <= limit <= 1.1 * (slower_s(1500) + other)
    shorter = found.ways.prompt_tokens
    assert slower_s(shorter) < 0.1 < slower_s(shorter + 1500 / 2**6) + other  # halved six times
    assert len(found.ways.others) == 2
    if is_night():
        assert planned(1500, limit).status is planned(shorter, 0.1).status is Status.PLANNED
        assert planned(1.3 * shorter, 0.1).status is Status.IMPOSSIBLE


@every(
    ("model", "engine", "asked", "caches"),
    [
        ("Qwen3-Next-80B-A3B", EngineName.VLLM, {}, False),
        ("gpt-oss-120b", EngineName.VLLM, {}, True),
        ("gpt-oss-120b", EngineName.VLLM, {"rate_rps": None, "users": 50}, False),
        ("gpt-oss-120b", EngineName.VLLM, {"turns": parse_turns("4")}, False),
        ("gpt-oss-120b", EngineName.SGLANG, {}, False),
        ("Llama-3.1-8B", EngineName.SGLANG, {}, True),
        ("Llama-3.1-8B", EngineName.VLLM, {"turns": parse_turns("4")}, True),
    ],
)
def test_a_cache_that_is_not_modelled_is_off(
    model: str, engine: EngineName, asked: dict[str, Any], caches: bool
) -> None:
    [kind] = kinds(
        read_model(model), [find_gpu("H200")], parallelism=[Parallelism(4)], weights=["fp8"], engine=engine
    )
    demand = Demand(Length(1000), Length(200), 1.0, system_prompt=3000)
    profile = replica_profile(kind, Request([kind], replace(demand, **asked), ()))
    assert isinstance(profile, Profile)
    assert profile.model.has_common_prefixes
    assert profile.model.finds_prefixes == (kind.not_cached(talks=bool(asked)) is None) == caches


def test_near_saturation_a_size_is_not_enough_before_the_queue_was_seen() -> None:
    """At 97 % of what is sustainable the oracle has 9 to 15 % of a million requests wait for longer than a second."""
    [kind] = kinds(
        read_model("Llama-3.1-8B"), [find_gpu("H100")], parallelism=[Parallelism(1)], weights=["fp8"]
    )
    demand = Demand(Length(1000), Length(200), 352.0)
    profile = replica_profile(kind, Request([kind], demand, ()))
    assert isinstance(profile, Profile)
    law = Timing(4.6984158e-3, d1=4.6030553e-8, d2=1.09016729e-5, d3=1.09016729e-5)  # of the oracle's run
    task = Task(replace(profile.model, timing=law), Plan(slos=(parse_slo("ttft-p95=1s"),)))
    load = task.rate_rps / (10 * task.sustainable_rps(6144))
    assert 0.965 < load < 0.98
    assert task.judge(10, 6144).state is not State.HOLDS
    if is_night():
        assert task.judge(11, 6144).state is State.HOLDS


@pytest.mark.parametrize(
    ("excess", "state", "replicas"),
    [(0.5, State.MISSES, 5), (0.9, State.MISSES, 11), (0.9, State.HOLDS, 5), (9.0, State.HOLDS, 11)],
)
def test_a_router_is_decided_by_long_runs_where_short_ones_are_close(
    excess: float, state: State, replicas: int
) -> None:
    """Behind it five of ten replicas are enough by short runs, if it is decided that ten are."""

    @dataclass(frozen=True)
    class Routed(Given):
        router: Routing | None = None

        def quick(self, replicas: int, batched_tokens: int) -> Quick:
            return Quick(excess if replicas == 10 else 0.5 if replicas >= 5 else 2.0, ())

        def keeps(self, replicas: int, batched_tokens: int, *, slower: bool, budget_s: float) -> Judged:
            return _Judged(state)  # type: ignore[return-value]

    found = routers(candidate(Routed({512: 10}), 1.0), Setting(10, 512))
    assert [size for _, size in found] == [replicas, replicas]


@dataclass(frozen=True)
class Limited(Given):
    """A kind that needs so many replicas by objective, and four behind a router."""

    limited: dict[str, int] = field(default_factory=dict)
    plan: Plan = field(default=Plan(slos=(parse_slo("ttft_s.p95 <= 1 s"), parse_slo("itl_s.p95 <= 1 s"))))
    router: Routing | None = None

    def quick(self, replicas: int, batched_tokens: int) -> Quick:
        if self.router:
            return Quick(0.4 if replicas >= 4 else 2.0, ())
        shares = {slo.key: self.limited[slo.key] / replicas for slo in self.plan.slos}
        decided = (Decision(key, 1, State.OPEN, None, None, None, s, 0, 1) for key, s in shares.items())
        return Quick(max(shares.values()), tuple(decided))


@every(("tpot", "instead"), [(3, {"itl_s.p95": 5}), (7, {"itl_s.p95": 7}), (10, {})])
def test_a_limit_on_itl_that_costs_replicas_is_tried_on_tpot(tpot: int, instead: dict[str, int]) -> None:
    needs = {"ttft_s.p95": 5, "itl_s.p95": 10, "tpot_s.p95": tpot}
    kind, setting = candidate(Limited({512: 2, 16_384: 2}, limited=needs), 1.0), Setting(10, 512)
    assert with_tpot(kind, setting, {"ttft_s.p95": 10, "itl_s.p95": 5}) == instead
    assert with_tpot(kind, setting, dict.fromkeys(needs, 10)) == {}


@every(("met", "ttft", "behind"), [(State.MISSES, 5, 4), (State.HOLDS, 10, 10)])
def test_where_a_burst_decides_no_objective_and_no_router_costs_replicas(
    met: State, ttft: int, behind: int
) -> None:
    """By short runs TTFT takes 8 replicas and ITL 5, 4 behind any router; nine do not hold by long ones."""
    limited = Limited({512: 8, 16_384: 8}, limited={"ttft_s.p95": 8, "itl_s.p95": 5})
    kind, setting = candidate(limited, 1.0), Setting(10, 512)
    kind.long[Setting(9, 512)] = _Judged(State.MISSES, met)  # type: ignore[assignment]
    assert by_short_runs(kind, setting) == 8
    assert without_each(kind, setting, 8) == {"ttft_s.p95": ttft, "itl_s.p95": 10}
    assert {size for _, size in routers(kind, setting)} == {behind}


@every(
    ("ends", "replicas", "said"),
    [
        ((7, 7), 7, " As many if iterations take 0.90 to 1.20 times the estimate."),
        ((6, 8), 7, " 6 to 8 replicas if iterations take 0.90 to 1.20 times the estimate."),
        ((None, None), 7, " – to no number of replicas if iterations take 0.90 to 1.20 times the estimate."),
        ((7, 7), 10, " By short runs, bursts left out, 7 would do, and as many if iterations take"),
        ((8, 8), 10, " By short runs, bursts left out, 7 would do, and 8 if iterations take"),
        ((7, 9), 10, " By short runs, bursts left out, 7 would do, and 7 to 9 replicas if iterations take"),
    ],
)
def test_what_the_error_band_takes_is_one_sentence(
    ends: tuple[int | None, int | None], replicas: int, said: str
) -> None:
    shown = SimpleNamespace(
        by_short_runs=7,
        setting=Setting(replicas, None),
        winner=SimpleNamespace(task=Given({})),
    )
    assert _in_band(cast(Planned, shown), Band(0.9, 1.2, ends)).startswith(said)


def test_a_service_of_whole_replicas_has_no_link_between_them() -> None:
    text = """
        schema = 1
        name = "apart"
        gpu = { memory_tokens = 60_000, kv_bytes_per_token = 131_072, max_num_batched_tokens = 2048 }
        timing = { d0 = "10 ms", d2 = "20 us" }
        fleet = { prefill = 1, decode = 1, transfer = "20 GB/s" }
        classes = [{ name = "a", input = 800, decode = 60, rate = 1 }]
    """
    found = plan(Request([parse_profile(text.encode(), "apart.toml")], None, ()))
    assert found.profile.model.fleet.size == found.setting.replicas


def test_every_combination_of_ranks_is_tried_and_those_that_do_not_go_together_refused() -> None:
    asked = PlanOptions(gpu="H200", tp="1,8", dp="1,8", ep="8", rate=1.0, input="1000:0", output="100:0")
    request = options.request(["DeepSeek-V3"], asked)
    assert [(str(kind.parallelism), kind.name) for kind in request.options if isinstance(kind, Kind)] == [
        (ranks, f"H200 {ranks} fp8") for ranks in ("TP1 EP8", "TP1 DP8 EP8", "TP8 EP8", "TP8 DP8 EP8")
    ]
    alone, ranks, *_ = (replica_profile(option, request) for option in request.options)
    assert "expert parallelism 8: must divide tensor x data parallelism, 1, not 8" in str(alone)
    assert isinstance(ranks, Profile)
    assert ranks.model.replica.parallelism == Parallelism(1, 8, 8)
    assert ranks.model.replica.max_num_seqs == 8 * ranks.tables["gpu"]["max_num_seqs"]
    talk = options.request(["DeepSeek-V3"], replace(asked, turns=3, system_prompt=400))
    routed = replace(talk, router=Routing.LEAST_REQUESTS)
    alike, spread = (replica_profile(request.options[1], request) for request in (talk, routed))
    assert isinstance(alike, Profile)
    assert isinstance(spread, Profile)
    assert (alike.model.replica.meets_itself, spread.model.replica.meets_itself) == (1.0, 1 / 8)


def test_a_token_budget_with_which_no_rate_is_sustainable_is_none_for_any_demand() -> None:
    asked = PlanOptions(
        gpu="H100", tp=1, weights="bf16", users=50, think=60, input=500, output=50, system_prompt=200, turns=3
    )
    request = options.request(["Llama-3.1-8B"], asked)
    (kind,) = request.options
    profile = replica_profile(kind, request)
    assert isinstance(profile, Profile)
    task = Task(profile.model, profile.plan)
    assert (task.bound(512), task.bound(8192)) == (1, 1)
    task.sustained[512, True] = 0.0
    assert task.bound(512) == MOST_REPLICAS + 1


@dataclass(frozen=True)
class AtIntervals(Given):
    """Ranks that need so many replicas by interval of prompts, and fewer where no objective is on gaps."""

    without_gaps: int = 3
    plan: Plan = field(
        default_factory=lambda: Plan(slos=(parse_slo("itl_s.p95 <= 1 s"), parse_slo("e2e-p95=9s")))
    )
    refused: tuple[int, ...] = ()  # intervals with which long runs ask for ten more

    @property
    def interval(self) -> int:
        return 1 if self.model.engine is None else self.model.engine.prefill_interval

    def bound(self, batched_tokens: int) -> int:
        return 1

    def idle(self, batched_tokens: int) -> Quick:
        return self.quick(100, batched_tokens)

    def quick(self, replicas: int, batched_tokens: int) -> Quick:
        gaps = any(slo.key.startswith("itl") for slo in self.plan.slos)
        needed = max(self.needs[self.interval] if gaps else 0, self.without_gaps)
        decided = (Decision("itl_s.p95", 1.0, State.HOLDS, None, None, None, needed / replicas, 0.0, 1.0),)
        rest = (
            Decision("e2e_s.p95", 1.0, State.HOLDS, None, None, None, self.without_gaps / replicas, 0.0, 1.0),
        )
        return Quick(needed / replicas, decided * gaps + rest)

    def judge(self, replicas: int, batched_tokens: int) -> Judged:
        needed = self.needs[self.interval] + 10 * (self.interval in self.refused)
        return _Judged(State.HOLDS if replicas >= needed else State.MISSES)  # type: ignore[return-value]


NEEDS = {1: 9, 2: 7, 4: 5, 8: 5, 16: 6}
ON_RANKS = AtIntervals(
    NEEDS, model=replace(Given({}).model, replica=Replica(9_000, parallelism=Parallelism(data=8)))
)


@every(
    ("changes", "found"),
    [
        ({}, (4, 5, 9)),
        ({"refused": (4, 8)}, (16, 6, 9)),
        ({"needs": dict.fromkeys(NEEDS, 9)}, None),  # none saves a replica
        ({"without_gaps": 9}, None),  # gaps are not why it takes as many
        ({"plan": Plan(slos=(parse_slo("e2e-p95=9s"),)), "without_gaps": 4}, None),
        ({"model": Given({}).model}, None),  # no ranks
        ({"model": replace(ON_RANKS.model, engine=Engine(version="0.23.0"))}, None),
        ({"model": replace(ON_RANKS.model, engine=Engine(EngineName.TRTLLM))}, None),
        ({"model": replace(ON_RANKS.model, engine=Engine(EngineName.SGLANG, version="0.5.19"))}, (4, 5, 9)),
        ({"model": replace(ON_RANKS.model, engine=Engine(prefill_interval=2))}, None),  # it is given
    ],
)
def test_an_interval_is_taken_that_saves_replicas_where_gaps_take_them(
    changes: dict[str, Any], found: tuple[int, int, int] | None
) -> None:
    """The shortest of those with the fewest replicas, which long runs confirm."""
    kind = Candidate("a", replace(ON_RANKS, **changes), 8.0, 512, fixed_tokens=512)  # type: ignore[arg-type]
    raced = race([kind])
    better = spaced(raced, lambda _: None)
    if found is None:
        assert better is None
        return
    assert (better.interval, better.found.setting.replicas, better.replicas_without) == found
    assert better.of(raced).winner is better.kind
    assert better.of(raced).sizes == {better.kind: better.found.setting}
