"""Classes with promises of their own, and work that has to be done by a deadline."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import shipped
from every import every
from strategies import one_class

from kvplan.emit import engine
from kvplan.emit.settings import priorities_of
from kvplan.engine import Engine, Scheduling
from kvplan.errors import UsageError
from kvplan.model import Replica, ServingModel, Timing
from kvplan.model.slo import promises
from kvplan.options import Arrivals, SimulateOptions
from kvplan.planning.service import with_rates
from kvplan.profile.reading import Profile, parse_profile
from kvplan.report import notes
from kvplan.report.assembly import Analyses
from kvplan.report.ledger import Ledger
from kvplan.report.study_notes import needed
from kvplan.show.page import Table
from kvplan.show.report import first_screen
from kvplan.show.simulation import build
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.options import chosen, load
from kvplan.simulation.experiments.study import study
from kvplan.simulation.policies import engine_settings
from kvplan.study.batch import Behind
from kvplan.study.objectives import State, decide
from kvplan.study.trial import Quick, Task, recover_within_s
from kvplan.study.warm_cache import session_cap

# An iteration takes 10 ms, and 1 ms for each token of a prompt: 0.11 s for a short one alone, 2.01 s for a long one.
TWO = """\
schema = 1
name = "two promises"
gpu = { memory_tokens = 100_000, max_num_seqs = 64 }
timing = { d0 = "10 ms", d2 = "1 ms" }
slo = { ttft_s.p50 = "10 s" }

[[classes]]
name = "short"
input = 100
decode = 2
rate = 0.002
slo = { ttft_s.p90 = "0.2 s" }

