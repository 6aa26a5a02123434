"""Users of a closed population against the block-exact simulator: as many hits, requests and KV as theory says."""

import numpy as np
import pytest

from kvplan.model import Plan
from kvplan.profile.reading import parse_profile, shipped_profiles
from kvplan.report.assembly import Analyses
from kvplan.simulation.experiments.load import Arrivals, Load, generate
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.policies.protocol import Scenario, Settings

END_S, SETTLED_S = 6000.0, 1500.0
HARDER = [pytest.param(*case, marks=pytest.mark.nightly) for case in ((240, 0.015), (400, 0.03))]


@pytest.mark.parametrize(("users", "near"), [(360, 0.015), *HARDER])
def test_users_are_served_as_theory_says(users: int, near: float) -> None:
    """Past the peak of the rate more users are served less, and hits fall so steeply that fluctuations show."""
    text = shipped_profiles()["agents-collapse"].read_text("utf-8")
    model = parse_profile(text.replace("rate = 0.834", f"users = {users}").encode(), "users.toml").model
    found = Analyses(model, Plan())
    drawn = generate(model, Load(Arrivals.POISSON, None, END_S), 1)
    job = Job(Settings("vllm", {}), Scenario(model, Plan(), drawn, ("agent",)), END_S)
    run = job.run(lambda _: True, None, True)
    settled = (run.arrival_s > SETTLED_S) & ~np.isnan(run.first_token_s)
    hits = run.found.hit_tokens[settled].sum() / drawn.input_tokens[settled].sum()
    served = np.count_nonzero(run.finish_s > SETTLED_S) / (END_S - SETTLED_S)
    late = run.series.time_s > SETTLED_S
    assert hits == pytest.approx(found.prefix_cache.hit_ratio, abs=near)
    assert served == pytest.approx(found.load.offered_rps, rel=2 * near)
    assert run.series.kv_tokens[late].mean() == pytest.approx(found.equilibrium.kv_tokens, rel=4 * near)
