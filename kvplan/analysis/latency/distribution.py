"""What is known of latencies without a simulation: the keys of the report's `latency` block."""

from typing import NamedTuple


class Distribution(NamedTuple):
    """Mean and percentiles of a latency, seconds; all None where there are no figures.

    A percentile has a range where it falls into a gap of the law, between iterations with a prompt and without: the
    smallest change of the traffic then moves it from one end to the other.
    """

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p50_range: tuple[float, float] | None = None
    p90_range: tuple[float, float] | None = None
    p95_range: tuple[float, float] | None = None
    p99_range: tuple[float, float] | None = None


NONE = Distribution()


class ClassLatency(NamedTuple):
    """Latencies of one class; its ITL has no figures where all of its requests generate a single token."""

    name: str
    ttft_s: Distribution
    itl_s: Distribution
    e2e_s: Distribution


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

    ttft_s: Distribution
    itl_s: Distribution
    e2e_s: Distribution
    classes: tuple[ClassLatency, ...]
    method: str | None
    reason: str | None