[[classes]]
name = "long"
input = 2000
decode = 2
rate = 0.002
slo = { ttft_s.p90 = "1 s", e2e_s.p50 = "3 s" }
"""


def profile(text: str = TWO) -> Profile:
    return parse_profile(text.encode(), "two.toml")


def test_each_class_is_decided_by_its_own_requests() -> None:
    found = profile()
    model: ServingModel = found.model
    decided = decide(model, found.plan, engine_settings(model), found.plan.slos)
    assert {d.key: d.state for d in decided} == {
        "ttft_s.p50": State.HOLDS,
        "ttft_s.p90 of short": State.HOLDS,
        "ttft_s.p90 of long": State.MISSES,
        "e2e_s.p50 of long": State.HOLDS,
    }
    values = {d.key: d.value for d in decided}
    assert values["ttft_s.p90 of short"] == pytest.approx(0.11, rel=0.01)
    assert values["ttft_s.p90 of long"] == pytest.approx(2.01, rel=0.01)


def test_requests_are_good_within_the_promises_of_their_class() -> None:
    found = profile()
    run = study(found.model, found.plan, Load(requests=200), chosen(["vllm"], []), [0]).results[0]
    short, long = (one.figures for one in run.classes)
    span_s = run.figures["makespan_s"]
    assert span_s is not None
    assert short["completed"] is not None
    assert long["goodput_rps"] == 0
    # all but those that meet a long prompt, 2 s out of 500
    assert 0.95 * short["completed"] / span_s < run.figures["goodput_rps"] <= short["completed"] / span_s  # type: ignore[operator]
    assert short["goodput_rps"] == run.figures["goodput_rps"]


def test_a_backlog_is_a_rate_until_its_deadline() -> None:
    batch = profile(
        TWO.replace(
            'rate = 0.002\nslo = { ttft_s.p90 = "1',
            'backlog = 172_800\ndeadline = "24 h"\nslo = { ttft_s.p90 = "1',
        )
    )
    assert [c.rate_rps for c in batch.model.classes] == [0.002, 2.0]
    assert with_rates(batch.tables, 0.5)["classes"][1]["backlog"] == 86_400


@every(
    ("deadline", "own", "bound", "is_deadline"),
    [
        ("24 h", "", 86_400.0, True),
        ("24 h", ", p99 = '1 h'", 3600.0, False),
        ("1 h", ", p99 = '2 h'", 3600.0, True),
    ],
)
def test_a_deadline_is_an_objective_unless_a_closer_one_is_there(
    deadline: str, own: str, bound: float, is_deadline: bool
) -> None:
    text = TWO.replace(
        "2000\ndecode = 2\nrate = 0.002", f'2000\ndecode = 2\nbacklog = 9\ndeadline = "{deadline}"'
    )
    found = profile(text.replace('e2e_s.p50 = "3 s"', f'e2e_s = {{ p50 = "3 s"{own} }}'))
    (slo,) = (slo for slo in found.plan.slos if slo.key == "e2e_s.p99 of long")
    assert (slo.bound, slo.deadline) == (bound, is_deadline)
    assert len(found.plan.slos) == 5


def test_no_number_of_replicas_is_enough_where_an_answer_takes_longer_than_the_deadline() -> None:
    """A long prompt takes 2.01 s and its answer 10 ms more."""

    def idle(deadline: str) -> Quick:
        text = (
            TWO.partition("slo =")[0] + TWO[TWO.index('[[classes]]\nname = "long') :].partition("rate =")[0]
        )
        found = profile(f'{text}backlog = 3\ndeadline = "{deadline}"\n')
        task = Task(found.model, found.plan)
        assert recover_within_s(found.model, found.plan) is None  # nobody waits for the answers
        return task.idle(None)

    assert idle("1 min").passes
    late = idle("2 s")
    assert not late.passes
    assert late.worst == "e2e_s.p99 of long"


def test_clients_send_the_priorities_of_the_profile_to_vllm_and_wider_ones_to_sglang() -> None:
    """SGLang preempts for a priority that is better by more than 10."""
    classes = tuple(
        replace(one_class(1, 1, name=name), priority=p) for name, p in (("chat", -2), ("batch", 10))
    )
    model = ServingModel(classes, Timing(1.0), Replica(100))
    assert priorities_of(engine("vllm"), model) == {"chat": -2, "batch": 10}
    assert priorities_of(engine("sglang"), model) == {"chat": 0, "batch": 20}


def with_backlog(more: str = "") -> Profile:
    """500 requests in 1,000 s beside one a second."""
    text = TWO.replace("rate = 0.002", "rate = 1.0", 1)
    return profile(text.replace("rate = 0.002", f'backlog = 500\ndeadline = "1000 s"{more}'))


@every(
    ("options", "late", "others"),
    [
        ({"requests": 300}, 100, 200),
        ({"requests": 2000}, 500, 1500),  # there are no more
        ({"horizon": 400.0}, 200, None),
        ({"horizon": 5000.0}, 500, None),
    ],
)
def test_runs_of_simulate_begin_with_work_that_has_a_deadline(
    options: dict[str, Any], late: int, others: int | None
) -> None:
    """With all of it, or with as much as would come meanwhile; evenly where that is asked."""
    found, asked = with_backlog(), SimulateOptions(**options)
    drawn = generate(found.model, load(asked, model=found.model), 0)
    mine = drawn.class_index == 1
    assert np.count_nonzero(mine) == late
    assert others is None or np.count_nonzero(~mine) == others
    assert drawn.arrival_s[mine].max() == 0
    assert (drawn.arrival_s[~mine] > 0).all()
    evenly = generate(found.model, load(replace(asked, arrivals=Arrivals.POISSON), model=found.model), 0)
    assert evenly.arrival_s[evenly.class_index == 1].min() > 0


def test_conversations_beside_a_backlog_go_on_as_long_as_the_others() -> None:
    """A backlog of 100 s beside one request and 0.3 turns a second: 1,400 requests are 1,000 s."""
    text = AGENTS.replace(
        "priority = -1 }]",
        'priority = -1 }, { name = "batch", input = 9, decode = 2, backlog = 100, deadline = "100 s", priority = 0 }]',
    )
    found = profile(text)
    drawn = generate(found.model, load(SimulateOptions(requests=1400), model=found.model), 0)
    counts = dict(zip((c.name for c in found.model.classes), np.bincount(drawn.class_index), strict=True))
    assert counts == {"chat": 1000, "batch": 100, "agent": 300}


def test_a_backlog_that_asks_again_is_sent_evenly_alone() -> None:
    found = with_backlog('\nreuse = { tokens = 50, share = 0.5, gap = { law = "fixed", value = "1 s" } }')
    with pytest.raises(UsageError, match="a backlog with reuse is simulated with --arrivals poisson alone"):
        generate(found.model, load(SimulateOptions(requests=9), model=found.model), 0)


@every(
    ("deadline", "horizon", "done", "limit", "kept"),
    [
        ("100 s", 500.0, "20 done", "1.67 min", "40 s, met"),
        ("100 s", 50.0, "10 done", "50 s", "20 s, met"),  # half of them have half of the time
        ("30 s", 500.0, "20 done", "30 s", "40 s, missed"),
        ("30 s", 35.0, "20 done", "30 s", "–, missed"),
    ],
)
def test_simulate_shows_what_each_class_was_promised(
    deadline: str, horizon: float, done: str, limit: str, kept: str
) -> None:
    """Prompts of a backlog are computed in one iteration, of 2 s for each."""
    text = TWO.rpartition("rate = 0.002")[0]
    found = profile(f'{text}backlog = 20\ndeadline = "{deadline}"\n')
    asked = SimulateOptions(horizon=horizon)
    run = study(found.model, found.plan, load(asked, model=found.model), chosen(["vllm"], []), [0])
    table = build(run, "two").blocks[1]
    assert isinstance(table, Table)
    assert [row[:2] for row in table.rows] == [
        ("ttft p90 of short", "200 ms"),
        (f"{done[:2]} long done", limit),
    ]
    assert table.rows[1][2] == kept


def test_promises_of_classes_are_shown_where_they_differ_alone() -> None:
    text = TWO.replace("slo = { ttft_s.p90", "# slo = { ttft_s.p90")
    found = profile(text)
    plain = study(found.model, found.plan, Load(requests=20), chosen(["vllm"], []), [0])
    assert plain.promised == ()
    two = profile()
    differ = study(two.model, two.plan, Load(requests=20), chosen(["vllm"], []), [0])
    assert [slo.figure for slo in differ.promised] == ["ttft_s.p90", "ttft_s.p90", "e2e_s.p50"]
    tiers = promises({"chat": 0, "batch": 1}, ())
    assert [(slo.key, slo.bound) for slo in tiers] == [
        ("ttft_s.p95 of chat", math.inf),
        ("ttft_s.p95 of batch", math.inf),
    ]


def tiers() -> Profile:
    """A second has 1,000 prompt tokens, of which chat takes 200, and half of what is left the batch."""
    classes = """
