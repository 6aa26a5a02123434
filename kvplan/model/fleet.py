"""A fleet: replicas of one kind that do everything, or some that prefill and others that decode."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kvplan.model.replica import Replica
from kvplan.model.timing import Timing


class Routing(StrEnum):
    """Which replica a request goes to."""

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    LEAST_REQUESTS = "least-requests"
    LEAST_KV = "least-kv"
    SESSION = "session"


AT_RANDOM = (Routing.RANDOM, Routing.SESSION)  # a request, or a conversation, to any replica


class Hardware(NamedTuple):
    """Iteration times, memory, limits and GPUs of a replica."""

    timing: Timing
    replica: Replica


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas of a fleet, and how requests come to them."""

    prefill: int = 0  # replicas that compute prompts ...
    decode: int = 0  # ... and that generate; 0 of both where replicas do both
    replicas: int = 0  # that do both; 0 where prefill and decode are apart
    routing: Routing = Routing.LEAST_REQUESTS  # to replicas; to those of either side where they are apart
    # of a prompt's KV cache, from side to side; None: it takes no time
    transfer_bytes_per_s: float | None = None
    bytes_per_token: float | None = None  # of KV cache, of pool tokens where layers differ
    prefill_on: Hardware | None = None  # None: as those that do both
    decode_on: Hardware | None = None

    @property
    def is_split(self) -> bool:
        """Tell whether prefill and decode are apart."""
        return self.replicas == 0

    @property
    def size(self) -> int:
        return self.prefill + self.decode + self.replicas

    def transfer_s(self, tokens: float) -> float:
        """Seconds that the KV cache of so many tokens (pool tokens where layers differ) takes to the other side."""
        if self.transfer_bytes_per_s is None or self.bytes_per_token is None:
            return 0.0
        return tokens * self.bytes_per_token / self.transfer_bytes_per_s
