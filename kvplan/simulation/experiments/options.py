"""Options of a study, checked."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from kvplan.axes import Quantity, read_axis
from kvplan.errors import UsageError, did_you_mean
from kvplan.model import ServingModel
from kvplan.options import Arrivals, SimulateOptions
from kvplan.simulation.experiments.load import (
    DEFAULT_BURST,
    DEFAULT_CLIENTS,
    DEFAULT_CV,
    DEFAULT_REQUESTS,
    MAX_REQUESTS,
    Load,
)
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import LIMITS_OF, TIMES, Settings
from kvplan.simulation.requests import Requests, first
from kvplan.simulation.sessions import Burst
from kvplan.units import COUNT_UNITS, parse_time

_MAX_SEEDS = 10**5
_MOST_SESSIONS = 10**6
_SESSIONS = 10  # of the longest, one after the other
_MOST_TURNS = 200_000
MOST_VARIANTS = 1000  # of a grid
_DIGITS = 6  # of a value of a grid that tell it from others


def load(
    asked: SimulateOptions, trace: Callable[[], Requests] | None = None, model: ServingModel | None = None
) -> Load:
    """Read the requests of a study; options that do not go together are refused, before `trace` is read.

    Without arrivals given, those of the model's trace are taken, if it has one.

    Examples
    --------
    >>> load(SimulateOptions(arrivals=Arrivals.GAMMA, horizon="1 min")).cv
    3.0
    """
    kind, requests = asked.arrivals, asked.requests
    if requests is not None:
        check_requests(requests)
    horizon_s = asked.horizon
    if trace is not None:
        for option, given in (
            ("--arrivals", kind),
            ("--cv", asked.cv),
            ("--burst-sessions", asked.burst_sessions),
        ):
            if given is not None:
                raise UsageError(f"--trace brings its own arrivals; {option} does not go with it")
        recorded = trace()
        return Load(horizon_s=horizon_s, trace=recorded if requests is None else first(recorded, requests))
    needed = {
        "--cv": (asked.cv, Arrivals.GAMMA),
        "--concurrency": (asked.concurrency, Arrivals.CLOSED),
        "--burst": (asked.burst, Arrivals.BURST),
    }
    free = kind is None and all(value is None for value, _ in needed.values())
    if free and model is not None and model.arrivals.trace is not None:
        own = Load(horizon_s=horizon_s).on(model)
        whole = own.trace
        return own if requests is None or whole is None else own._replace(trace=first(whole, requests))
    if kind is None and asked.cv is not None:
        kind = Arrivals.GAMMA
    for name, (value, with_kind) in needed.items():
        if value is not None and kind is not with_kind:
            raise UsageError(f"{name} goes with --arrivals {with_kind.value} only")
    if asked.cv is not None and not 0.01 <= asked.cv <= 100:
        raise UsageError(f"--cv {asked.cv:g}: 0.01 to 100")
    if asked.concurrency is not None and not 1 <= asked.concurrency <= MAX_REQUESTS:
        raise UsageError(f"--concurrency {asked.concurrency}: 1 to {MAX_REQUESTS:,}")
    return Load(
        kind=kind,
        requests=DEFAULT_REQUESTS if requests is None and horizon_s is None else requests,
        horizon_s=horizon_s,
        cv=DEFAULT_CV if asked.cv is None else asked.cv,
        concurrency=asked.concurrency or DEFAULT_CLIENTS,
        burst=asked.burst or DEFAULT_BURST,
        burst_sessions=None if asked.burst_sessions is None else _burst_sessions(asked.burst_sessions),
        at_start=kind is None and model is not None and any(c.deadline_s for c in model.classes),
    )


def check_requests(requests: int) -> None:
    """Refuse a number of requests that cannot be simulated."""
    if not 1 <= requests <= MAX_REQUESTS:
        raise UsageError(f"--requests {requests}: 1 to {MAX_REQUESTS:,}")


def drawn(
    model: ServingModel, asked: SimulateOptions, trace: Callable[[], Requests] | None
) -> tuple[Load, list[int]]:
    """Return the requests that come to a model, and the seeds of its runs; `trace` reads those to replay."""
    arriving = load(asked, trace, model)
    check_sessions(arriving, model)
    if asked.requests is None and asked.horizon is None and trace is None:
        arriving = with_sessions(arriving, model)
    fixed = "--arrivals interleaved" if asked.arrivals is Arrivals.INTERLEAVED else None
    if arriving.trace is not None:
        fixed = "the trace of the profile" if trace is None else "--trace"
    count = 1 if asked.seeds is None else asked.seeds
    return arriving, seeds(asked.seed or 0, count, without_chance=fixed)


def check_sessions(load: Load, model: ServingModel) -> None:
    """Refuse arrivals that do not go with the sessions of a profile, or with there being none."""
    sessions = [c.sessions for c in model.classes if c.sessions is not None]
    if load.burst_sessions is not None and all(law.users for law in sessions):
        raise UsageError("--burst-sessions: the profile has no [[sessions]] with a rate")
    kind = load.on(model).kind
    if sessions and load.trace is None and kind is not Arrivals.POISSON:
        raise UsageError(
            f"--arrivals {kind}: the [[sessions]] of the profile arrive as it describes them; leave it out"
        )


def with_sessions(load: Load, model: ServingModel) -> Load:
    """Replace the number of requests, if sessions come, by time for many of the longest: so many begin and end.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> some = ServingModel((RequestClass("a", 9, (5,), (1.0,), 2.0),), Timing(0.01), Replica(500))
    >>> with_sessions(Load(requests=300), some).requests
    300
    """
    laws = [c.sessions for c in model.classes if c.sessions is not None]
    if not laws or load.kind not in (None, Arrivals.POISSON) or load.requests is None:
        return load
    rate = model.total_rate_rps
    longest_s = max(law.turns.longest * law.think.mean_s for law in laws)
    horizon_s = min(max(_SESSIONS * longest_s, load.requests / rate), _MOST_TURNS / rate)
    return load._replace(requests=None, horizon_s=horizon_s)


def seeds(first: int, count: int, *, without_chance: str | None = None) -> list[int]:
    """List `count` seeds from `first` on; the option that leaves nothing to chance goes with one alone."""
    if first < 0:
        raise UsageError(f"--seed {first}: 0 or more")
    if not 1 <= count <= _MAX_SEEDS:
        raise UsageError(f"--seeds {count}: 1 to {_MAX_SEEDS:,}")
    if without_chance is not None and count > 1:
        raise UsageError(f"{without_chance} has no chance in it; --seeds does not go with it")
    return list(range(first, first + count))


def searched(grid: Sequence[str]) -> list[str]:
    """List the policies that a grid is about."""
    return list(dict.fromkeys(name for text in grid if (name := text.partition(".")[0]) in POLICIES))


def chosen(names: Sequence[str], settings: Sequence[str], grid: Sequence[str] = ()) -> dict[str, Settings]:
    """Read policies by name with their settings, such as ``vllm.watermark=0.05`` or ``wait.thresholds=4,4``.

    In place of a policy with parameters in the `grid`, such as ``flow-unknown.budget=8:24:9``, stand its variants, one
    for every combination of their values.

    >>> list(chosen(["greedy", "flow-unknown"], [], ["flow-unknown.budget=8:24:3"]))
    ['greedy', 'flow-unknown budget=8', 'flow-unknown budget=16', 'flow-unknown budget=24']
    """
    given: dict[str, dict[str, tuple[float, ...]]] = {}
    for name in names:
        if name not in POLICIES:
            raise UsageError(
                f"--policy {name!r} does not exist; {did_you_mean(name, POLICIES, 'the policies are')}"
            )
        if name in given:
            raise UsageError(f"--policy {name!r} is there twice")
        given[name] = {}
    if not given:
        raise UsageError(f"--policy: at least one of {', '.join(POLICIES)}")
    for text in settings:
        place = f"--set {text!r}"
        policy, key, value = _parameter(place, text, "VALUE is wanted, such as vllm.watermark=0.05", given)
        if key in given[policy]:
            raise UsageError(f"{place}: {policy}.{key} is set twice")
        words = POLICIES[policy].words.get(key)
        given[policy][key] = _numbers(place, key, value) if words is None else (_word(place, value, words),)
    axes: dict[str, dict[str, tuple[float, ...]]] = {name: {} for name in given}
    for text in grid:
        place = f"--grid {text[:60]!r}"
        policy, key, value = _parameter(
            place, text, "VALUES are wanted, such as vllm.watermark=0:0.1:5", given
        )
        if key in given[policy] or key in axes[policy]:
            raise UsageError(f"{place}: {policy}.{key} is set twice")
        axes[policy][key] = _values(place, policy, key, value)
    count = sum(math.prod(map(len, values.values())) for values in axes.values())
    if count > MOST_VARIANTS:
        raise UsageError(f"--grid asks for {count:,} variants of policies; {MOST_VARIANTS:,} is the most")
    variants = [
        Settings(name, {**given[name], **dict(zip(axes[name], values, strict=True))}, tuple(axes[name]))
        for name in given
        for values in product(*([(value,) for value in each] for each in axes[name].values()))
    ]
    return {" ".join([v.policy, *(f"{key}={written(v, key)}" for key in v.varied)]): v for v in variants}


def written(settings: Settings, key: str) -> str:
    """Write the value of a parameter that is a single number or a word."""
    (value,) = settings.given[key]
    words = POLICIES[settings.policy].words.get(key)
    return f"{value:.{_DIGITS}g}" if words is None else words[int(value)]


def _parameter(place: str, text: str, wanted: str, policies: Mapping[str, object]) -> tuple[str, str, str]:
    """Split ``POLICY.PARAMETER=VALUE`` into its parts."""
    left, equals, value = text.partition("=")
    policy, _, key = left.partition(".")
    if not equals or not key:
        raise UsageError(f"{place}: POLICY.PARAMETER={wanted}")
    if policy not in POLICIES:
        raise UsageError(f"{place}: {policy!r} does not exist; {did_you_mean(policy, POLICIES, 'there are')}")
    if policy not in policies:
        raise UsageError(f"{place}: {policy!r} is not among the policies: {', '.join(policies)}")
    known = POLICIES[policy].parameters
    if key not in known:
        what = f"has {', '.join(known)}" if known else "has no parameters"
        raise UsageError(f"{place}: {policy} {what}")
    return policy, key, value


def _values(place: str, policy: str, key: str, text: str) -> tuple[float, ...]:
    """Read the values that a parameter takes in a grid."""
    if (words := POLICIES[policy].words.get(key)) is not None:
        values = tuple(_word(place, word, words) for word in text.split(","))
    else:
        axis = read_axis("--grid", f"{policy}.{key}", text, Quantity(COUNT_UNITS, whole=key in LIMITS_OF))
        if axis.count > MOST_VARIANTS:
            raise UsageError(f"{place}: {axis.count:,} values; {MOST_VARIANTS:,} is the most")
        values = tuple(axis.at(index) for index in range(axis.count))
    if len({f"{value:.{_DIGITS}g}" for value in values}) < len(values):
        raise UsageError(f"{place}: a value is there twice, to {_DIGITS} digits")
    return values


def _burst_sessions(text: str) -> Burst:
    count, at, when = text.partition("@")
    if (
        not at
        or not count.strip().isascii()
        or not count.strip().isdigit()
        or not 1 <= int(count) <= _MOST_SESSIONS
    ):
        raise UsageError(
            f"--burst-sessions {text!r}: a number of sessions up to {_MOST_SESSIONS:,}, @ and a time, such as 600@0"
        )
    at_s = 0.0 if when.strip() in ("0", "0 s") else parse_time(when.strip(), "--burst-sessions")
    return Burst(int(count), at_s)


def _word(place: str, value: str, words: tuple[str, ...]) -> float:
    if value not in words:
        raise UsageError(f"{place}: {' or '.join(words)} is wanted")
    return float(words.index(value))


def _numbers(place: str, key: str, value: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in value.split(","))
    except ValueError:
        numbers = (parse_time(value, place) if key in TIMES else math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise UsageError(f"{place}: a number is wanted, or several with commas")
    return numbers
