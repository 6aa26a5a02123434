"""What bounds the requests of an engine: how many run at once, tokens in an iteration, and how long one waits.

The first two are limits of `[gpu]` too.
"""

import math

from kvplan.errors import UsageError
from kvplan.simulation.policies.protocol import Scenario, Settings

SEQUENCES, TOKENS = "max_num_seqs", "max_num_batched_tokens"
UNLIMITED = 1 << 50
MOST_RUNNING = {SEQUENCES: "most requests running; the profile's"}
LIMITS = {**MOST_RUNNING, TOKENS: "token budget of an iteration; the profile's"}
_MOST_PARTS = 10_000  # of a prompt, an iteration each; ten million tokens in parts of a thousand, say
SHED_AFTER = "shed_after"
PATIENCE = {SHED_AFTER: "seconds of waiting after which a request that has never run is given up; never"}


def most_running(scenario: Scenario, settings: Settings, name: str = SEQUENCES) -> int | None:
    """Most requests that hold memory at once, a parameter that engines name differently; None: as many as fit."""
    return _limit(settings, name, scenario.model.replica.max_num_seqs)


def token_budget(scenario: Scenario, settings: Settings) -> int | None:
    """Most tokens that an iteration computes; None: as many as there are."""
    budget = _limit(settings, TOKENS, scenario.model.replica.max_num_batched_tokens)
    longest = int(scenario.requests.input_tokens.max(initial=0))
    if budget is not None and longest > _MOST_PARTS * budget:
        raise UsageError(
            f"{settings.policy}.{TOKENS} = {budget:,}: a prompt has {longest:,} tokens, and more than {_MOST_PARTS:,} "
            "times the budget is not simulated"
        )
    return budget


def patience(scenario: Scenario, settings: Settings) -> float:
    """How long a request waits that has never run, seconds; infinite: to the end."""
    seconds = settings.number(SHED_AFTER, math.inf)
    if seconds < 0:
        raise UsageError(f"{settings.policy}.{SHED_AFTER} = {seconds:g}: seconds, 0 or more")
    looked_up = scenario.model.replica.layout is not None or scenario.requests.drafted is not None
    if seconds < math.inf and looked_up:
        raise UsageError(
            f"{settings.policy}.{SHED_AFTER}: not modelled beside drafts or layers of several kinds"
        )
    return seconds


def known(seconds: float) -> float | None:
    """A time as a parameter in the output; None: never."""
    return None if seconds == math.inf else seconds


def _limit(settings: Settings, name: str, of_profile: int | None) -> int | None:
    limit = settings.number(name, of_profile or UNLIMITED)
    if limit < 1 or limit != int(limit):
        raise UsageError(f"{settings.policy}.{name} = {limit:g}: a whole number above 0")
    return None if limit == UNLIMITED else int(limit)
