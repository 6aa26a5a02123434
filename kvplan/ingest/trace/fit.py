"""From the traffic of a trace to request classes, and what they distort."""

from typing import NamedTuple

import numpy as np

from kvplan.analysis.dispersion import LEAST_CV, MOST_CV, stay_s
from kvplan.ingest.lengths import BINS, POINTS, cut, span
from kvplan.ingest.trace.bursts import Bursts, described, split
from kvplan.ingest.trace.traffic import Traffic
from kvplan.model import FloatArray, IntArray, Replica, RequestClass, ServingModel, Timing
from kvplan.model.weights import Weights, first_tokens, stage_count
from kvplan.ranges import MAX_MEMORY_TOKENS
from kvplan.units import format_percent

SLOTS = ServingModel((), Timing(1.0), Replica(MAX_MEMORY_TOKENS))  # where neither replica nor timing is known


class Distortion(NamedTuple):
    """Figures of classes beside those of their trace, on the same replica; gaps are 1 - ρ.

    Errors are relative, of the mean footprint of a request and of the variance of KV usage.
    """

    trace_stable: bool
    stable: bool
    trace_gap: float
    gap: float
    footprint: float
    variance: float


def binned(traffic: Traffic, bins: int = BINS, points: int = POINTS) -> tuple[RequestClass, ...]:
    """Ranges of the input length, each with the decode lengths seen in it.

    A range has the mean of its inputs, and the means of at most `points` ranges of its decode lengths. Where no more
    than `bins` inputs or `points` lengths are distinct, they are kept as they are.

    References
    ----------
    New, theory §3 ("Traces"). Where to cut, for the least squared error: `cut`.
    """
    group = cut(traffic.input_tokens, traffic.count, bins)
    classes = []
    for g in range(int(group.max()) + 1):
        mine = group == g
        inputs, decode, count = traffic.input_tokens[mine], traffic.decode_tokens[mine], traffic.count[mine]
        part = cut(decode, count, points)
        weight = np.bincount(part, count)
        means = np.rint(np.bincount(part, count * decode) / weight).astype(np.int64)
        lengths, same = np.unique(means, return_inverse=True)
        classes.append(
            RequestClass(
                name=f"input {span(inputs)}",
                input_tokens=round(float(count @ inputs / count.sum())),
                decode_tokens=tuple(lengths.tolist()),
                decode_weights=tuple(np.bincount(same, weight).tolist()),
                rate_rps=traffic.rate_rps * float(count.sum() / traffic.count.sum()),
            )
        )
    return tuple(classes)


def compact(traffic: Traffic, classes: int) -> tuple[RequestClass, ...]:
    """Make at most so many classes of one decode length; `distortion` tells the cost.

    The class whose lengths differ most from their means, in units of their spread over the trace, is cut in two at
    its mean, until there are enough.
    """
    lengths = np.stack([traffic.input_tokens, traffic.decode_tokens]).astype(np.float64)
    count = traffic.count
    mean = lengths @ count / count.sum()
    spread = np.sqrt((lengths - mean[:, None]) ** 2 @ count / count.sum())
    scaled = lengths / np.where(spread > 0, spread, 1.0)[:, None]

    def errors(rows: IntArray) -> tuple[FloatArray, FloatArray]:
        centre = scaled[:, rows] @ count[rows] / count[rows].sum()
        return (scaled[:, rows] - centre[:, None]) ** 2 @ count[rows], centre

    parts = [np.arange(count.size)]
    fits = [errors(parts[0])]
    while len(parts) < classes:
        worst = max(range(len(parts)), key=lambda i: float(fits[i][0].max()))
        rows, (error, centre) = parts[worst], fits[worst]
        axis = int(error.argmax())
        below = scaled[axis, rows] <= centre[axis]
        if below.all() or not below.any():
            break
        parts[worst : worst + 1] = [rows[below], rows[~below]]
        fits[worst : worst + 1] = [errors(rows[below]), errors(rows[~below])]
    parts.sort(key=lambda rows: tuple(lengths[:, rows] @ count[rows] / count[rows].sum()))
    total = count.sum()
    made = []
    for rows in parts:
        centre = lengths[:, rows] @ count[rows] / count[rows].sum()
        name = f"input {span(traffic.input_tokens[rows])}, decode {span(traffic.decode_tokens[rows])}"
        rate = traffic.rate_rps * float(count[rows].sum() / total)
        made.append(RequestClass(name, round(centre[0]), (round(centre[1]),), (1.0,), rate))
    return tuple(made)


