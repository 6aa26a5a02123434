"""Quantities with units: read from profiles and options, written for people.

Nothing else in the package formats numbers.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

from kvplan.errors import UsageError
from kvplan.ranges import LONGEST_S

ABSENT = "–"

TIME_UNITS: Mapping[str, Fraction] = {
    "ns": Fraction(1, 1_000_000_000),
    "us": Fraction(1, 1_000_000),
    "ms": Fraction(1, 1_000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}
BYTE_UNITS: Mapping[str, Fraction] = {
    "B": Fraction(1),
    "kB": Fraction(10**3),
    "MB": Fraction(10**6),
    "GB": Fraction(10**9),
    "TB": Fraction(10**12),
    "KiB": Fraction(2**10),
    "MiB": Fraction(2**20),
    "GiB": Fraction(2**30),
    "TiB": Fraction(2**40),
}
POWER_UNITS: Mapping[str, Fraction] = {"W": Fraction(1), "kW": Fraction(1000)}
BANDWIDTH_UNITS: Mapping[str, Fraction] = {f"{unit}/s": size for unit, size in BYTE_UNITS.items()}
RATE_UNITS: Mapping[str, Fraction] = {
    "/s": Fraction(1),
    "/min": Fraction(1, 60),
    "/h": Fraction(1, 3600),
}

# The digits and the exponent are bounded so that exact arithmetic stays cheap whatever is typed.
_UNSIGNED = r"[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,2})?"
_QUANTITY = re.compile(rf"([+-]?{_UNSIGNED}) *([A-Za-zµ]+(?:/s)?)")
_QUANTITY_OR_NUMBER = re.compile(rf"([+-]?{_UNSIGNED}) *((?:[A-Za-zµ]+(?:/s)?)?)")


def parse_seconds(text: str) -> float:
    """Return the seconds in a time such as ``14.5 ms``, rounded once from the decimals written.

    >>> parse_seconds("14.5 ms"), parse_seconds("1 h")
    (0.0145, 3600.0)
    """
    return float(_parse(text, TIME_UNITS, "a time", "14.5 ms"))


def parse_time(text: str, option: str) -> float:
    """Return the seconds of an option: a number of them, or a string with a unit, above 0.

    >>> parse_time("90", "--horizon"), parse_time("1 h", "--horizon")
    (90.0, 3600.0)
    """
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parse_seconds(text)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from None
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"{option} {text!r}: a time above 0, up to {LONGEST_S:g} s")
    return seconds


def parse_bytes(text: str) -> int:
    """Return the whole bytes in an amount of memory such as ``5.05 GiB``, rounded down.

    >>> parse_bytes("5.05 GiB")
    5422396211
    """
    return _parse(text, BYTE_UNITS, "an amount of memory", "5.05 GiB").__floor__()


def parse_bandwidth(text: str) -> float:
    """Return the bytes per second in a rate such as ``20 GB/s``.

    >>> parse_bandwidth("20 GB/s")
    20000000000.0
    """
    return float(_parse(text, BANDWIDTH_UNITS, "a bandwidth", "20 GB/s"))


def parse_power(text: str) -> float:
    """Return the watts in a power such as ``0.7 kW``.

    >>> parse_power("0.7 kW")
    700.0
    """
    return float(_parse(text, POWER_UNITS, "a power", "700 W"))


def parse_requests(text: str) -> float:
    """Return requests/s of a rate such as ``60/min``.

    >>> parse_requests("60/min"), parse_requests("2 /h") * 1800
    (1.0, 1.0)
    """
    match = re.fullmatch(rf" *([+-]?{_UNSIGNED}) *(/[a-z]+) *", text[:200])
    if match is None or match[2] not in RATE_UNITS or len(text) > 200:
        named = ", ".join(RATE_UNITS)
        raise UsageError(f'{_quoted(text)} is not a rate such as "60/min" (units: {named})')
    return float(Fraction(match[1]) * RATE_UNITS[match[2]])


def _parse(text: str, units: Mapping[str, Fraction], noun: str, example: str) -> Fraction:
    match = _QUANTITY.fullmatch(text.strip(" "))
    if match and match[2] in units:
        return Fraction(match[1]) * units[match[2]]
    raise UsageError(
        f'{_quoted(text)} is not {noun}; write a number and one of {", ".join(units)}, such as "{example}"'
    )


COUNT_UNITS: Mapping[str, Fraction] = {
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
}


def parse_exact(text: str, units: Mapping[str, Fraction]) -> Fraction:
    """Return a number with a unit, exactly as the decimals say; where `units` has "", one without a unit too.

    >>> parse_exact("20k", COUNT_UNITS), parse_exact("41_408", COUNT_UNITS), parse_exact("2.5 ms", TIME_UNITS)
    (Fraction(20000, 1), Fraction(41408, 1), Fraction(1, 400))
    """
    match = _QUANTITY_OR_NUMBER.fullmatch(re.sub(r"(?<=[0-9])_(?=[0-9])", "", text[:200].strip(" ")))
    if match and match[2] in units and len(text) <= 200:
        return Fraction(match[1]) * units[match[2]]
    named = ", ".join(unit for unit in units if unit)
    raise UsageError(f"{_quoted(text)} is not a number {'or a number ' * ('' in units)}with one of {named}")


def parse_rate(text: str, option: str) -> float:
    """Return a rate per second; ``/min`` and ``/h`` are others, and numbers may end in k or M.

    >>> parse_rate("12", "--rate"), parse_rate("60/min", "--rate"), parse_rate("3.6k/h", "--rate")
    (12.0, 1.0, 1.0)
    """
    number, slash, per = text.partition("/")
    try:
        if not slash or (per := per.strip()) in ("s", "min", "h"):
            return float(parse_exact(number, COUNT_UNITS) / TIME_UNITS[per or "s"])
    except UsageError:
        pass
    raise UsageError(f"{option} {_quoted(text)}: a rate is wanted, such as 12, 60/min or 2/h")


def quantity_pattern(units: Mapping[str, Fraction]) -> str:
    """Return the regular expression of what `parse_seconds` or `parse_bytes` reads, negative amounts left out.

    >>> bool(re.search(quantity_pattern(TIME_UNITS), "14.5 ms"))
    True
    """
    return f"^ *[+]?{_UNSIGNED} *({'|'.join(units)}) *$"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def format_number(value: float | None, digits: int = 4) -> str:
    """Write a plain number to so many significant digits, with thousands separators.

    Whole digits before the point are never replaced by zeros.

    >>> format_number(1234567.8), format_number(0.0123456), format_number(2.50), format_number(1.2e-7)
    ('1,234,568', '0.01235', '2.5', '1.2e-07')
    >>> format_number(None)
    '–'
    """
    if value is None:
        return ABSENT
    if 10**digits <= abs(float(f"{value:.{digits}g}")) < 1e15:
        return f"{value:,.0f}"
    return f"{value + 0.0:,.{digits}g}"  # + 0.0 takes the sign from a negative zero


def rounded(value: float, digits: int) -> float:
    """Return a number as `format_number` shows it.

    >>> rounded(12345.6, 4), rounded(0.123456, 4)
    (12346.0, 0.1235)
    """
    return float(format_number(value, digits).replace(",", ""))


def format_tokens(value: float | None) -> str:
    """Write a number of tokens, whole, with thousands separators.

    >>> format_tokens(41_408), format_tokens(36_881.4)
    ('41,408', '36,881')
    """
    return ABSENT if value is None else f"{value:,.0f}"


def format_seconds(value: float | None, digits: int = 3) -> str:
    """Write a time in the largest of us, ms, s, min, h that leaves at least one whole unit.

    >>> format_seconds(0.0145), format_seconds(0.25e-6), format_seconds(90), format_seconds(3600)
    ('14.5 ms', '0.25 us', '1.5 min', '1 h')
    """
    if value is None:
        return ABSENT
    if value == 0:
        return "0 s"
    # Rounded first, so that 59.99 s reads as 1 min and not as 60 s.
    rounded = abs(float(f"{value:.{digits}g}"))
    units = ((size, unit) for unit, size in TIME_UNITS.items() if unit != "ns" and rounded >= size)
    unit = max(units, default=(None, "us"))[1]
    return f"{format_number(value / float(TIME_UNITS[unit]), digits)} {unit}"


def format_rate(value: float | None, what: str = "", digits: int = 4) -> str:
    """Write a rate per second, of `what` if that is named.

    >>> format_rate(1.5), format_rate(3414.16, "tokens")
    ('1.5/s', '3,414 tokens/s')
    """
    if value is None:
        return ABSENT
    return f"{format_number(value, digits)} {what}/s" if what else f"{format_number(value, digits)}/s"


def format_percent(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """Write a fraction as a percentage; `signed` writes the plus of a change.

    >>> format_percent(0.2567), format_percent(0.034, signed=True), format_percent(1)
    ('25.7%', '+3.4%', '100%')
    """
    if value is None:
        return ABSENT
    sign = "+" if signed and value > 0 else ""
    return f"{sign}{format_number(100 * value, digits)}%"


def format_bytes(value: float) -> str:
    """Write an amount of memory in units of a thousand, the largest that leaves at least one whole.

    >>> format_bytes(5_427_429_376), format_bytes(131_072), format_bytes(999.99e6)
    ('5.427 GB', '131.1 kB', '1 GB')
    """
    rounded = abs(float(f"{value:.4g}"))
    decimal = {unit: float(size) for unit, size in BYTE_UNITS.items() if not unit.endswith("iB")}
    unit = max((u for u in decimal if rounded >= decimal[u]), key=decimal.__getitem__, default="B")
    return f"{format_number(value / decimal[unit])} {unit}"
