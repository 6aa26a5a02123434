"""Objectives of `kvplan size`: upper bounds of simulated figures, as people write them."""

import re
from dataclasses import dataclass

from kvplan.errors import UsageError, did_you_mean
from kvplan.units import format_percent, format_seconds, parse_seconds

KEYS = (
    *(f"{block}.{name}" for block in ("ttft_s", "tpot_s", "e2e_s") for name in ("mean", "p50", "p95", "p99")),
    "recomputed_share",
)
_SLO = re.compile(r" *([A-Za-z_][\w.]*) *(<=|<) *(\S.*?) *", re.ASCII)
_NUMBER = re.compile(r"\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Slo:
    """An objective: an upper bound, in seconds or a share, of a simulated figure of `KEYS`; `strict`: below it."""

    text: str
    key: str
    strict: bool
    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return value < self.bound if self.strict else value <= self.bound

    def written(self, value: float | None) -> str:
        """A value of this figure for people."""
        return format_seconds(value) if "_s." in self.key else format_percent(value)


def parse_slo(text: str) -> Slo:
    """Read an objective.

    Raises
    ------
    UsageError
        It is not ``KEY <= VALUE``, or no such figure can be bounded.

    Examples
    --------
    >>> parse_slo("ttft_s.p95 <= 500 ms").bound, parse_slo("recomputed_share < 1%").bound
    (0.5, 0.01)
    """
    shown = repr(text if len(text) <= 80 else text[:77] + "...")
    found = _SLO.fullmatch(text)
    if found is None:
        raise UsageError(f"--slo {shown}: KEY <= VALUE is wanted, such as 'ttft_s.p95 <= 2 s'")
    key, symbol, value = found.groups()
    if key not in KEYS:
        raise UsageError(f"--slo {shown}: {did_you_mean(key, KEYS, 'the figures are')}")
    return Slo(" ".join(text.split()), key, symbol == "<", _bound(key, value, f"--slo {shown}"))


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
    if not share and not 0 < number < 1e12:
        raise UsageError(f"{place}: must be {'above 0' if number <= 0 else 'below 1e12 s'}")
    return number
