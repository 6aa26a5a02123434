"""A table of measured iterations foretold: a tenth of the settings of each replica from the others."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from sampled import read_samples

from kvplan.ingest.timing.equations import BoolArray
from kvplan.ingest.timing.fit import fit_measured
from kvplan.ingest.timing.samples import Samples
from kvplan.model import FloatArray, Timing
from scoreboard.record import Configuration, Row, real_run

FILE = "splitwise-sim/perf_model.csv"
_FOLDS = 10
_MORE, _LESS_TIME, _NOISES = 1.5, 0.05, 4.0  # a contradiction: so much more work, in so much less time
_PRIOR = Timing(
    14.5e-3, d1=0.25e-6, d2=85e-6
)  # of another replica, whose ratios count where nothing else tells


def part(samples: Samples, rows: BoolArray) -> Samples:
    """Some of the samples."""
    columns = ("kv_tokens", "prefill_tokens", "sequences", "seconds", "line")
    return replace(samples, **{name: getattr(samples, name)[rows] for name in columns})


def _sound(settings: FloatArray, seconds: FloatArray) -> BoolArray:
    """Leave out settings that were measured faster than others that have less to do, the worst first."""
    points, group = np.unique(settings, axis=0, return_inverse=True)
    group = group.reshape(-1)
    middle = np.array([np.median(seconds[group == g]) for g in range(len(points))])
    noise = 1.4826 * float(np.median(np.abs(seconds / middle[group] - 1)))
    more = (points[:, None, :] >= points[None, :, :]).all(axis=2)
    more &= points.sum(axis=1)[:, None] >= _MORE * points.sum(axis=1)[None, :]
    against = more & (middle[:, None] < middle[None, :] * (1 - max(_LESS_TIME, _NOISES * noise)))
    sound = np.ones(seconds.size, dtype=np.bool_)
    while against.any():
        fast, slow = against.sum(axis=1), against.sum(axis=0)
        worst = int(np.argmax(fast + slow + 0.5 * (fast > 0)))
        sound &= group != worst
        against[worst, :] = against[:, worst] = False
    return sound


def rows(samples: Samples) -> Iterator[Row]:
    """Iterations of each fold of settings, as foretold by what is fitted to the others."""
    of = Configuration(samples.group, "dense", samples.group.split(",")[0])
    settings = np.column_stack([samples.kv_tokens, samples.prefill_tokens, samples.sequences])
    fold = np.unique(settings, axis=0, return_inverse=True)[1].reshape(-1) % _FOLDS
    sound = _sound(settings, samples.seconds)
    for number in range(_FOLDS):
        law = fit_measured([part(samples, fold != number)], _PRIOR).timing
        for index in np.flatnonzero((fold == number) & sound):
            kv, prefill, sequences = settings[index]
            load = f"{kv:g} KV tokens, {prefill:g} of prefill, {sequences:g} sequences"
            yield Row(of, load, "iteration", "s", law(kv, prefill, sequences), float(samples.seconds[index]))


def _all_rows(folder: Path) -> list[Row]:
    every = [some for some in read_samples(folder / FILE) if isinstance(some, Samples)]
    return [row for samples in every for row in rows(samples)]


SPLITWISE = real_run("splitwise-iterations", (FILE,), _all_rows)
