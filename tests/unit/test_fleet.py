"""A fleet by formula: what one replica gets, times of a split against the simulator, who is said to win."""

from dataclasses import replace

import numpy as np
import pytest
from strategies import one_class

from kvplan.analysis.cached_equilibrium import with_rates_of_users
from kvplan.analysis.fleet import FleetFigures, fleet_figures, one_replica
from kvplan.analysis.split import served, sides, transfers_s
from kvplan.model import ArrivalProcess, Plan, Prefill, Prompt, Replica, RequestClass, ServingModel, Timing
from kvplan.model.drafts import Drafts
from kvplan.model.fleet import Fleet
from kvplan.model.gaps import Exponential
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions
from kvplan.model.slo import parse_slo
from kvplan.report.blocks import fleet_block
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.experiments.study import study
from kvplan.study.operating_point import operating_point, timed

LAW = Timing(8e-3, 0.04e-6, 25e-6, 15e-6)
SPLIT = Fleet(5, 3, transfer_bytes_per_s=20e9, bytes_per_token=131_072)


def fleet(model: ServingModel, **limits: float) -> FleetFigures:
    wanted = {key.replace("__", "."): bound for key, bound in limits.items()}
    found = fleet_figures(model, wanted)
    assert found is not None
    return found


def chat(fleet: Fleet = SPLIT, rate: float = 60.0, **more: int) -> ServingModel:
    replica = Replica(450_000, 16, max_num_batched_tokens=8192, **more)
    return ServingModel((one_class(2000, 200, rate),), LAW, replica, fleet=fleet)


def test_one_replica_gets_its_share_at_random() -> None:
    model = replace(chat(Fleet(replicas=4)), arrivals=ArrivalProcess(cv=3.0))
    one = one_replica(model)
    assert (one.total_rate_rps, one.fleet) == (15.0, None)
    assert one.arrivals.cv**2 == pytest.approx(1 + (9 - 1) / 4)
    assert one_replica(one) is one


def test_users_of_a_fleet_ask_as_fast_as_their_parts_on_single_replicas() -> None:
    """400 users on four replicas, as 100 on one of them; a memory for some 60 at a time slows all of them."""
    tokens = Lengths.of({100: 1.0})
    law = Sessions(Lengths.of({900: 1.0}), tokens, tokens, Lengths.of({3: 1.0}), Exponential(1.0), users=100)
    asking = RequestClass("agents", 1100, (100,), (1.0,), 1.0, sessions=law, prompts=(Prompt(1100, 1.0),))
    one = with_rates_of_users(ServingModel((asking,), LAW, Replica(60_000)))
    more = replace(asking, sessions=replace(law, users=400))
    all_of_them = with_rates_of_users(ServingModel((more,), LAW, Replica(60_000), fleet=Fleet(replicas=4)))
    assert all_of_them.total_rate_rps == pytest.approx(4 * one.total_rate_rps)
    assert one_replica(all_of_them).total_rate_rps == pytest.approx(one.total_rate_rps)
    assert one_replica(all_of_them).classes[0].sessions == law


def by_hand(model: ServingModel) -> dict[str, tuple[float, ...]]:
    """Of prefill, decode and both: sequences, KV read, prompt tokens and seconds of work a request, stage by stage."""
    law, rows = model.timing, []
    for c in model.classes:
        for decode, weight in zip(c.decode_tokens, c.decode_weights, strict=True):
            rows.append((c.rate_rps * weight / sum(c.decode_weights), c.input_tokens, decode))
    total, found = sum(rate for rate, *_ in rows), {}
    for side, first, last in (("prefill", 1, 1), ("decode", 2, None), ("together", 1, None)):
        sums = np.zeros(3)
        for rate, prompt, decode in rows:
            stages = range(first, (last or decode) + 1)
            sums += (
                np.array(
                    [len(stages), sum(prompt + k for k in stages), prompt if first == 1 else 0.0], dtype=float
                )
                * rate
                / total
            )
        sequences, read, computed = sums
        found[side] = (sequences, read, computed, law.d1 * read + law.d2 * computed + law.d3 * sequences)
    return found


def test_sides_do_what_their_stages_do() -> None:
    """With answers of one token among them, which leave after the prompt."""
    model = replace(
        chat(), classes=(one_class(2000, (1, 200, 400), 60.0), one_class(300, 50, 20.0, name="b"))
    )
    found, known = sides(model, SPLIT), by_hand(model)
    for name, side in (("prefill", found.prefill), ("decode", found.decode), ("together", found.together)):
        said = (side.sequences, side.read, side.prefill_tokens, side.work_s)
        assert said == pytest.approx(known[name]), name