def whole(traffic: Traffic, like: ServingModel) -> ServingModel:
    """Keep every pair of lengths, on the replica and with the timing of `like`; no binning."""
    inputs, first = np.unique(traffic.input_tokens, return_index=True)
    scale = traffic.rate_rps / traffic.count.sum()
    classes = []
    ends = [*first[1:].tolist(), traffic.count.size]
    for length, begin, end in zip(inputs.tolist(), first.tolist(), ends, strict=True):
        decode, count = traffic.decode_tokens[begin:end], traffic.count[begin:end]
        rate = float(count.sum() * scale)
        classes.append(
            RequestClass(f"input {length}", length, tuple(decode.tolist()), tuple(count.tolist()), rate)
        )
    return ServingModel(tuple(classes), like.timing, like.replica)


def distortion(traffic: Traffic, classes: tuple[RequestClass, ...], like: ServingModel) -> Distortion:
    """Compare classes and trace on the replica of `like`: stability, 1 - ρ, footprint, variance of KV usage."""
    from kvplan.analysis.stability import model_spectrum

    model = ServingModel(classes, like.timing, like.replica)
    of_trace, of_model = model_spectrum(whole(traffic, like)), model_spectrum(model)
    footprint, variance = moment_errors(traffic, classes, like)
    return Distortion(
        trace_stable=of_trace.stable,
        stable=of_model.stable,
        trace_gap=1 - of_trace.radius,
        gap=1 - of_model.radius,
        footprint=footprint,
        variance=variance,
    )


def bursts(traffic: Traffic, classes: tuple[RequestClass, ...], like: ServingModel) -> Bursts | None:
    """Split arrivals into slow variation and clusters within a stay on the replica of `like`; or None.

    There is nothing to tell without arrival times, or where a trace is not much longer than a stay.
    """
    if traffic.counts is None:
        return None
    if traffic.start_s is None:
        cv = min(max(traffic.gap_cv or 1.0, LEAST_CV), MOST_CV)
        return described(traffic.counts / traffic.cell_s, traffic.cell_s, cv)
    stay = stay_s(ServingModel(classes, like.timing, like.replica))
    return split(traffic.counts, traffic.cell_s, stay)


def moment_errors(
    traffic: Traffic, classes: tuple[RequestClass, ...], like: ServingModel
) -> tuple[float, float]:
    """Relative errors that classes make in a request's mean footprint and in the variance of KV usage."""
    mix = ServingModel(classes, like.timing, like.replica).mix
    prefill = like.replica.prefill
    read = Weights(
        first_tokens(prefill, traffic.input_tokens).astype(np.float64),
        stage_count(prefill, traffic.decode_tokens),
    )
    share = traffic.count / traffic.count.sum()
    footprint = float(mix.share @ mix.read.footprint / (share @ read.footprint))
    # of Poisson arrivals, the variance
    squares = float(mix.share @ mix.read.squares / (share @ read.squares))
    return footprint - 1, squares - 1


def describe(distortion: Distortion) -> str:
    """One sentence on what classes distort.

    >>> describe(Distortion(True, False, 0.0026, -0.0003, 0.002, -0.04))
    'stable traffic looks unstable; 1 - ρ is -0.0003 for 0.0026; mean footprint +0.2%, variance of KV usage -4%'
    """
    words = {True: "stable", False: "unstable"}
    if distortion.stable == distortion.trace_stable:
        verdict = f"{words[distortion.stable]} as the trace itself"
    else:
        verdict = f"{words[distortion.trace_stable]} traffic looks {words[distortion.stable]}"
    return (
        f"{verdict}; 1 - ρ is {distortion.gap:.2g} for {distortion.trace_gap:.2g}; mean footprint "
        f"{format_percent(distortion.footprint, 2, signed=True)}, variance of KV usage "
        f"{format_percent(distortion.variance, 2, signed=True)}"
    )
