"""What a replica costs, by the hour and by the token."""

from typing import NamedTuple

from kvplan.analysis.records import Load
from kvplan.model import ServingModel

_MILLION = 1e6
_HOUR_S = 3600.0


class PerTokens(NamedTuple):
    """Cost of a million output tokens, and of a million tokens in and out; None where the rate is not served."""

    per_million_output_tokens: float | None = None
    per_million_tokens: float | None = None


class Cost(NamedTuple):
    """Cost of one replica, in the currency of the price of a GPU; the keys of the report's `cost` block."""

    gpus_per_replica: int
    per_hour: float
    offered: PerTokens
    sustainable: PerTokens


def cost(model: ServingModel, gpu_hour: float, offered: Load, *, overloaded: bool) -> Cost:
    """The cost of a replica, paid whether it is busy or not.

    Examples
    --------
    An hour of a request a second, each of 300 tokens of which 100 are generated, is 360,000 output tokens:

    >>> from kvplan.analysis.equilibrium import load
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> one = RequestClass("a", 200, (100,), (1.0,), 1.0)
    >>> model = ServingModel((one,), Timing(0.01), Replica(30_000, gpus=2))
    >>> found = cost(model, 1.80, load(model), overloaded=False)
    >>> found.per_hour, round(found.offered.per_million_output_tokens, 9), round(found.offered.per_million_tokens, 9)
    (3.6, 10.0, 3.333333333)
    """
    mix, replica = model.mix, model.replica
    per_hour = replica.gpus * gpu_hour
    output = mix.mean(mix.decode_tokens)
    both = output + mix.mean(mix.input_tokens)

    def at(rate_rps: float) -> PerTokens:
        per_request = per_hour / _HOUR_S / rate_rps * _MILLION
        return PerTokens(per_request / output, per_request / both)

    now = PerTokens() if overloaded else at(offered.offered_rps)
    return Cost(replica.gpus, per_hour, now, at(offered.sustainable_rps))