[[classes]]
name = "chat"
input = 100
decode = 1
rate = 2
priority = 0
slo = { ttft_s.p95 = "1 s" }

[[classes]]
name = "batch"
input = 400
decode = 1
backlog = 100
deadline = "100 s"
priority = 1
"""
    text = TWO.partition("slo =")[0].replace("10 ms", "1 us")
    return profile(f'{text}engine = {{ scheduling = "priority" }}\n{classes}')


def test_the_first_screen_of_a_report_has_what_each_class_was_promised() -> None:
    found = tiers()
    said = notes.room(Analyses(found.model, found.plan))
    assert said == (
        "2 requests/s of batch fill what goes before them leaves, now 1; --trial: what that does to ttft. "
        "The backlog takes 50 s at least."
    )
    times = {"ttft_s": {"p95": 0.25}, "e2e_s": {"p99": 150.0}}
    promised = promises({"chat": 0, "batch": 1}, found.plan.slos)
    known = {"promised": promised, "room": said, "latency": {"classes": [times, times]}}
    rows = [*first_screen(Ledger(known))]
    assert rows[rows.index(("By class", "", "")) + 1 :][:3] == [
        ("ttft p95 of chat", "250 ms, limit 1 s: met", "simulated"),
        ("e2e p99 of batch", "2.5 min, limit 1.67 min: missed", "simulated"),
        ("Room", said, "computed"),
    ]
    grows = [*first_screen(Ledger({**known, "latency": {"classes": []}}))]
    assert ("ttft p95 of chat", "–, limit 1 s: not known", "simulated") in grows
    assert notes.room(Analyses(profile().model, profile().plan)) == ""


@every(
    ("now_s", "filled_s", "said"),
    [
        (0.2, 0.4, "now 1; with 1.8 ttft p95 of chat goes from 200 ms to 400 ms. The"),
        (None, 0.4, "now 1; with 1.8 ttft p95 of chat is 400 ms. The"),
        (0.2, None, "now 1. The"),
        (None, None, "now 1. The"),
    ],
)
def test_what_the_first_class_feels_is_said_as_far_as_it_is_known(
    now_s: float | None, filled_s: float | None, said: str
) -> None:
    found = tiers()
    with pytest.MonkeyPatch.context() as patch:
        seen = Behind("batch", "chat", 1.0, 2.0, 1.8, now_s, filled_s)
        patch.setattr(notes, "behind", lambda *_, tried: seen)
        assert said in notes.room(Analyses(found.model, found.plan), tried=True)


AGENTS = """\
schema = 1
name = "one class goes before agents"
gpu = { memory_tokens = 10_000, block_tokens = 16 }
timing = { d0 = "10 ms" }
engine = { scheduling = "priority" }
classes = [{ name = "chat", input = 100, decode = 2, rate = 1, priority = -1 }]

[[sessions]]
name = "agent"
rate = 0.1
first = 100
user = 50
decode = 5
turns = 3
think = { law = "fixed", value = "1 s" }
"""


def test_policies_that_know_no_priorities_are_named() -> None:
    found = profile(AGENTS)
    run = study(found.model, found.plan, Load(requests=20), chosen(["vllm", "sglang"], []), [0])
    assert "Priorities of classes count for vllm alone, not for sglang." in needed(run)
    alone = study(found.model, found.plan, Load(requests=20), chosen(["vllm"], []), [0])
    assert not any("Priorities" in said for said in needed(alone))


def test_a_cap_on_conversations_which_has_queues_of_its_own_refuses_priorities() -> None:
    found = profile(AGENTS)
    with pytest.raises(
        UsageError, match=r'session-cap: not modelled beside \[engine\] scheduling = "priority"'
    ):
        study(found.model, found.plan, Load(requests=20), chosen(["session-cap"], []), [0])
    collapses = shipped.profile("agents-collapse")
    model = replace(collapses.model, engine=Engine(scheduling=Scheduling.PRIORITY))
    assert session_cap(model, collapses.plan) is None
