"""Options, each declared once: what it is called, what it means, what it takes, and how that is read.

A record of options is a dataclass whose fields have an `Option` as their default. An option reads what it is set to,
once: text as the command line has it; numbers, lists and mappings as programs have them. None is: not given.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import StrEnum
from fractions import Fraction
from functools import wraps
from inspect import Parameter, getattr_static, signature
from itertools import islice
from numbers import Real
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast, overload

from kvplan.axes import MAX_LISTED, MAX_POINTS
from kvplan.engine import VERSION, EngineName
from kvplan.errors import UsageError, shown
from kvplan.units import COUNT_UNITS, parse_bytes, parse_exact, parse_rate, parse_time

if TYPE_CHECKING:
    from kvplan.model.slo import Slo

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_T = TypeVar("_T")
_Word = TypeVar("_Word", bound=StrEnum | None)
_Given = ParamSpec("_Given")

AnyPath: TypeAlias = str | PathLike[str]
Several: TypeAlias = str | Iterable[str]
Amount: TypeAlias = float | str


class Option(Generic[_In, _Out]):
    """A field of a record, which reads what the field is set to: `_In` as given, `_Out` as the record has it.

    `shell` is what the command line takes for it, None where it has no such option; `repeats` tells whether it may be
    given several times there; `given` says in words what a program gives.
    """

    shell: Any = str
    repeats = False
    metavar: str | None = None
    given = "str"

    def __init__(
        self,
        help: str,
        default: _In = None,  # type: ignore[assignment]
        *,
        flag: str | None = "",
        metavar: str | None = None,
        complete: str = "",
    ) -> None:
        self.help, self.default, self.flag, self.complete = help, default, flag, complete
        self.metavar = metavar or self.metavar

    def __set_name__(self, record: type, name: str) -> None:
        self.name = name
        if self.flag == "":
            self.flag = f"--{name.replace('_', '-')}"

    @overload
    def __get__(self, record: None, kind: type) -> _In: ...
    @overload
    def __get__(self, record: object, kind: type) -> _Out: ...
    def __get__(self, record: object | None, kind: type) -> _In | _Out:
        return self.default if record is None else record.__dict__[self.name]

    def __set__(self, record: object, value: _In) -> None:
        if self.name in record.__dict__:
            raise AttributeError(f"{self.name} is set, and stays as it is")
        value = self.default if value is None else value
        nothing = value is self.default and value in (None, ())
        record.__dict__[self.name] = value if nothing else self.read(value)

    def read(self, value: Any) -> _Out:
        """Return a value as the record has it."""
        return cast(_Out, value)

    def listed(self, value: Any, wanted: str = "a list of names") -> tuple[str, ...]:
        """Return one text or several."""
        texts = (
            (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
        )
        if all(isinstance(text, str) for text in texts):
            return texts
        raise self.refused(wanted, value)

    def written(self, value: Any) -> str:
        """Return a text, or a number as one."""
        if not isinstance(value, str | PathLike | Real) or isinstance(value, bool):
            raise self.refused("a number or a text", value)
        return str(fspath(value) if isinstance(value, PathLike) else value)

    def word(self, value: Any) -> str:
        """Return one of the words that the command line has for the option."""
        if isinstance(value, str) and value in [*self.shell]:
            return value
        raise UsageError(f"{self.name} {seen(value)} does not exist; there are {', '.join(self.shell)}")

    def refused(self, wanted: str, value: object) -> UsageError:
        """Return the error for a value of a kind that the option does not take."""
        return UsageError(f"{self.name}: {wanted} is wanted, not {seen(value)}")


def seen(value: object) -> str:
    """Show a value on one line, which tables and arrays are not by themselves."""
    return " ".join(shown(value).split())


class Text(Option[Amount | None, _T]):
    """A text, or a number that is written as one."""

    def read(self, value: Any) -> _T:
        return cast(_T, self.written(value))


class File(Option[AnyPath | None, Path | None]):
    """A path."""

    shell, metavar, given = Path, "FILE", "path"

    def read(self, value: Any) -> Path | None:
        if isinstance(value, str | PathLike):
            return Path(value)
        raise self.refused("a path", value)


class Flag(Option[bool, bool]):
    """Something to be done, or not."""

    shell, given = bool, "bool"

    def __init__(self, help: str) -> None:
        super().__init__(help, False)


class Choice(Option[str | None, _Word]):
    """One of the words of an enumeration, which is that of the default, or is given."""

    def __init__(self, words: type[StrEnum], help: str, default: _Word | None = None, **how: str) -> None:
        super().__init__(help, default, **how)
        self.shell, self.given = words, " | ".join(words)

    def read(self, value: Any) -> _Word:
        return cast(_Word, self.shell(self.word(value)))


class Number(Option[float | None, _T]):
    """A number."""

    shell, given = float, "float"

    def read(self, value: Any) -> _T:
        if isinstance(value, Real) and not isinstance(value, bool):
            return cast(_T, float(value))
        raise self.refused("a number", value)


class Price(Number[_T]):
    """A price, which may be nothing."""

    metavar = "PRICE"

    def read(self, value: Any) -> _T:
        price = super().read(value)
        if not 0 <= cast(float, price) <= 1e6:
            raise UsageError(f"{self.flag} {price:g}: a price of 0 or more")
        return price


class Whole(Option[int | None, _T]):
    """A whole number, one of NumPy as well, within bounds."""

    shell: Any = int
    given = "int"

    def __init__(
        self,
        help: str,
        default: int | None = None,
        *,
        least: int | None = None,
        most: int | None = None,
        **how: str,
    ) -> None:
        super().__init__(help, default, **how)
        self.least, self.most = least, most

    def read(self, value: Any) -> _T:
        try:
            number = index(value)
        except TypeError:
            raise self.refused("a whole number", value) from None
        if self.least is not None and not self.least <= number <= (self.most or number):
            bounds = f"{self.least} or more" if self.most is None else f"{self.least} to {self.most:,}"
            raise UsageError(f"{self.name} {seen(value)}: {bounds}")
        return cast(_T, number)


class Count(Whole[_T]):
    """A whole number; a text may end in k or M.

    >>> Count("Tokens.").read("1.5M")
    1500000
    """

    shell, metavar, given = str, "N", "int, or str such as 3k"

    def read(self, value: Any) -> _T:
        if isinstance(value, str):
            try:
                number = parse_exact(value, COUNT_UNITS)
            except UsageError:
                number = Fraction(1, 2)
            if number.denominator != 1:
                raise UsageError(
                    f"{self.flag} {seen(value[:40])}: a whole number is wanted, such as 3000, 3k or 1.5M"
                )
            value = int(number)
        return super().read(value)


class Rate(Option[Amount | None, _T]):
    """A rate per second, or a text with ``/min`` or ``/h``."""

    metavar, given = "RATE", "float, or str such as 60/min"

    def read(self, value: Any) -> _T:
        return cast(_T, parse_rate(self.written(value), self.flag or self.name))


class Time(Option[Amount | None, float | None]):
    """A time in seconds. Text has a unit, or is a plain number where that cannot be mistaken."""

    metavar, given = "TIME", "seconds, or str with a unit"

    def __init__(self, help: str, *, plain: bool = True, never: bool = False) -> None:
        super().__init__(help)
        self.plain, self.never = plain, never

    def read(self, value: Any) -> float:
        if self.never and value in ("never", math.inf):  # as read before, where options are replaced
            return math.inf
        if not self.plain and isinstance(value, str) and re.fullmatch(r"[0-9.eE+ -]+", value):
            raise UsageError(f"{self.flag} {value!r}: a unit is missing, such as {value.strip()}s")
        return parse_time(self.written(value), self.flag or self.name)


class Share(Option[Amount | None, _T]):
    """A share or a percentage within bounds; None by the word ``auto``, where that is the default."""

    metavar, given = "SHARE", "float, or str with %"

    def __init__(
        self, help: str, default: Amount | None = None, *, low: float = 0, high: float = 1, **how: str
    ) -> None:
        super().__init__(help, default, **how)
        self.low, self.high, self.auto = low, high, default == "auto"

    def read(self, value: Any) -> _T:
        if self.auto and value == "auto":
            return cast(_T, None)
        text = self.written(value)
        try:
            share = float(text.rstrip("% ")) / (100 if text.rstrip().endswith("%") else 1)
        except ValueError:
            share = float("nan")
        if not self.low <= share <= self.high:
            wanted = f"a share from {self.low:g} to {self.high:g}, or a percentage, such as 20%"
            raise UsageError(f"{self.flag} {text[:40]!r}: {'auto, or ' if self.auto else ''}{wanted}")
        return cast(_T, share)


class Texts(Option[Several | None, tuple[str, ...]]):
    """Texts, of which the command line has one for each time the option is given."""

    repeats, given = True, "str, or several"

    def read(self, value: Any) -> tuple[str, ...]:
        return self.listed(value)


class Names(Texts):
    """Names with commas between them, or in a list.

    >>> Names("Policies.").read("greedy, vllm")
    ('greedy', 'vllm')
    """

    repeats, metavar = False, "NAME,..."

    def read(self, value: Any) -> tuple[str, ...]:
        names = tuple(n.strip() for part in self.listed(value) for n in part.split(",") if n.strip())
        if not names:
            raise UsageError(f"{self.flag}: at least one is wanted")
        return names


class Keys(Names):
    """Names with commas, and the option may be given several times."""

    repeats, metavar = True, "KEY,..."


class Ranks(Option[int | str | Iterable[int] | None, tuple[int, ...]]):
    """Numbers of GPUs to compare, with commas between them or in a list."""

    metavar, given = "N,...", "int, or several"

    def read(self, value: Any) -> tuple[int, ...]:
        given = [value] if isinstance(value, Real) else value.split(",") if isinstance(value, str) else value
        texts = [str(each).strip() for each in given] if isinstance(given, Iterable) else [seen(given)]
        for text in texts:
            if text and not (text.isdecimal() and 1 <= int(text) <= 64):
                raise UsageError(
                    f"{self.flag} {text[:40]!r}: whole numbers from 1 to 64, with commas between"
                )
        return tuple(int(text) for text in texts if text)


class Choices(Texts):
    """Words of an enumeration, of which the command line has one for each time the option is given."""

    def __init__(self, words: type[StrEnum], help: str, **how: str) -> None:
        super().__init__(help, (), **how)
        self.shell, self.given = words, f"{' | '.join(words)}, or several"

    def read(self, value: Any) -> tuple[str, ...]:
        return tuple(map(self.word, self.listed(value)))


class Pairs(Option["Several | Mapping[str, object] | None", tuple[str, ...]]):
    """``KEY=VALUES`` of a mapping, at most `MAX_LISTED` values of each key, or as they are written.

    >>> memory = {"gpu.memory_tokens": range(1000, 3001, 1000), "timing.d0": "1 ms,2 ms"}
    >>> Pairs("What to vary.").read(memory)
    ('gpu.memory_tokens=1000,2000,3000', 'timing.d0=1 ms,2 ms')
    """

    repeats, given = True, "values by key, such as a dict"

    def read(self, value: Any) -> tuple[str, ...]:
        if isinstance(value, Mapping):
            return tuple(f"{key}={self._written(key, each)}" for key, each in value.items())
        return self.listed(value, "a value by key, such as a dict,")

    def _written(self, key: object, value: Any) -> str:
        if getattr(value, "shape", None) == ():  # an array of no dimensions
            value = value.item()
        if isinstance(value, str) or not isinstance(value, Iterable):
            return str(value)
        values = list(islice(value, MAX_LISTED + 1))
        if len(values) > MAX_LISTED:
            raise UsageError(
                f"{self.name} {seen(key)}: more than {MAX_LISTED:,} values, which is the most in a list; in a range "
                f"'LOW:HIGH:COUNT' it is {MAX_POINTS:,}"
            )
        return ",".join(map(str, values))


class Objectives(Option[Several | None, "tuple[Slo, ...]"]):
    """Objectives of latency."""

    repeats, metavar, given = True, "KEY<=VALUE", "str, or several"

    def read(self, value: Any) -> "tuple[Slo, ...]":
        from kvplan.model.slo import Slo, parse_slo

        if isinstance(value, tuple) and all(isinstance(one, Slo) for one in value):
            return value
        return tuple(map(parse_slo, self.listed(value)))


class Prices(Option["Amount | Mapping[str, float] | None", dict[str, float] | None]):
    """Prices by name, that of all others by the empty one: ``3``, or ``H100=3,B200=5.5``."""

    metavar, given = "PRICE", "float, or prices by name"

    def read(self, value: Any) -> dict[str, float]:
        if isinstance(value, Mapping):
            value = ",".join(f"{name}={price}" for name, price in value.items())
        prices: dict[str, float] = {}
        for part in self.written(value).split(","):
            name, _, written = part.rpartition("=")
            try:
                price = float(written)
            except ValueError:
                price = float("nan")
            if not 0 < price <= 1e6:
                example = "a price above 0, or NAME=PRICE, such as H100=3"
                raise UsageError(f"{self.flag} {part.strip()[:40]!r}: {example}")
            prices[name.strip()] = price
        return prices


class ApiPrice(NamedTuple):
    """Price of an API for a million tokens in, and for a million out."""

    per_million_in: float
    per_million_out: float


class ApiPrices(Option["Amount | Mapping[str, float] | None", ApiPrice | None]):
    """Prices of an API: ``in=0.6,out=2.4``."""

    metavar, given = "in=PRICE,out=PRICE", "prices by in and out"

    def read(self, value: Any) -> ApiPrice:
        if isinstance(value, ApiPrice):  # read before
            return value
        if isinstance(value, Mapping):
            value = ",".join(f"{name}={price}" for name, price in value.items())
        written = self.written(value)
        try:
            pairs = [
                (name.strip(), float(price)) for name, price in (p.split("=") for p in written.split(","))
            ]
        except ValueError:
            pairs = []
        prices = dict(pairs)
        if sorted(name for name, _ in pairs) != ["in", "out"] or not all(
            0 < price <= 1e6 for price in prices.values()
        ):
            raise UsageError(f"{self.flag} {written[:40]!r}: two prices above 0, such as in=0.6,out=2.4")
        return ApiPrice(prices["in"], prices["out"])


class Sizes(Option["Amount | Iterable[str | float] | None", tuple[float, ...] | None]):
    """Sizes in bytes, told in GiB: ``100GiB,200GiB``; none of them for ``auto``."""

    metavar, given = "auto|SIZE,...", "'auto' or sizes"

    def read(self, value: Any) -> tuple[float, ...]:
        if isinstance(value, tuple) and all(isinstance(size, float) for size in value):  # read before
            return value
        several = isinstance(value, Iterable) and not isinstance(value, str)
        if (written := ",".join(map(str, value)) if several else self.written(value)) == "auto":
            return ()
        try:
            sizes = tuple(dict.fromkeys(parse_bytes(part.strip()) / (1 << 30) for part in written.split(",")))
        except UsageError as error:
            raise UsageError(f"{self.flag}: {error}") from None
        if not all(0 < size <= 1e6 for size in sizes):
            raise UsageError(f"{self.flag} {written[:40]!r}: auto, or sizes such as 100GiB,200GiB")
        return sizes


class Engine(NamedTuple):
    """An engine and its version, empty where that is not known."""

    name: EngineName
    version: str = ""


class Engines(Option[str | None, _T]):
    """The name of an engine, and its version if it is known: ``vllm==0.15.1``."""

    metavar = "NAME[==VERSION]"

    def read(self, value: Any) -> _T:
        if isinstance(value, Engine):
            return cast(_T, value)
        name, equals, version = self.written(value).partition("==")
        if name not in set(EngineName) or (equals and not re.fullmatch(VERSION, version)):
            known = ", ".join(EngineName)
            raise UsageError(
                f"{self.flag} {seen(value)}: one of {known}, or with a version, such as vllm==0.15.1"
            )
        return cast(_T, Engine(EngineName(name), version))


class Bursts(Option["str | Iterable[float] | None", "tuple[float, float, float, float] | None"]):
    """Factors of the rates during and between bursts, and the seconds of each."""

    metavar, given = "HIGH,LOW,ON,OFF", "four numbers"

    def read(self, value: Any) -> tuple[float, float, float, float]:
        text = ",".join(map(str, value)) if isinstance(value, tuple | list) else self.written(value)
        try:
            high, low, on_s, off_s = map(float, text.split(","))
        except ValueError:
            high = low = on_s = off_s = float("nan")
        if not (0 < high <= 1e6 and 0 <= low <= 1e6 and 0 < on_s <= 1e9 and 0 <= off_s <= 1e9):
            wanted = "four numbers with commas, HIGH > 0, LOW >= 0, ON > 0 and OFF >= 0 seconds"
            raise UsageError(f"--burst {text!r}: {wanted}")
        return high, low, on_s, off_s


def options_of(record: type) -> dict[str, Option[Any, Any]]:
    """Return the options of a record by name: its own, then those that it shares with others."""
    names = dict.fromkeys([*record.__annotations__, *(field.name for field in fields(record))])
    found = {name: getattr_static(record, name, None) for name in names}
    return {name: option for name, option in found.items() if isinstance(option, Option)}


def takes(
    record: Callable[_Given, _In],
) -> Callable[[Callable[[_In], _Out]], Callable[_Given, _Out]]:
    """Make a function of a record a function of its fields, which its signature and its docstring name."""

    def decorate(function: Callable[[_In], _Out]) -> Callable[_Given, _Out]:
        @wraps(function)
        def call(*given: _Given.args, **named: _Given.kwargs) -> _Out:
            return function(record(*given, **named))

        options, given_by = options_of(cast(type, record)), signature(record)
        plain = [
            p.replace(annotation=Parameter.empty) if p.name in options else p
            for p in given_by.parameters.values()
        ]
        returned = signature(function).return_annotation
        call.__signature__ = given_by.replace(  # type: ignore[attr-defined]
            parameters=plain, return_annotation=returned
        )
        listed = "".join(f"    {name} : {o.given}\n        {o.help}\n" for name, o in options.items())
        before, raises, after = (function.__doc__ or "").partition("    Raises\n")
        call.__doc__ = f"{before}    Parameters\n    ----------\n{listed}\n{raises}{after}"
        return call

    return decorate
