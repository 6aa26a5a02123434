"""Limits of `[gpu]` that policies keep: how many requests run at once, and how many tokens an iteration computes."""

from kvplan.errors import UsageError
from kvplan.simulation.policies.protocol import Scenario, Settings

SEQUENCES, TOKENS = "max_num_seqs", "max_num_batched_tokens"
UNLIMITED = 1 << 50
MOST_RUNNING = {SEQUENCES: "most requests running; the profile's"}
LIMITS = {**MOST_RUNNING, TOKENS: "token budget of an iteration; the profile's"}


def most_running(scenario: Scenario, settings: Settings, name: str = SEQUENCES) -> int | None:
    """Most requests that hold memory at once, a parameter that engines name differently; None: as many as fit."""
    return _limit(settings, name, scenario.model.replica.max_num_seqs)


def token_budget(scenario: Scenario, settings: Settings) -> int | None:
    """Most tokens that an iteration computes; None: as many as there are."""
    return _limit(settings, TOKENS, scenario.model.replica.max_num_batched_tokens)


def _limit(settings: Settings, name: str, of_profile: int | None) -> int | None:
    limit = settings.number(name, of_profile or UNLIMITED)
    if limit < 1 or limit != int(limit):
        raise UsageError(f"{settings.policy}.{name} = {limit:g}: a whole number above 0")
    return None if limit == UNLIMITED else int(limit)
