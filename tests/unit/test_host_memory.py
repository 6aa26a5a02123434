"""The least host memory that saves replicas."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import shipped
from every import every

from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import find_gpu
from kvplan.model import Parallelism
from kvplan.model.replica import Offload, Replica
from kvplan.options import PlanOptions
from kvplan.planning.host_memory import GIB, LINK, HostMemory, Tier, token_bytes
from kvplan.planning.kinds import kinds
from kvplan.planning.options import request
from kvplan.planning.plan import plan
from kvplan.planning.result import Plan
from kvplan.planning.search import Candidate, Setting
from kvplan.profile.reading import parse_profile
from kvplan.show.page import Paragraph, Table
from kvplan.show.plan import _host_memory, _taken
from kvplan.study.drain import SEEDS
from kvplan.study.trial import Task, recovers


@pytest.mark.nightly
def test_the_tier_that_is_chosen_ends_the_collapse_and_a_quarter_less_does_not() -> None:
    """By runs of a standard burst, block by block: two replicas without, one with it."""
    asked = PlanOptions(offload=(), replica_hour={"": 24.0}, memory_hour=0.002)
    none, tier = plan(request(["agents-collapse"], asked)).host_memory
    assert (none.gib, none.replicas, none.per_hour) == (0.0, 2, 2 * 24.0)
    assert tier == Tier(*tier[:-1], per_hour=24.0 + 0.002 * tier.gib)
    assert tier.replicas == 1
    profile = shipped.profile("agents-collapse")
    token = token_bytes(profile, None)

    def comes_back(gib: float) -> int:
        host = Offload(int(gib * GIB) // token, token / LINK)
        model = replace(profile.model, replica=replace(profile.model.replica, offload=host))
        seen = recovers(model, profile.plan)
        assert seen is not None
        return seen.drain.within(seen.within_s)

    assert [comes_back(share * tier.gib) for share in (0.0, 0.75, 1.0)] == [0, 0, SEEDS]


class Judged(HostMemory):
    """Three replicas hold without a tier, two with 150 GiB; nothing does below `least` GiB."""

    __slots__ = ()
    least = 0.0

    def _holds(self, gib: float, replicas: int) -> bool:
        return gib >= self.least and replicas >= (2 if gib >= 150 else 3)

    def _tier(self, gib: float, replicas: int) -> Tier:
        return Tier(gib, replicas, None, 0.0, 0.0, 0.0)


def rows(kind: type[HostMemory], planned: int, own: Offload | None) -> list[tuple[float, int]]:
    winner = SimpleNamespace(task=SimpleNamespace(model=SimpleNamespace(replica=Replica(9, offload=own))))
    host = kind(1, cast(Candidate, winner), Setting(planned, 9), 0.0)
    return [(tier.gib, tier.replicas) for tier in host.tiers((100.0, 200.0))]


def test_a_tier_that_the_profile_has_does_not_count_in_rows_without_it_or_with_less() -> None:
    own = Offload(9, 1.0)
    assert rows(Judged, 2, own) == rows(Judged, 3, None) == [(0.0, 3), (100.0, 3), (200.0, 2)]
    assert rows(type("Scarce", (Judged,), {"least": 120.0}), 2, own) == [(200.0, 2)]


def test_a_spare_replica_is_priced_with_its_memory() -> None:
    profile = shipped.profile("agents-collapse")
    winner = Candidate("a", Task(profile.model, profile.plan), 24.0, None, None, ())
    host = HostMemory(token_bytes(profile, None), winner, Setting(2, None), 0.002, spare=1)
    assert host._tier(500.0, 1).per_hour == pytest.approx(2 * (24 + 1))


def test_the_screen_says_what_a_profile_takes_for_a_tier() -> None:
    """Llama-3.1-8B keeps K and V of 32 layers, 8 heads of 128, in two bytes; two GPUs have a link each."""
    kind = next(kinds(read_model("Llama-3.1-8B"), [find_gpu("H100")], parallelism=[Parallelism(2)]))
    task = SimpleNamespace(model=SimpleNamespace(replica=Replica(9, gpus=2)))
    shown = SimpleNamespace(winner=SimpleNamespace(name="", task=task), kind=lambda _: kind)
    assert _taken(cast(Plan, shown), Tier(1400.0, 3, None, 0.0, 0.0, 0.0)) == (
        'For 3 the profile takes [gpu.offload] memory = "1400 GiB" and bandwidth = "50 GB/s", with [gpu] '
        f"kv_bytes_per_token = {2 * 32 * 8 * 128 * 2}."
    )


def bare_plan(**given: Any) -> Plan:
    """What is asked of a plan whose replica has a GPU and no tier."""
    task = SimpleNamespace(model=SimpleNamespace(replica=Replica(9)))
    return cast(
        Plan, SimpleNamespace(winner=SimpleNamespace(name="", task=task), kind=lambda _: None, **given)
    )


@every(
    ("priced", "rows", "said"),
    [
        (True, ((0, 10, 120), (250, 9, 130.5), (1200, 4, 96)), "For 4 the profile takes: 1200 GiB"),
        (True, ((0, 10, 120), (100, 8, 100), (200, 7, 110)), "For 8 the profile takes: 100 GiB"),
        (True, ((0, 10, 120), (250, 9, 130.5), (1200, 4, 120)), "No tier is cheaper than none."),
        (True, ((200, 2, 9), (100, 3, 12)), "For 2 the profile takes: 200 GiB"),  # none does not hold
        (False, ((0, 10, 40), (9, 9, 36), (70, 4, 16), (50, 4, 16)), "For 4 the profile takes: 50 GiB"),
        (False, ((0, 4, 16), (250, 4, 16)), "No tier saves a replica."),
    ],
)
def test_the_screen_names_the_tier_that_is_best(
    priced: bool, rows: tuple[tuple[float, int, float], ...], said: str
) -> None:
    tiers = tuple(Tier(gib, replicas, 0.5, 3.0, 2.0, paid) for gib, replicas, paid in rows)
    request = SimpleNamespace(offload=(), priced=priced)
    table, told = _host_memory(bare_plan(host_memory=tiers, request=request))
    assert isinstance(told, Paragraph)
    assert told.text.replace(' [gpu.offload] memory = "', ": ").startswith(said)
    assert isinstance(table, Table)
    each = [column.name for column in table.columns if column.name.endswith(", each")]
    assert each == ["host memory, each", "warm, each", "guaranteed, each"]  # beside totals of all replicas


def test_bytes_of_a_token_follow_from_layers_of_one_kind() -> None:
    text = """
        schema = 1
        name = "one kind"
        gpu.kv_blocks = 900
        gpu.block_tokens = 16
        gpu.tensor_parallel = 2
        gpu.kv = [{ kind = "full", layers = 32, bytes = 4096 }]
        timing = { d0 = "10 ms" }
        classes = [{ name = "a", input = 800, shared = 400, decode = 60, rate = 1 }]
    """
    assert token_bytes(parse_profile(text.encode(), "x.toml"), None, (1.0,)) == 2 * 32 * 4096
