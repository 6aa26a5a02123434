"""What is known of latencies without a simulation: the keys of the report's `latency` block."""

from typing import NamedTuple


class Distribution(NamedTuple):
    """Mean and percentiles of a latency, seconds.

    A percentile has a range where it falls into a gap of the law, between iterations with a prompt and without: the
    smallest change of the traffic then moves it from one end to the other.
    """

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p50_range: tuple[float, float] | None = None
    p90_range: tuple[float, float] | None = None
    p95_range: tuple[float, float] | None = None
    p99_range: tuple[float, float] | None = None


class ClassLatency(NamedTuple):
    """Latencies of one class; its ITL is None where all of its requests generate a single token."""

    name: str
    ttft_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None


class Latency(NamedTuple):
    """Time to first token, between tokens and end to end, of all requests and of each class.

    Attributes
    ----------
    itl_s
        Over all gaps between two tokens, so that a request counts as often as it has gaps.
    method
        "closed form", and what it accounts for; None where there are no figures.
    reason
        Why there are none; None where there are.
    """

    ttft_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    classes: tuple[ClassLatency, ...]
    method: str | None
    reason: str | None
