"""What the profile says of the prefix cache, and what keeps that from collapsing, as settings of an engine.

A cap on running requests and a bound on waiting are needed together (theory §8). Neither gains anything in a run from
an empty replica, where nothing has collapsed, so that they are not judged by what they gain.
"""

from collections.abc import Iterator
from dataclasses import replace

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.engines.base import Engine, Kind, Planned
from kvplan.model import ServingModel
from kvplan.report.assembly import Report
from kvplan.report.prefix_cache import patience_s, running_cap
from kvplan.report.words import Status
from kvplan.simulation.policies import POLICIES
from kvplan.units import format_number, format_seconds

_WHAT = "one burst can empty the prefix cache for good"


def protecting_cap(report: Report) -> int | None:
    """Most running requests from which a warm cache comes back; None where it cannot collapse, or has no warm state."""
    cache = report.prefix_cache
    if cache is None or not cache.collapse_possible or report.verdict.status is Status.OVERLOADED:
        return None
    return running_cap(cache)


def planned(engine: Engine, report: Report, model: ServingModel) -> Iterator[Planned]:
    """Settings that follow from what the profile says of the prefix cache.

    Examples
    --------
    >>> from kvplan.engines import engine
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.report.assembly import analyze
    >>> one = RequestClass("a", 15, (10,), (1.0,), 1.0)
    >>> model = ServingModel((one,), Timing(1.0), Replica(1025, prefix_caching=False))
    >>> [one.flag for one in planned(engine("vllm"), analyze(model, name="", sha256=""), model)]
    ['--no-enable-prefix-caching']
    """
    if not model.replica.prefix_caching:
        yield engine.cache_off
    tier = model.replica.offload
    if tier is not None and engine.host_tier is not None:
        yield from engine.host_tier(tier, model.replica)
    cap, cache = protecting_cap(report), report.prefix_cache
    if cap is None or cache is None or cache.separatrix_in_flight is None:
        return
    [setting] = [one for one in engine.settings_for(model) if one.kind is Kind.RUNNING]
    lost = format_number(cache.separatrix_in_flight, 3)
    version = f"{setting.since} Before: {setting.earlier.format(cap)}" if setting.earlier else setting.since
    if cap < (model.replica.max_num_seqs or cap + 1):
        why = f"{_WHAT}, once more than {lost} requests run: so many stay below"
        yield Planned(setting.flag, str(cap), why, version)
    patience = patience_s(cache)
    if engine.queue is not None and patience is not None:
        rate = served_under(cap, model)
        waiting = max(1, int(rate * patience))
        number = waiting + cap * engine.queue.counts_running
        running = f" beside {cap} running" * engine.queue.counts_running
        why = (
            f"with the cap, and both are needed: {waiting}{running} are served within {format_seconds(patience, 2)} at "
            f"{format_number(rate)} requests/s, all that an empty cache leaves; longer waits outlast their hits"
        )
        yield Planned(engine.queue.flag, str(number), why, engine.queue.version)


def served_under(cap: int, model: ServingModel) -> float:
    """Rate that so many running requests are served at where the cache finds only what is in use, requests/s."""
    return sustainable_rate(replace(model, replica=replace(model.replica, max_num_seqs=cap)))[1]


def as_simulated(engine: Engine, model: ServingModel) -> ServingModel:
    """The model for runs of an engine: without a prefix cache, or a host tier, where its policy has none."""
    if not engine.finds_prefixes:
        return replace(
            model, replica=replace(model.replica, prefix_caching=False, offload=None), hit_curve=()
        )
    if POLICIES[engine.policy].host_tier:
        return model
    return replace(model, replica=replace(model.replica, offload=None))


def cache_notes(engine: Engine, report: Report, model: ServingModel) -> Iterator[str]:
    """What else there is to say of the prefix cache."""
    cache = report.prefix_cache
    if protecting_cap(report) is not None and cache is not None:
        patience = patience_s(cache)
        wait = "long" if patience is None else f"longer than {format_seconds(patience, 2)}"
        where = f"{engine.title} has no bound on its queue: have"
        if engine.queue is not None:
            where = f"Versions without {engine.queue.flag}: have"
        yield f"{where} a gateway give up requests that wait {wait}, since the cap alone does not end a collapse."
        yield (
            "What prevents a collapse was not simulated here; kvplan simulate --burst-sessions shows it, with "
            "max_num_seqs and shed_after set. Runs are with that cap."
        )
    yield from _host_notes(engine, report, model)
    if model.finds_prefixes:
        runs = (
            "are of the requests that the profile describes, from an empty cache"
            if engine.finds_prefixes
            else "are without a prefix cache, which the engine has"
        )
        yield (
            f"Requests have prefixes in common: runs at the offered rate {runs}; saturated runs are of strangers, as "
            "after a collapse."
        )
    elif not model.replica.prefix_caching and model.has_common_prefixes:
        yield "The profile switches the prefix cache off, although requests have prefixes in common."


def _host_notes(engine: Engine, report: Report, model: ServingModel) -> Iterator[str]:
    tier, cache = model.replica.offload, report.prefix_cache
    if tier is None or cache is None:
        return
    if engine.host_tier is None:
        yield f"The host tier of the profile is not written for {engine.title}."
        return
    if not [*engine.host_tier(tier, model.replica)]:
        yield f"{engine.title} wants more host memory than the KV cache of the GPU has: the host tier is left out."
    elif not POLICIES[engine.policy].host_tier:
        yield "Runs are without the host tier."
    elif not tier.inclusive or not tier.overlap:
        yield f"{engine.title} writes blocks as they are computed, and loads them while others run."
    if cache.host.longest_wait_s is not None:
        wait = format_seconds(cache.host.longest_wait_s, 2)
        yield f"Have a gateway give up requests that wait longer than {wait}: until then the host tier ends a collapse."