def test_only_what_goes_on_is_moved() -> None:
    """Of answers of 1 and of 200 tokens half, and of layers of several kinds what the blocks of a prompt hold."""
    model = replace(chat(), classes=(one_class(2000, (1, 200), 60.0),))
    assert sides(model, SPLIT).prefill.link_s == pytest.approx(0.5 * SPLIT.transfer_s(2000))
    layers = (Layers(Attention.FULL, 10, 8192), Layers(Attention.WINDOW, 50, 8192, window=1024))
    mixed = replace(chat(), replica=replace(chat().replica, layout=KvLayout(layers, 16)))
    held = 6 * 2000  # in whole blocks of six groups of ten layers
    assert transfers_s(mixed, SPLIT).tolist() == pytest.approx([SPLIT.transfer_s(held)])


def test_times_of_a_split_are_those_of_the_simulator() -> None:
    """TTFT has the queue, the prompt's own iteration and the transfer; ITL all that comes after the first token."""
    apart = Fleet(1, 1, transfer_bytes_per_s=1e9, bytes_per_token=20_000)
    replica = Replica(10**6, max_num_batched_tokens=1024)
    model = ServingModel((one_class(900, 30, 12.0),), LAW, replica, fleet=apart)
    found = timed(fleet(model), model, Plan(), operating_point(model, Plan()).latency).split
    run = study(model, Plan(), Load(requests=16_000), chosen(["vllm"], []), [0]).results[0]
    assert apart.transfer_s(900) == pytest.approx(0.018)
    assert found.ttft_s == pytest.approx(run.figures["ttft_s.mean"], rel=0.03)
    assert found.itl_s == pytest.approx(run.figures["itl_s.mean"], rel=0.01)


def test_together_the_best_split_of_as_many_gpus_stands_beside() -> None:
    found = fleet(chat(Fleet(replicas=8), gpus=2), tpot_s__mean=0.02)
    assert (found.split.prefill, found.split.decode, found.split.gpus) == (5, 3, 16)
    assert (found.together.replicas, found.together.gpus) == (8, 16)
    single = fleet(chat(Fleet(replicas=1), rate=5.0))
    assert (single.split.prefill, single.split.rate_rps, single.winner) == (None, None, None)


def test_the_budget_that_keeps_iterations_even() -> None:
    """What they compute in 20 ms: all tokens of 8.6 requests/s in that time."""
    found = fleet(chat(), tpot_s__mean=0.02)
    both = served(sides(chat(), SPLIT).together, 0.02)
    assert found.budget_tokens == pytest.approx(both.rate_rps * 0.02 * 2199)
    assert fleet(chat()).budget_tokens is None


def test_what_no_formula_covers_has_no_rates() -> None:
    drafted = replace(chat(Fleet(replicas=8)), drafts=Drafts(1, (0.5,)))
    found = fleet(drafted)
    assert (found.split.rate_rps, found.together.rate_rps, found.winner) == (None, None, None)
    assert found.uncovered == "speculative decoding"
    inline = fleet(replace(chat(), replica=replace(chat().replica, prefill=Prefill.INLINE)))
    assert inline.split.rate_rps is not None
    assert inline.split.ttft_s is None


def block_text(model: ServingModel, *slos: str) -> str:
    figures = fleet_figures(model, Plan(slos=tuple(map(parse_slo, slos))).limits)
    found = fleet_block(figures, proved=model.timing.is_linear)
    return found.reason


def test_the_reason_says_what_binds_and_where_the_winner_changes() -> None:
    said = block_text(chat(), "tpot_s.mean <= 20 ms")
    assert "5 prefill replicas serve 96.06 requests/s (limit: max_num_batched_tokens)" in said
    assert "3 decode replicas serve 91.33 requests/s (limit: the time between tokens)" in said
    assert "below 49.4 ms (here: 20 ms)" in said
    assert "above 213 ms, the time of a full prefill iteration" in said
    assert "5 + 3 would serve 96.06." in block_text(chat(Fleet(4, 4)))
    assert "(here: none)" in block_text(chat())
    assert "By rate together serves more whatever" in block_text(chat(Fleet(7, 1)))
    assert "full prefill iteration" not in block_text(replace(chat(), timing=replace(LAW, d4=1e-4)))
    assert "too few GPUs" in block_text(chat(Fleet(replicas=1), 5.0))
    assert "No formula covers speculative" in block_text(replace(chat(), drafts=Drafts(1, (0.5,))))
