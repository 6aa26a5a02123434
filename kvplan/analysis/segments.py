"""Segmentations of the decode lengths for Nested WAIT, and what their segments hold and cost (theory §6).

Lengths are those of all classes together. A segment ends at one of them; the inputs of its requests are those of the
requests that reach it.
"""

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


class Lengths(NamedTuple):
    """The traffic by decode length, over all classes; arrays of shape (n_lengths,) unless noted.

    Attributes
    ----------
    decode : ndarray of float64, tokens
        Distinct decode lengths, ascending.
    rate_from : ndarray, requests/s
        Requests at least as long, Λ at a segment that starts with this length.
    inputs : ndarray of int64, shape (n_inputs,), tokens
        Distinct inputs, ascending.
    share_from : ndarray, shape (n_lengths, n_inputs)
        Of each input in the requests at least as long.
    work_to : ndarray, shape (n_lengths + 1,)
        Work rate (fraction of each second) of all stages before each length ends; the last entry is Λ.
    prompt_stages
        Stages before the first decode stage: 1 when `inline`.
    block_tokens
        Size of a page.
    prefill_tokens
        Prefill work of a fresh request, on average.
    """

    decode: FloatArray
    rate_from: FloatArray
    inputs: IntArray
    share_from: FloatArray
    work_to: FloatArray
    prompt_stages: int
    block_tokens: int
    prefill_tokens: float
    timing: Timing


