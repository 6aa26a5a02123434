"""Rates that data-parallel ranks sustain, against a lock-step model under a backlog that is slow and obvious."""

import numpy as np
import pytest
from slow_ranks import step_together
from tiers import at_night

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.gate.check import check
from kvplan.gate.requirement import parse
from kvplan.model import Plan, Replica, Timing
from kvplan.model.gaps import Exponential
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions, SharedPrompt
from kvplan.profile.reading import parse_profile
from kvplan.report.figures import Figures
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests
from kvplan.simulation.sessions import population, with_shared_prompts

LEAST_REQUESTS, OF_A_CLIENT = 5_000, 12  # of the slow model, of which two fifths count
PROFILE = """\
schema = 1
name = "ranks"

[gpu]
memory_tokens = {memory}
block_tokens = 16
max_num_batched_tokens = {budget}
data_parallel = {ranks}

[timing]
{law}

{traffic}
"""
CLASS = """\
[[classes]]
name = "a"
input = {input}
decode = {decode}
rate = 1
"""
SESSION = """\
[[sessions]]
name = "a"
shared = {shared}
first = {first}
user = {user}
decode = {decode}
turns = {{ 2 = 1, 4 = 1 }}
think = {{ law = "exponential", mean = "1 s" }}
rate = 1
"""


def uniform(low: int, high: int) -> str:
    return f"{{ uniform = [{low}, {high}] }}"


