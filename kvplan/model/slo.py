"""Service level objectives: upper bounds of latencies and of recomputed work, as people write them."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvplan.errors import UsageError, did_you_mean
from kvplan.ranges import LONGEST_S, SHORTEST_S
from kvplan.units import format_percent, format_seconds, parse_seconds

TIMES = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
FIGURES = ("mean", "p50", "p90", "p95", "p99")
KEYS = (*(f"{time}.{figure}" for time in TIMES for figure in FIGURES), "recomputed_share")
_LONGEST = 200  # characters
_SLO = re.compile(r"([A-Za-z_][\w.]*(?:[- ](?:mean|p\d\d))?) *(<=|<|=) *(\S.*)", re.ASCII)
_SHORT = re.compile(r"(ttft|itl|tpot|e2e)[-. ](mean|p\d\d)")
_NUMBER = re.compile(r"\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Slo:
    """An objective: an upper bound, in seconds or a share, of a figure of `KEYS`; `strict`: below it.

    Of one class its key ends in " of " and the name; `which` is the index of the class. `deadline`: it is that of work
    whose answers nobody waits for.
    """

    text: str
    key: str
    strict: bool
    bound: float
    which: int | None = None
    deadline: bool = False

    @property
    def of_all(self) -> bool:
        """Tell whether it is of all requests, and of no class alone."""
        return self.which is None

    @property
    def figure(self) -> str:
        """Key of the figure, whosever it is."""
        return self.key.partition(" of ")[0]

    def holds(self, value: float) -> bool:
        """Tell whether a value is within the bound."""
        return value < self.bound if self.strict else value <= self.bound

    def judged(self, value: float | None) -> str:
        """Say whether a value is within the bound; nothing where there is none."""
        known = value is not None and self.bound < math.inf
        return "" if not known else "met" if self.holds(value or 0.0) else "missed"

    def written(self, value: float | None) -> str:
        """Write a value of this figure for people; without end there is none."""
        value = None if value == math.inf else value
        return format_seconds(value) if "_s." in self.key else format_percent(value)


def promises(priorities: Mapping[str, int], slos: Iterable[Slo]) -> tuple[Slo, ...]:
    """List what classes are promised, where that differs: without an objective TTFT p95, however long."""
    own = [slo for slo in slos if not slo.of_all]
    for i, name in enumerate(priorities if own or len({*priorities.values()}) > 1 else ()):
        if all(slo.which != i for slo in own):
            own.append(Slo("", f"ttft_s.p95 of {name}", False, math.inf, i))
    return tuple(sorted(own, key=lambda slo: slo.which or 0))


def parse_slo(text: str) -> Slo:
    """Read an objective.

    Raises
    ------
    UsageError
        It is not ``KEY <= VALUE``, or ``TIME-FIGURE=VALUE``, or no such figure can be bounded.

    Examples
    --------
    >>> parse_slo("ttft_s.p95 <= 500 ms").bound, parse_slo("recomputed_share < 1%").bound
    (0.5, 0.01)
    >>> parse_slo("ttft-p95=2s").text, parse_slo("itl p99 < 80 ms").key
    ('ttft_s.p95 <= 2s', 'itl_s.p99')
    """
    shown = repr(text if len(text) <= 80 else text[:77] + "...")
    match = _SLO.fullmatch(text.strip(" ")) if len(text) <= _LONGEST else None
    if match is None:
        raise UsageError(f"--slo {shown}: an objective is wanted, such as ttft-p95=2s or 'ttft_s.p95 <= 2 s'")
    key, symbol, value = match.groups()
    if (short := _SHORT.fullmatch(key)) is not None:
        key = f"{short[1]}_s.{short[2]}"
        if _NUMBER.fullmatch(value):
            raise UsageError(f"--slo {shown}: a time with a unit is wanted, such as {value}s")
    symbol = "<" if symbol == "<" else "<="
    if key not in KEYS:
        raise UsageError(f"--slo {shown}: {did_you_mean(key, KEYS, 'the figures are')}")
    written = f"{key} {symbol} {' '.join(value.split())}"
    return Slo(written, key, symbol == "<", _bound(key, value, f"--slo {shown}"))


def of_requests(slos: Iterable[Slo], *, drafts: bool = False) -> dict[str, float]:
    """Bound the times of a single request, seconds: of all objectives on a time, the tightest.

    A request's inter-token latency is the mean of its gaps: its TPOT, but with `drafts`, where an iteration emits more.
    """
    limits: dict[str, float] = {}
    for slo in slos:
        time = slo.key.partition(".")[0]
        if time in TIMES:
            own = "tpot_s" if time == "itl_s" and not drafts else time
            limits[own] = min(slo.bound, limits.get(own, slo.bound))
    return limits


def _bound(key: str, value: str, place: str) -> float:
    share = key == "recomputed_share"
    if not share and (value.startswith("-") or value.lower() == "nan"):
        raise UsageError(f"{place}: must be above 0")
    if _NUMBER.fullmatch(value):
        number = float(value)
    elif share and value.endswith("%") and _NUMBER.fullmatch(value[:-1].strip()):
        number = float(value[:-1]) / 100
    elif share:
        raise UsageError(f"{place}: a share such as 0.01 or 1% is wanted")
    else:
        try:
            number = parse_seconds(value)
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from None
    if share and not 0 <= number <= 1:
        raise UsageError(f"{place}: a share from 0 to 1")
    if not share and not SHORTEST_S <= number <= LONGEST_S:
        raise UsageError(f"{place}: must be from {SHORTEST_S:g} s to {LONGEST_S:g} s")
    return number