@dataclass(frozen=True)
class Segments:
    """Candidate segmentations, one a column; arrays of shape (most segments, n_candidates).

    Columns with fewer segments are padded with empty ones, which cost nothing.

    Attributes
    ----------
    start, end : ndarray of int64
        First and last position in `Lengths.decode` of those that end within each segment.
    rate : ndarray, requests/s
        Λ_k.
    continuing : ndarray
        p_k = Λ_k/Λ_(k-1); 1 in the first row and where padded.
    input_tokens : ndarray, tokens
        Mean input s̄_k.
    held : ndarray, tokens
        Held by the stages of the segment for one unit of its threshold, mean of whole pages.
    waiting : ndarray, tokens
        Held by one request at the start of the segment; 0 in the first row (no KV yet) and where padded.
    work : ndarray, seconds
        Added to an iteration by one unit of the threshold, in proportion to what it reads and computes.
    stages : ndarray
        Requests that one unit of the threshold keeps in the batch.
    phases, waits_in : ndarray, shape (most segments, n_candidates, n_phases)
        Those requests by the phase of `laws` that they are in, and the phase of those that wait (one is 1, others 0).
    count : ndarray of int64, shape (n_candidates,)
        Number of segments.
    prefill_tokens : ndarray, shape (n_candidates,), tokens
        Of one request.
    laws
        Of inputs; None where all are equal, and there are no phases.
    windows
        All requests as one stream, where rates vary. The first row of `rate` is then their mean rate, rows below what
        `continuing` makes of it, which is the worst of any time; as are the figures of single segments.
    """

    start: IntArray
    end: IntArray
    rate: FloatArray
    continuing: FloatArray
    input_tokens: FloatArray
    held: FloatArray
    waiting: FloatArray
    work: FloatArray
    stages: FloatArray
    phases: FloatArray
    waits_in: FloatArray
    count: IntArray
    prefill_tokens: FloatArray
    timing: Timing
    laws: InputLaws | None
    windows: Windows | None = None

    def fixed_s(self, thresholds: FloatArray, columns: IntArray) -> Any:
        """What an iteration with thresholds of shape (n_segments, n_columns) filled takes beside `work`."""
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

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> classes = (RequestClass("a", 1, (1,), (1.0,), 1.0), RequestClass("b", 3, (1, 2), (1.0, 1.0), 2.0))
    >>> merged = lengths_of(ServingModel(classes, Timing(0.5, d1=0.1), Replica(99, prefill=Prefill.INLINE)))
    >>> merged.decode.tolist(), merged.rate_from.tolist(), merged.work_to.round(9).tolist()
    ([1.0, 2.0], [3.0, 1.0], [0.0, 1.7, 2.2])
    """
    mix, timing = model.mix, model.timing
    distinct, position = np.unique(mix.decode_tokens, return_inverse=True)
    inputs, kind = np.unique(mix.input_tokens, return_inverse=True)
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
    prefill = np.zeros(decode.size)
    if model.replica.prefill is not Prefill.DISAGGREGATED:
        prefill[0] = tokens_reaching[0]
    work = timing.linear(tokens, prefill, stages)
    return Lengths(
        decode=decode,
        rate_from=rate,
        inputs=inputs,
        share_from=reaching / rate[:, None],
        work_to=np.append(0.0, np.cumsum(work)),
        prompt_stages=prompt,
        block_tokens=model.replica.block_tokens,
        prefill_tokens=float(prefill[0] / rate[0]),
        timing=timing,
    )


def segments_of(lengths: Lengths, ends: list[IntArray]) -> Segments:
    """What candidate segmentations hold and cost.

    One unit of the threshold of segment k holds Σ w(t) tokens in the mean over inputs, w(t) = b⌈(s + t)/b⌉, over the
    stages t = l'_(k-1) + 1 … l'_k, and from t = 0 for the prompt-only stage of `inline`. Without pages that is
    (l'_k - l'_(k-1))(s̄_k + (l'_(k-1) + l'_k + 1)/2); the papers' own forms are wrong (see `printed_memory`).

    Parameters
    ----------
    ends
        For each candidate the positions in `lengths.decode` at which its segments end, ascending to the last.

    References
    ----------
    WAIT-s Theorem 5.1, D; segment memory corrected, theory §6. That the mean input of those who *reach* a segment
    keeps it sound where lengths are merged is new: whoever leaves early holds no more than if it had stayed.
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
    found = [over_inputs(slice(i, i + step)) for i in range(0, len(ends), step)]
    input_tokens, held, waiting = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
    waiting *= used
    waiting[0] = 0.0
    mixed = lengths.inputs.size > 1
    laws = laws_of(lengths.inputs, lengths.share_from, b) if mixed else None
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
    """Segmentations for rates that vary: the worst share that goes on and the worst costs of any mix (WAIT-s eq. 10).

    A batch holds requests of some window; what they cost and do on average lies between what the mixes within that
    window do. Inputs have a law no smaller than that of any mix: the largest share beyond each length of input.
    Segmentations whose work would not leave time to spare at the mean rate are left out.

    Parameters
    ----------
    model
        With a schedule.
    lengths
        Of the mean rates.
    ends
        As for `segments_of`.
    """
    varying = mixes(model)
    if not varying:
        found = segments_of(lengths, ends)
    else:
        with np.errstate(divide="ignore", invalid="ignore"):  # lengths that a mix does not have cost nothing
            each = [lengths_of(mix) for mix in varying]
            beyond = [np.cumsum(one.share_from[:, ::-1], axis=1) for one in each]
            largest = np.max(np.nan_to_num(beyond), axis=0)
            share = np.diff(largest, axis=1, prepend=0.0)[:, ::-1]
            found = segments_of(lengths._replace(share_from=share), ends)
            parts = [segments_of(one, ends) for one in each]

        def worst(name: str) -> FloatArray:
            there = [np.nan_to_num(getattr(part, name), posinf=0.0) for part in parts]
            return np.asarray(np.max(there, axis=0))

        continuing = worst("continuing")
        reached = found.rate[0] * np.cumprod(np.vstack([np.ones(len(ends)), continuing[1:]]), axis=0)
        found = replace(
            found,
            rate=reached,
            continuing=continuing,
            work=worst("work"),
            prefill_tokens=worst("prefill_tokens"),
        )
    found = replace(found, windows=total_windows(model))
    possible = np.flatnonzero((found.work * found.rate).sum(axis=0) * GUARD < 1)
    return found.take(possible) if possible.size else replace(found, count=found.count[:0])


def candidate_ends(lengths: Lengths, count: int | None) -> list[IntArray]:
    """Segmentations to try: equal widths, equal shares of the requests that end, equal numbers of lengths.

    Parameters
    ----------
    count
        Number of segments, at most the distinct lengths; None tries every number to 24 and some to 128.

    Returns
    -------
    list of ndarray of int64
        Positions in `lengths.decode` where segments end, fewest segments first, all different.

    References
    ----------
    WAIT 7.2; survival quantiles new, theory §6.

    Examples
    --------
    >>> decode, rate = np.array([1.0, 2.0, 8.0]), np.array([10.0, 5.0, 4.0])
    >>> some = Lengths(decode, rate, np.array([1]), np.ones((3, 1)), np.zeros(4), 0, 1, 0.0, Timing(1.0))
    >>> [ends.tolist() for ends in candidate_ends(some, 2)]
    [[1, 2], [0, 2]]
    """
    most = lengths.decode.size
    ended = 1 - np.append(lengths.rate_from[1:], 0.0) / lengths.rate_from[0]
    found: dict[bytes, IntArray] = {}
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
                found.setdefault(kept.tobytes(), kept)
    return sorted(found.values(), key=len)


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
