"""Segmentations of the decode lengths for Nested WAIT, and thresholds that keep up with arrivals (theory §6).

Lengths are those of all classes together. A segment ends at one of them; the inputs of its requests are those of the
requests that reach it. Where rates vary over time, Λ_1ΔT gives way to the most arrivals in any window of length ΔT,
and p_k to the largest share of any time (WAIT 7.1; WAIT-s eq. 10).
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from kvplan.analysis.input_spread import InputLaws, laws_of
from kvplan.analysis.wait import GUARD
from kvplan.analysis.worst_window import Windows, mixes, total_windows
from kvplan.model import FloatArray, IntArray, Prefill, ServingModel, Timing
from kvplan.model.weights import Weights, prompt_stages

_SEGMENTS_TRIED = 24  # each number of segments up to this one, then in steps of a sixth ...
_MOST_SEGMENTS = 128  # ... up to this
_AT_ONCE = 1 << 20  # segments times inputs, which take memory
_MOST_CELLS = 1 << 23  # decode lengths times inputs
_MOST_PHASES = 1 << 8  # places of a page where inputs end
HOPELESS = 1e60  # a first threshold: no smaller one keeps up under a law that is not linear
_LEAST_STEPS = 200  # towards the least first threshold, before settling for any that keeps up
_TOO_CLOSE = 1e-9  # to a work rate of 1, for a bound that is only there to save steps
_NEWTON_STEPS = 60


class Lengths(NamedTuple):
    """The traffic by decode length, over all classes; arrays of shape (n_lengths,) unless noted."""

    decode: FloatArray  # distinct lengths, ascending, tokens
    rate_from: FloatArray  # requests/s at least as long, Λ at a segment that starts with this length
    inputs: IntArray  # (n_inputs,), distinct, ascending, tokens
    share_from: FloatArray  # (n_lengths, n_inputs), of each input in the requests at least as long
    # (n_lengths + 1,), work rate of all stages before each length ends; the last entry is Λ
    work_to: FloatArray
    prompt_stages: int  # before the first decode stage: 1 when `inline`
    block_tokens: int
    prefill_tokens: float  # of a fresh request, on average
    timing: Timing


@dataclass(frozen=True)
class Segments:
    """Candidate segmentations, one a column; arrays of shape (most segments, n_candidates).

    Columns with fewer segments are padded with empty ones, which cost nothing.
    """

    start: IntArray  # first position in `Lengths.decode` of those that end within each segment ...
    end: IntArray  # ... and last
    rate: FloatArray  # Λ_k, requests/s
    continuing: FloatArray  # p_k = Λ_k/Λ_(k-1); 1 in the first row and where padded
    input_tokens: FloatArray  # mean s̄_k
    held: FloatArray  # by the stages of the segment for one unit of its threshold, mean tokens in whole pages
    # by one request at its start, tokens; 0 in the first row (no KV yet) and where padded
    waiting: FloatArray
    work: FloatArray  # seconds that one unit of the threshold adds to an iteration, in proportion
    stages: FloatArray  # requests that one unit of the threshold keeps in the batch
    phases: FloatArray  # (most segments, n_candidates, n_phases), those requests by phase of `laws`
    waits_in: FloatArray  # likewise, the phase of those that wait: one is 1, others 0
    count: IntArray  # (n_candidates,), of segments
    prefill_tokens: FloatArray  # (n_candidates,), of one request
    timing: Timing
    laws: InputLaws | None  # of inputs; None where all are equal, and there are no phases
    # All requests as one stream, where rates vary. The first row of `rate` is then their mean rate, rows below what
    # `continuing` makes of it, which is the worst of any time; as are the figures of single segments.
    windows: Windows | None = None

    def fixed_s(self, thresholds: FloatArray, columns: IntArray) -> Any:
        """Time of an iteration beside `work` with thresholds filled, of shape (n_segments, n_columns)."""
        sequences = (thresholds * self.stages[:, columns]).sum(axis=0)
        return self.timing.fixed(thresholds[0] * self.prefill_tokens[columns], sequences)

    def iteration_time_s(self, thresholds: FloatArray) -> FloatArray:
        """ΔT with thresholds filled, of shape (n_segments, n_candidates); shape (n_candidates,)."""
        every = np.arange(self.count.size)
        return np.asarray(self.fixed_s(thresholds, every) + (thresholds * self.work).sum(axis=0))

    def arrivals(self, time: FloatArray, columns: IntArray) -> FloatArray:
        """Most requests that arrive within a time, of shape (n_columns,), a little more: Λ_1·T, or the worst window."""
        if self.windows is None:
            return np.asarray(self.rate[0, columns] * GUARD * time)
        return self.windows.most_of_one(time) * GUARD

    def take(self, columns: IntArray) -> "Segments":
        """Those columns, without rows that are empty in all of them."""
        rows = int(self.count[columns].max())
        of_columns: dict[str, Any] = {
            name: value[:rows, columns] if value.ndim > 1 else value[columns]
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray)
        }
        return replace(self, **of_columns)


def lengths_of(model: ServingModel) -> Lengths:
    """Merge classes by decode length and add up what the stages between lengths cost.

    Inputs that are too many, or end in too many places of a page, are rounded up to fewer, and hold a little more.
    """
    mix, timing = model.mix, model.timing
    distinct, position = np.unique(mix.decode_tokens, return_inverse=True)
    inputs, kind = np.unique(mix.input_tokens, return_inverse=True)
    most = max(_MOST_CELLS // distinct.size, 1)
    if np.unique(inputs % model.replica.block_tokens).size > _MOST_PHASES:
        most = min(most, _MOST_PHASES)
    if inputs.size > most:  # as many in each group, of which the longest stands for all
        group = np.arange(inputs.size) * most // inputs.size
        inputs, kind = inputs[np.flatnonzero(np.diff(group, append=most))], group[kind]
    decode = distinct.astype(np.float64)
    ending = np.zeros((decode.size, inputs.size))
    np.add.at(ending, (position, kind), mix.rate_rps)
    reaching = np.cumsum(ending[::-1], axis=0)[::-1]
    rate, tokens_reaching = reaching.sum(axis=1), reaching @ inputs
    before = np.append(0.0, decode[:-1])
    span = decode - before
    tokens = span * (tokens_reaching + rate * (before + decode + 1) / 2)
    stages = span * rate
    prompt = prompt_stages(model.replica.prefill)
    tokens[0] += prompt * tokens_reaching[0]
    stages[0] += prompt * rate[0]
    prefill, prefill_pairs = np.zeros((2, decode.size))
    if model.replica.prefill is not Prefill.DISAGGREGATED:
        prefill[0], prefill_pairs[0] = tokens_reaching[0], mix.rate_rps @ mix.prefill_pairs
    return Lengths(
        decode=decode,
        rate_from=rate,
        inputs=inputs,
        share_from=reaching / rate[:, None],
        work_to=np.append(0.0, np.cumsum(timing.linear(tokens, prefill, stages, prefill_pairs))),
        prompt_stages=prompt,
        block_tokens=model.replica.block_tokens,
        prefill_tokens=float(prefill[0] / rate[0]),
        timing=timing,
    )


def segments_of(lengths: Lengths, ends: list[IntArray]) -> Segments:
    """Lay out candidates: of each, the positions in `lengths.decode` where segments end, ascending to the last.

    One unit of the threshold of segment k holds Σ w(t) tokens in the mean over inputs, w(t) = b⌈(s + t)/b⌉, over the
    stages t = l'_(k-1) + 1 … l'_k, and from t = 0 for the prompt-only stage of `inline`. Without pages that is
    (l'_k - l'_(k-1))(s̄_k + (l'_(k-1) + l'_k + 1)/2); the papers' own forms are wrong (see `printed_memory`).

    References
    ----------
    WAIT-s Theorem 5.1, D; segment memory corrected, theory §6. That the mean input of those who *reach* a segment keeps
    it sound where lengths are merged is new: whoever leaves early holds no more than if it had stayed.
    """
    rows = max(e.size for e in ends)
    count = np.array([e.size for e in ends])
    end = np.full((rows, len(ends)), lengths.decode.size - 1)
    for column, e in enumerate(ends):
        end[: e.size, column] = e
    used = np.arange(rows)[:, None] < count
    start = np.vstack([np.zeros((1, len(ends)), dtype=np.int64), end[:-1] + 1])
    low, high = np.append(0.0, lengths.decode)[start], lengths.decode[end]
    reached = np.minimum(start, end)  # padded segments start past the last length
    rate = lengths.rate_from[reached]
    continuing = np.ones(end.shape)
    continuing[1:] = np.where(used[1:], rate[1:] / rate[:-1], 1.0)
    below = low.copy()
    below[0] -= lengths.prompt_stages
    b = lengths.block_tokens

    def over_inputs(some: slice) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean input, tokens held and tokens waiting, of some candidates."""
        share, first = lengths.share_from[reached[:, some]], below[:, some, None]
        stages = (high[:, some, None] - first).astype(np.int64)
        held = (share * Weights(lengths.inputs + first + 1, stages, b).footprint).sum(axis=-1)
        waiting = (share * (np.ceil((lengths.inputs + low[:, some, None]) / b) * b)).sum(axis=-1)
        return share @ lengths.inputs, held, waiting

    step = max(1, _AT_ONCE // (rows * lengths.inputs.size))
    parts = [over_inputs(slice(i, i + step)) for i in range(0, len(ends), step)]
    input_tokens, held, waiting = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    waiting *= used
    waiting[0] = 0.0
    laws = laws_of(lengths.inputs, lengths.share_from, b) if lengths.inputs.size > 1 else None
    none = np.zeros((*end.shape, 0))
    return Segments(
        start=reached,
        end=end,
        rate=rate,
        continuing=continuing,
        input_tokens=input_tokens,
        held=held,
        waiting=waiting,
        work=(lengths.work_to[end + 1] - lengths.work_to[start]) / rate,
        stages=high - below,
        phases=none if laws is None else laws.stages_in(below, high),
        waits_in=none if laws is None else np.eye(laws.edges.size)[laws.phase_of(low)],
        count=count,
        prefill_tokens=np.full(len(ends), lengths.prefill_tokens),
        timing=lengths.timing,
        laws=laws,
    )


def worst_segments(model: ServingModel, lengths: Lengths, ends: list[IntArray]) -> Segments:
    """Lay out candidates for rates that vary: the worst share that goes on and the worst costs of any mix.

    `lengths` are those of the mean rates. A batch holds requests of some window; what they cost and do on average lies
    between what the mixes within that window do. Inputs have a law no smaller than that of any mix: the largest share
    beyond each length of input. Segmentations whose work would not leave time to spare at the mean rate are left out
    (WAIT-s eq. 10).
    """
    varying = mixes(model)
    if not varying:
        worst = segments_of(lengths, ends)
    else:
        largest, most = np.zeros_like(lengths.share_from), dict[str, Any]()
        with np.errstate(divide="ignore", invalid="ignore"):  # lengths that a mix does not have cost nothing
            for mix in map(lengths_of, map(replace, varying)):  # copies, whose rows go with them
                np.maximum(largest, np.nan_to_num(np.cumsum(mix.share_from[:, ::-1], axis=1)), out=largest)
                part = segments_of(mix, ends)
                for name in ("continuing", "work", "prefill_tokens"):
                    amount = np.nan_to_num(getattr(part, name), posinf=0.0)
                    most[name] = np.maximum(most.get(name, amount), amount)
            share = np.diff(largest, axis=1, prepend=0.0)[:, ::-1]
            worst = segments_of(lengths._replace(share_from=share), ends)
        going_on = np.vstack([np.ones(len(ends)), most["continuing"][1:]])
        worst = replace(worst, rate=worst.rate[0] * np.cumprod(going_on, axis=0), **most)
    worst = replace(worst, windows=total_windows(model))
    possible = np.flatnonzero((worst.work * worst.rate).sum(axis=0) * GUARD < 1)
    return worst.take(possible) if possible.size else replace(worst, count=worst.count[:0])


def candidate_ends(lengths: Lengths, count: int | None) -> list[IntArray]:
    """Segmentations to try: equal widths, equal shares of the requests that end, equal numbers of lengths.

    Of `count` segments, at most the distinct lengths; None tries every number to 24 and some to 128. Returns positions
    in `lengths.decode` where segments end, fewest segments first, all different (WAIT 7.2; survival quantiles new,
    theory §6).

    Examples
    --------
    >>> decode, rate = np.array([1.0, 2.0, 8.0]), np.array([10.0, 5.0, 4.0])
    >>> some = Lengths(decode, rate, np.array([1]), np.ones((3, 1)), np.zeros(4), 0, 1, 0.0, Timing(1.0))
    >>> [ends.tolist() for ends in candidate_ends(some, 2)]
    [[1, 2], [0, 2]]
    """
    most = lengths.decode.size
    ended = 1 - np.append(lengths.rate_from[1:], 0.0) / lengths.rate_from[0]
    candidates: dict[bytes, IntArray] = {}
    for wanted in [min(count, most)] if count else segment_counts(most):
        part = np.arange(1, wanted + 1) / wanted
        for ends in (
            np.searchsorted(lengths.decode, lengths.decode[-1] * part * GUARD, side="right") - 1,
            np.searchsorted(ended, part / GUARD),
            np.ceil(most * part / GUARD).astype(np.int64) - 1,
        ):
            ends[-1] = most - 1
            kept = ends[(ends >= 0) & (np.diff(ends, prepend=-1) > 0)]
            if count is None or kept.size == wanted:
                candidates.setdefault(kept.tobytes(), kept)
    return sorted(candidates.values(), key=len)


def segment_counts(most: int) -> list[int]:
    """Numbers of segments that are tried for so many distinct lengths.

    >>> segment_counts(3), segment_counts(1000)[-3:]
    ([1, 2, 3], [106, 123, 128])
    """
    counts = list(range(1, min(most, _SEGMENTS_TRIED) + 1))
    limit = min(most, _MOST_SEGMENTS)
    while counts[-1] < limit:
        counts.append(min(limit, counts[-1] * 7 // 6))
    return counts


def decay_rates(before: FloatArray, here: FloatArray, continuing: FloatArray) -> FloatArray:
    """Decay rate θ of a boundary queue, the root of n_(k-1)·ln(1 - p + p·e^θ) = θ·n_k, per request; p in (0, 1).

    Of thresholds n_k > p·n_(k-1); infinite where n_k >= n_(k-1): no batch can bring more than the next one takes.

    References
    ----------
    WAIT-s eq. 13, Lemma D.2; θ >= 8(n_k - p·n_(k-1))/n_(k-1), where Theorem B.2 prints the wrong denominator.
    """
    theta = np.full(np.broadcast(before, here, continuing).shape, np.inf)
    finite = (here < before) & (continuing < 1)
    if not finite.any():
        return theta
    n, m, p = before[finite], here[finite], continuing[finite]
    ratio = m / n
    # The logarithm's slope passes n_k/n_(k-1) at `lowest`; the root lies to the right of it, below `highest`, and
    # near 2·lowest. The function is convex: after one Newton step the iterates fall towards the root.
    lowest = np.log1p((m - p * n) / (p * (n - m)))
    highest = -np.log(p) * n / (n - m)
    root = np.minimum(2 * lowest, highest)
    odds = (1 - p) / p
    for _ in range(_NEWTON_STEPS):
        decayed = odds * np.exp(-root)
        small = np.minimum(root, 1.0)
        log_mean = np.where(root < 1, np.log1p(p * np.expm1(small)), root + np.log(p) + np.log1p(decayed))
        # level: as far as it may, or, at a root, no further
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.nan_to_num((log_mean - ratio * root) / (1 / (1 + decayed) - ratio))
        previous, root = root, np.clip(root - step, lowest, highest)
        if (np.abs(root - previous) <= 1e-14 * root).all():
            break
    theta[finite] = root
    return theta


def fill(first: FloatArray, continuing: FloatArray, slack: FloatArray) -> FloatArray:
    """Thresholds from that of the first segment on: n_k = ⌊p_k n_(k-1) + slack_k √n_(k-1)⌋ + 1, at most n_(k-1).

    Shapes (n_candidates,), and (n_segments, n_candidates); slack 0 gives the smallest thresholds (WAIT-s Theorem 5.1;
    whole thresholds and slack new, theory §6).
    """
    thresholds = np.empty(continuing.shape)
    thresholds[0] = first
    safe = continuing * GUARD
    for k in range(1, len(thresholds)):
        before = thresholds[k - 1]
        wanted = np.floor(safe[k] * before + slack[k] * np.sqrt(before)) + 1
        thresholds[k] = np.minimum(wanted, before)
    return thresholds


def thresholds_of(segments: Segments, slack: FloatArray, start: FloatArray) -> FloatArray:
    """Thresholds with the smallest whole first one, from `start` on, that keeps up: Λ_1·ΔT(n) < n_1, given Λ < 1.

    n_1 ← ⌊Λ_1 ΔT(n)⌋ + 1 from below ends on the least, here in larger steps that leave none out. Where even they are
    too many (Λ very near 1) it is a larger one. `slack` and the result have shape (n_segments, n_candidates) (WAIT-s
    eq. 10, Theorem 5.1; least whole thresholds new, theory §6).
    """
    least = start.copy()
    low = np.arange(least.size)  # columns whose first threshold is still too low
    for _ in range(_LEAST_STEPS):
        raised = np.minimum(_raised(segments, slack, low, least[low]), HOPELESS)
        lacking = raised > least[low]
        low, raised = low[lacking], raised[lacking]
        if not low.size:
            break
        least[low] = raised
    else:
        least[low] = _enough(segments, slack, low, least[low])
    return fill(least, segments.continuing, slack)


def _raised(segments: Segments, slack: FloatArray, columns: IntArray, first: FloatArray) -> FloatArray:
    """Raise `first` to at most the least feasible first threshold; itself where it keeps up.

    With x = `first`, every feasible y >= x satisfies y > Λ_1(f + Σ c_k max(n_k(x), y·Λ_k/Λ_1)), f what the law takes
    beside at x, and so, for every set A of segments, y > Λ_1(f + Σ_rest c_k n_k(x))/(1 - Σ_A c_k Λ_k). The best A is
    a prefix in order of n_k(x)/Λ_k.
    """
    filled = fill(first, segments.continuing[:, columns], slack[:, columns])
    rate, work = segments.rate[:, columns], segments.work[:, columns]
    time = filled * work
    fixed = segments.fixed_s(filled, columns)
    keeps_up = np.floor(segments.arrivals(fixed + time.sum(axis=0), columns)) + 1 <= first
    order = np.argsort(filled / rate, axis=0)
    load = np.cumsum(np.take_along_axis(rate * work, order, axis=0), axis=0) * GUARD
    passed = np.cumsum(np.take_along_axis(time, order, axis=0), axis=0)
    idle = 1 - load
    bound = (fixed + passed[-1] - passed) / idle * (1 - 1e-14 / idle)
    least_time = np.maximum(bound.max(axis=0), fixed + passed[-1])
    if segments.windows is not None:  # the same for the steepest windows, as far as they go
        windows = segments.windows
        idle = 1 - load * (float(windows.ramp_rps[0]) / rate[0])
        sure = np.where(idle < -_TOO_CLOSE, np.inf, 0.0)
        np.divide(fixed + passed[-1] - passed, idle, out=sure, where=idle > _TOO_CLOSE)
        steep = sure * (1 - 1e-14 / np.maximum(idle, _TOO_CLOSE))
        least_time = np.maximum(least_time, np.minimum(steep.max(axis=0), windows.ramp_s))
    return np.where(keeps_up, first, np.floor(segments.arrivals(least_time, columns)) + 1)


def _demand(segments: Segments, slack: FloatArray, columns: IntArray, first: FloatArray) -> FloatArray:
    """⌊Λ_1 ΔT⌋ + 1 for given first thresholds, which keep up where they are no smaller."""
    filled = fill(first, segments.continuing[:, columns], slack[:, columns])
    time = segments.fixed_s(filled, columns) + (filled * segments.work[:, columns]).sum(axis=0)
    return np.asarray(np.floor(segments.arrivals(time, columns)) + 1)


def _enough(segments: Segments, slack: FloatArray, columns: IntArray, low: FloatArray) -> FloatArray:
    """First thresholds that keep up: demand rises by about Λ a unit, so extrapolation from below comes near."""
    idle = 1 - (segments.work * segments.rate).sum(axis=0)[columns]
    wanted = _demand(segments, slack, columns, low)
    high: FloatArray = low + np.ceil(2 * (wanted - low).clip(0) / idle)
    hopeless = math.inf if segments.timing.is_linear else HOPELESS
    while (lacking := (_demand(segments, slack, columns, high) > high) & (high < hopeless)).any():
        low, high = np.where(lacking, high, low), np.where(lacking, 3 * high - 2 * low, high)
    return high


def slack_for(segments: Segments, exponent: float) -> FloatArray:
    """Slack for `fill` that about minimises memory when ln(events/δ) is `exponent`, √requests.

    Raising n_k by D costs what it holds, and through p what later segments hold as well: C tokens a unit in all.
    The queue it shortens holds w·exponent/θ with θ ≈ 2D/(n_(k-1)·p(1 - p)). The sum is least at
    D = √(exponent·n_(k-1)·p(1 - p)·w/(2C)) (WAIT-s Lemma D.2, θ for small D; the rule new, theory §6).
    """
    rate = segments.rate
    cost = np.cumsum((rate * (segments.held + segments.waiting))[::-1], axis=0)[::-1] / rate
    spread = segments.continuing * (1 - segments.continuing)
    slack: FloatArray = np.sqrt(exponent / 2 * spread * segments.waiting / np.where(cost > 0, cost, 1.0))
    return slack