def rates(seed: int) -> tuple[float, float]:
    """Requests/s that a random profile sustains, by its report and by the slow model."""
    rng = np.random.default_rng([seed, 52])
    ranks, in_sessions, experts = (2, 4, 8)[seed % 3], seed % 2 == 1, seed % 4 < 2
    shared, user, decode = int(rng.choice([0, 96])), int(rng.integers(20, 60)), int(rng.integers(15, 40))
    laws = [Lengths.uniform(low, 3 * low) for low in (80, user, decode)]
    talk = Sessions(*laws, Lengths.of({2: 1.0, 4: 1.0}), Exponential(1.0), shared)
    longest = talk.longest if in_sessions else shared + 240 + 3 * decode
    memory, budget = 16 * int(longest * rng.uniform(8, 20) / 16), int(rng.choice([256, 512]))
    law = dict(zip(("d0", "d1", "d2", "d3", "all_ranks"), rng.uniform(LEAST, MOST).tolist(), strict=True))
    law |= {"experts": 0.01, "chosen": 0.02} if experts else {}
    written = {key: value if key == "chosen" else f'"{value!r} s"' for key, value in law.items()}
    own = {"decode": uniform(decode, 3 * decode), "shared": shared, "user": uniform(user, 3 * user)}
    traffic = (
        SESSION.format(first=uniform(80, 240), **own)
        if in_sessions
        else CLASS.format(input=uniform(80 + shared, 240 + shared), **own)
        + f"shared = {shared}\n" * (shared > 0)
    )
    text = PROFILE.format(
        **{"memory": memory, "budget": budget, "ranks": ranks, "traffic": traffic},
        law="\n".join(f"{key} = {value}" for key, value in written.items()),
    )
    profile = parse_profile(text.encode(), "ranks.toml")
    rank = Replica(memory, 16, max_num_batched_tokens=budget)
    clients = int((1.5 if in_sessions else 2.5) * ranks * memory / (200 + shared / 2))
    requests = backlog(talk, clients, rng) if in_sessions else strangers(laws, shared, clients, rng)
    found = step_together("vllm", requests, Timing(**law), rank, ranks, 1, {})
    size = requests.arrival_s.size
    finish = np.sort(found.finish_s)[size * 4 // 10 : size * 8 // 10]
    load = Figures(profile.model, profile.plan).load
    assert load.sustainable_low is not None  # it comes from runs
    return load.sustainable_rps, (finish.size - 1) / float(finish[-1] - finish[0])


LEAST, MOST = (0.004, 1e-7, 2e-5, 2e-5, 1e-6), (0.02, 2e-6, 1e-4, 1e-4, 1e-5)


def requests_of(clients: int) -> int:
    return max(LEAST_REQUESTS, OF_A_CLIENT * clients)


def backlog(talk: Sessions, users: int, rng: np.random.Generator) -> Requests:
    """Sessions of so many users that turns wait until nothing of what came before is left."""
    return population([talk], rng, users=[users], requests=requests_of(users))


def strangers(laws: list[Lengths], shared: int, clients: int, rng: np.random.Generator) -> Requests:
    size = requests_of(clients)
    prompts, _, answers = (rng.choice(law.values, size) for law in laws)
    alone = Requests(
        np.zeros(size), prompts + shared, answers, np.zeros(size, dtype=np.int64), clients=clients
    )
    return with_shared_prompts(alone, [[SharedPrompt(shared)] if shared else []], rng)


def test_a_gate_on_ranks_fails_by_the_rate_that_they_serve_and_names_it() -> None:
    """DeepSeek-V3 on 8 H200, 4k/1k: by formula 4.0 requests/s, in an independent simulator a queue from 2.0 on."""
    text = PROFILE.format(
        **{"memory": 964_272, "budget": 8_192, "ranks": 8},
        law="""d0 = "9.355 ms"\nd1 = "0.008612 us"\nd2 = "180 us"\nd3 = "180 us"
experts = "20.03 ms"\nall_ranks = "22.45 us"\nchosen = 0.03125
measured = { band = [0.87, 1.39] }""",
        traffic=CLASS.format(
            input="{ lognormal = { mean = 4000, cv = 0.95 } }",
            decode="{ lognormal = { mean = 1000, cv = 0.95 } }",
        ).replace("rate = 1", "rate = 2.5"),
    )
    profile = parse_profile(text.encode(), "gate.toml")
    wanted = [parse("load.headroom >= 20%"), parse("verdict.status != overloaded")]
    found = check(profile, None, wanted, changes=False)
    assert [result.judgement.passed for result in found.results] == [False, False]
    headroom, status = (result.judgement.got for result in found.results)
    assert isinstance(headroom, float)
    assert 1.2 < 2.5 * (1 + headroom) < 2.0
    assert status == "overloaded"
    assert any(f"Sustainable are then {2.5 * (1 + headroom):.4g} " in note for note in found.notes)


@pytest.mark.parametrize("seed", [4, 6, 9, *at_night(*(n for n in range(20) if n not in (4, 6, 9)))])
def test_ranks_sustain_what_they_serve_in_a_slow_model(seed: int) -> None:
    sustained, served = rates(seed)
    assert sustained == pytest.approx(served, rel=0.03)


@pytest.mark.parametrize("routing", ["random", "session"])
def test_turns_find_what_they_said_at_their_rank_as_formulas_say(routing: str) -> None:
    """Of prompt tokens, half a minute after the start; above 70% only where turns stay."""
    own = {"shared": 480, "user": uniform(100, 300), "decode": uniform(50, 150), "first": uniform(400, 1200)}
    text = PROFILE.format(
        **{"memory": 60_000, "budget": 2_048, "ranks": 4},
        law='d0 = "8 ms"\nd1 = "0.02 us"\nd2 = "40 us"\nd3 = "50 us"\nall_ranks = "1 us"',
        traffic=SESSION.format(**own).replace("2 = 1, 4 = 1", "3 = 1, 9 = 1")
        + f'\n[fleet]\nreplicas = 1\nrouting = "{routing}"',
    )
    model = parse_profile(text.encode(), "turns.toml").model
    requests = generate(model, Load(requests=None, horizon_s=300.0), 1)
    run = Job(Settings("vllm", {}), Scenario(model, Plan(), requests, ("a",)), 300.0).run()
    assert run.found is not None
    late = run.first_token_s > 30
    found = run.found.hit_tokens[late].sum() / requests.input_tokens[late].sum()
    state = prefix_cache(cached_replica(model)).expected
    assert state is not None
    assert state.hit_ratio == pytest.approx(found, rel=0.06)
    assert bool(found > 0.7) == (routing == "session")
