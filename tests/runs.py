"""Runs written by hand, or of one server, as the simulator would leave them behind."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from kvplan.model import FloatArray, IntArray
from kvplan.simulation.outcome import Ending, Outcome, Series
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import Span

NAN = float("nan")
INTEGRALS = {"kv": "kv_tokens", "running": "running", "waiting": "waiting"}  # over time


def counts(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def a_series(time_s: FloatArray, **columns: Any) -> Series:
    """Records at the given times; columns that are not given are 0."""
    names = ("kv_tokens", "waiting", "running", "evictions", "completions")
    zero = np.zeros(len(time_s), dtype=np.int64)
    filled = {name: np.asarray(columns.get(name, zero), dtype=np.int64) for name in names}
    clock = np.asarray(time_s, dtype=np.float64)
    took = np.diff(clock, prepend=0.0)
    held = {f"{short}_s": np.cumsum(filled[name] * took) for short, name in INTEGRALS.items()}
    return Series(
        1, clock, **filled, busy_s=np.asarray(columns.get("busy_s", clock), dtype=np.float64), **held
    )


def a_run(
    arrival_s: Any,
    first_token_s: Any,
    finish_s: Any,
    *,
    decode: Any = None,
    class_index: Any = None,
    ending: Ending = Ending.FINISHED,
    series: Series | None = None,
    **fields: Any,
) -> tuple[Requests, Outcome]:
    """A run from the times of its requests; other fields of the outcome as given, else empty."""
    arrival, first, finish = (np.asarray(x, dtype=np.float64) for x in (arrival_s, first_token_s, finish_s))
    n = arrival.size
    requests = Requests(
        arrival,
        np.ones(n, dtype=np.int64),
        np.full(n, 2) if decode is None else np.asarray(decode, dtype=np.int64),
        np.zeros(n, dtype=np.int64) if class_index is None else np.asarray(class_index, dtype=np.int64),
    )
    series = a_series(np.array([])) if series is None else series
    totals = np.zeros(Span.WIDTH)
    if series.time_s.size:
        totals[: Span.BUSY_S] = series.kv_s[-1], series.running_s[-1], series.waiting_s[-1]
    outcome: dict[str, Any] = {
        "arrival_s": arrival,
        "first_token_s": first,
        "finish_s": finish,
        "evictions": np.zeros(n, dtype=np.int64),
        "ending": ending,
        "end_s": float(np.nanmax(finish, initial=0.0)),
        "iterations": 1,
        "recomputed_tokens": 0,
        "computed_tokens": 1,
        "busy_s": float(np.nanmax(finish, initial=0.0)),
        "kv_peak": 0,
        "queue_peak": 0,
        "prefill_peak": 0,
        "batch_peak": 0,
        "resident": 0,
        "stuck": False,
        "kv_histogram": counts(1),
        "bin_tokens": 1,
        "gap_histogram": counts(0),
        "gap_sum_s": 0.0,
        "overflows": 0,
        "series": series,
        "totals": totals,
    }
    return requests, Outcome(**outcome | fields)


def one_server(
    arrival_s: FloatArray, service_s: FloatArray, *, end_s: float | None = None, records: int = 1000
) -> tuple[Requests, Outcome]:
    """First come, first served, each alone; the clock stops at `end_s`, else with the last request.

    Memory is a token for every request that is there.
    """
    work = np.cumsum(service_s)
    finish = work + np.maximum.accumulate(arrival_s - work + service_s)
    begin = finish - service_s
    clock = finish[-1] if end_s is None else end_s
    time_s = np.linspace(0, clock, records + 1)[1:]
    arrived, begun, done = (np.searchsorted(x, time_s, side="right") for x in (arrival_s, begin, finish))
    kv = arrived - done
    return a_run(
        np.where(arrival_s <= clock, arrival_s, NAN),
        np.where(finish <= clock, begin, NAN),
        np.where(finish <= clock, finish, NAN),
        ending=Ending.FINISHED if end_s is None else Ending.HORIZON,
        end_s=float(clock),
        iterations=records,
        resident=int((begun - done)[-1]),
        kv_peak=int(kv.max()),
        kv_histogram=(np.bincount(kv) * (clock / records) * 1e9).astype(np.int64),
        series=a_series(
            time_s, waiting=arrived - begun, running=begun - done, completions=done, kv_tokens=kv
        ),
    )


def differing(one: Any, other: Any, path: str = "") -> list[str]:
    """The fields of two records that differ."""
    if is_dataclass(one):
        return [
            name
            for f in fields(one)
            for name in differing(getattr(one, f.name), getattr(other, f.name), f"{path}.{f.name}")
        ]
    same = np.array_equal(one, other, equal_nan=True) if isinstance(one, np.ndarray) else one == other
    return [] if same else [path]
