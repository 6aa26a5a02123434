"""Both simulators on runs worked out by hand, of every policy (`hand_traces.txt`)."""

from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from every import check_every
from small_runs import CLASSES, Case, agree, run

from kvplan.model import Prefill, Replica, Timing
from kvplan.simulation.outcome import Ending
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.requests import Requests

LINES = [line for line in Path(__file__).with_name("hand_traces.txt").read_text().splitlines() if line]
JUDGED_ELSEWHERE = {"trtllm-max-utilization", "session-cap"}  # against slow models of their own
OF_CLASSES = ("thresholds", "budgets", "max_new")  # a number for each


def fields(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


def rows(text: str) -> Iterator[tuple[float, ...]]:
    for word in text.split():
        times, _, row = word.rpartition("x")
        arrival, inputs, decode, *kind = row.split("/")
        yield from [(float(arrival), int(inputs), int(decode), *map(int, kind or ["0"]))] * int(times or 1)


def case_of(name: str, given: str, replica: str, requests: str) -> Case:
    """A run as it is written down."""
    said, set_ = fields(replica), {}
    law = Timing(1.0, **{key: float(said.pop(key)) for key in list(said) if key in ("d1", "d2", "d3")})
    prefill = Prefill(said.pop("prefill", "fused"))
    for key, text in fields(given).items():
        values = [float(x) for x in text.split(",")]
        more = CLASSES - len(values) if key in OF_CLASSES and name != "nested-wait" else 0
        set_[key] = (*values, *values[-1:] * more)
    words = requests.split()
    options = fields(" ".join(word for word in words if "=" in word))
    columns = zip(*rows(" ".join(word for word in words if "=" not in word)), strict=True)
    arrival, inputs, decode, kind = (np.array(column) for column in columns)
    clients = int(options["clients"]) if "clients" in options else None
    return Case(
        Requests(arrival, inputs, decode, kind, clients, at_once="at_once" in options),
        law,
        Replica(**{key: int(value) for key, value in said.items()}, prefill=prefill),
        set_,
        float(options["horizon"]) if "horizon" in options else None,
    )


def traces() -> dict[str, tuple[str, str]]:
    """What is run and what comes of it, by what is to be seen in it."""
    found, title = {}, ""
    for line, following in pairwise(chain(LINES, [""])):
        if line.startswith("#"):
            title = line.removeprefix("# ")
        elif not line.startswith(" "):
            found[f"{title} {line}"] = (line, following)
    return found


def test_every_policy_runs_as_by_hand() -> None:
    def check(trace: tuple[str, str]) -> None:
        policy, *parts = (part.strip() for part in trace[0].split("|"))
        name, _, given = policy.partition(" ")
        case = case_of(name, given, *parts)
        outcome = run(name, case)
        finish, kv_tokens, evictions = (part.split() for part in trace[1].split("|"))
        done = [float("nan") if word == "-" else float(word) for word in finish]
        assert outcome.finish_s.tolist() == pytest.approx(done, nan_ok=True)
        assert outcome.series.kv_tokens.tolist() == [int(word) for word in kv_tokens]
        assert outcome.evictions.tolist() == [int(word) for word in evictions]
        stuck = "-" in finish and case.horizon_s is None
        assert (outcome.ending is Ending.LIVELOCK) == stuck
        agree(name, case, outcome)

    check_every(traces(), check)
    assert {line.split()[0] for line, _ in traces().values()} >= POLICIES.keys() - JUDGED_ELSEWHERE
