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


class Hardware(NamedTuple):
    """What a replica runs on: how long its iterations take, its memory, limits and GPUs."""

    timing: Timing
    replica: Replica


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas of a fleet, and how requests come to them.

    Attributes
    ----------
    prefill, decode
        Replicas that compute prompts, and those that generate; 0 of both where replicas do both.
    replicas
        Replicas that do both; 0 where prefill and decode are apart.
    routing
        Of requests to replicas; to those of either side where they are apart.
    transfer_bytes_per_s
        Rate at which the KV cache of a prompt goes from one side to the other; None: it takes no time.
    bytes_per_token
        Of KV cache, of pool tokens where layers differ; None where nobody needs to know.
    prefill_on, decode_on
        What replicas of either side run on; None: as those that do both.

    Examples
    --------
    A prompt of 2,000 tokens at 131,072 bytes each over 20 GB/s:

    >>> fleet = Fleet(3, 5, transfer_bytes_per_s=20e9, bytes_per_token=131_072)
    >>> fleet.is_split, fleet.size, round(1e3 * fleet.transfer_s(2000), 3)
    (True, 8, 13.107)
    """

    prefill: int = 0
    decode: int = 0
    replicas: int = 0
    routing: Routing = Routing.LEAST_REQUESTS
    transfer_bytes_per_s: float | None = None
    bytes_per_token: float | None = None
    prefill_on: Hardware | None = None
    decode_on: Hardware | None = None

    @property
    def is_split(self) -> bool:
        """Whether prefill and decode are apart."""
        return self.replicas == 0

    @property
    def size(self) -> int:
        """Replicas in all."""
        return self.prefill + self.decode + self.replicas

    def transfer_s(self, tokens: float) -> float:
        """Seconds that the KV cache of so many tokens (pool tokens where layers differ) takes to the other side."""
        if self.transfer_bytes_per_s is None or self.bytes_per_token is None:
            return 0.0
        return tokens * self.bytes_per_token / self.transfer_bytes_per_s
