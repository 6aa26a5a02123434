"""Values of a profile: numbers with units, laws of lengths and of gaps, and what requests have in common."""

import datetime
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, core_schema

from kvplan import ranges, units
from kvplan.engine import VERSION
from kvplan.errors import UsageError, shown
from kvplan.model import Knowledge, Origin, gaps
from kvplan.model.gaps import Gap
from kvplan.model.lengths import Lengths, longest_lognormal
from kvplan.model.provenance import Range
from kvplan.model.sessions import Reuse, SharedPrompt
from kvplan.profile.relations import Cases, Problem, Table, Ways, checked, refusal, refusals
from kvplan.units import format_number, format_tokens

_MAX_TURNS = 10_000
_TAIL = 35  # a geometric law is cut at so many times its mean
_MOST_VALUES = 1000  # of a list
_LONGEST_VERSION = 40
_MOST_LENGTHS = 20_000_000  # of all laws of a profile: some 300 MB
_DIGITS = 12  # of a law's parameters: what is left of either spelling once it is turned into the other


# --------------------------------------------------------------------------------------- numbers and words


class _Unit(NamedTuple):
    """Unit of a number, and how text with a unit is read; `plain`: a number without one has this unit."""

    name: str
    unit: str
    wanted: str
    plain: bool = True
    parse: Callable[[str], float] | None = None
    units: Mapping[str, Fraction] | None = None


_NUMBER = _Unit("a number", "", "a number")
_TIME = _Unit(
    *("a time", " s", 'a number of seconds or a string such as "14.5 ms"', True),
    *(units.parse_seconds, units.TIME_UNITS),
)
_LONG_TIME = _TIME._replace(wanted='a string such as "24 h"', plain=False)  # hours may be meant
_MEMORY = _Unit(
    *("an amount of memory", " B", 'a string such as "5.05 GiB"', False),
    *(units.parse_bytes, units.BYTE_UNITS),
)
_BANDWIDTH = _Unit(
    *("a bandwidth", " B/s", 'a string such as "20 GB/s"', False),
    *(units.parse_bandwidth, units.BANDWIDTH_UNITS),
)


_POWER = _Unit(
    *("a power", " W", 'a string such as "700 W"', False),
    *(units.parse_power, units.POWER_UNITS),
)
_RATE = _Unit(
    *("a rate", "/s", 'a number of requests/s or a string such as "60/min"', True),
    *(units.parse_requests, units.RATE_UNITS),
)


@dataclass(frozen=True, eq=False)
class Within:
    """A number from the least to the most, perhaps with a unit; or 0, where there may be none."""

    least: float
    most: float
    unit: _Unit = _NUMBER
    or_none: bool = False
    # a number without a unit from here on is refused: milliseconds may be meant
    plain_below: float = math.inf

    def _checked(self, value: object) -> Any:
        number, unit = value, self.unit
        if isinstance(value, str) and unit.parse is not None:
            try:
                number = unit.parse(value)
            except UsageError as error:
                raise refusal(str(error)) from None
        elif isinstance(value, bool) or not isinstance(value, int | float) or not unit.plain:
            raise refusal(f"must be {unit.wanted}, not {shown(value)}")
        elif self.plain_below <= value <= self.most:
            n = format_number(value)
            raise refusal(f'seconds or milliseconds? write "{n} s" or "{n} ms", not {shown(value)}')
        assert isinstance(number, int | float)
        if not (self.least <= number <= self.most or (self.or_none and number == 0)):
            least, most = (format_number(end) + unit.unit for end in (self.least, self.most))
            allowed = f"{'0, or ' * self.or_none}{unit.name} from {least} to {most}"
            raise refusal(f"must be {allowed}, not {shown(value)}")
        return number

    def __get_pydantic_core_schema__(self, source: type[float], handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: source(self._checked(value)))

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> JsonDict:
        number: JsonDict = {"type": "number", "minimum": self.least, "maximum": self.most}
        if self.plain_below < self.most:
            number["exclusiveMaximum"] = self.plain_below
        ways = [number] if self.unit.plain else []
        if self.or_none:
            ways.append({"const": 0})
        if self.unit.units is not None:
            ways.append({"type": "string", "pattern": units.quantity_pattern(self.unit.units)})
        return {"anyOf": [*ways]} if len(ways) > 1 else ways[0]


Iteration = Annotated[float, Within(ranges.SHORTEST_S, ranges.LONGEST_ITERATION_S, _TIME, plain_below=1.0)]
Overhead = Annotated[float, Within(ranges.SHORTEST_S, ranges.LONGEST_ITERATION_S, _TIME, or_none=True)]
PairCost = Annotated[float, Within(ranges.LEAST_PAIR_S, ranges.LONGEST_PAIR_S, _TIME, or_none=True)]
Cost = Annotated[float, Within(ranges.LEAST_COST_S, ranges.LONGEST_ITERATION_S, _TIME, or_none=True)]
Duration = Annotated[float, Within(ranges.SHORTEST_S, ranges.LONGEST_S, _TIME)]
Deadline = Annotated[float, Within(ranges.SHORTEST_S, ranges.LONGEST_S, _LONG_TIME)]
Moment = Annotated[float, Within(ranges.SHORTEST_S, ranges.LONGEST_S, _TIME, or_none=True)]
Bytes = Annotated[int, Within(1, 10**16, _MEMORY)]
Bandwidth = Annotated[float, Within(1e3, 1e15, _BANDWIDTH)]
Power = Annotated[float, Within(1, 1e5, _POWER)]
ClassRate = Annotated[float, Within(ranges.LEAST_RATE, ranges.MOST_RATE, _RATE, or_none=True)]
Factor = Annotated[float, Within(1e-6, 1e6, or_none=True)]  # of a rate
Rate = Annotated[float, Within(ranges.LEAST_RATE, ranges.MOST_RATE, _RATE)]
Weight = Annotated[float, Field(ge=ranges.LEAST_WEIGHT, le=ranges.MOST_WEIGHT)]
Share = Annotated[float, Field(ge=ranges.LEAST_WEIGHT, le=1)]
UpToOne = Annotated[float, Field(ge=0, le=1)]
PromptTokens = Annotated[int, Field(ge=1, le=ranges.MAX_TOKENS)]
MemoryTokens = Annotated[int, Field(ge=1, le=ranges.MAX_MEMORY_TOKENS)]
Gpus = Annotated[int, Field(ge=1, le=ranges.MAX_GPUS)]
CacheTokens = Annotated[int, Field(ge=1, le=ranges.MAX_CACHE_TOKENS)]
Replicas = Annotated[int, Field(ge=1, le=ranges.MOST_REPLICAS)]


def _version(value: object) -> int:
    if type(value) is not int or value != 1:  # Python finds True == 1.0 == 1
        raise refusal(f"must be 1, the only schema there is, not {shown(value)}")
    return value


def _segments(value: object) -> int | None:
    if value == "auto":
        return None
    if type(value) is not int or value < 1:
        raise refusal(f'must be "auto" or a whole number from 1, not {shown(value)}')
    return value


def _printable(most: int, value: str) -> str:
    if not value.strip() or not value.isprintable() or len(value) > most:
        raise refusal(f"must be 1 to {most} printable characters, not {shown(value)}")
    return value


def _engine_version(value: str) -> str:
    if len(value) > _LONGEST_VERSION or not re.fullmatch(VERSION, value):
        raise refusal(f'must be a version such as "0.15.1", not {shown(value)}')
    return value


EngineVersion = Annotated[
    str,
    AfterValidator(_engine_version),
    WithJsonSchema({"type": "string", "pattern": f"^{VERSION}$", "maxLength": _LONGEST_VERSION}),
]


def _file(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise refusal(f"must be the path of a file, not {shown(value)}")
    return value


def _ascending(pair: Range) -> Range:
    if pair[0] > pair[1]:
        seen = ", ".join(map(format_number, pair))
        raise refusal(f"must be the least first and then the most, not [{seen}]")
    return pair


Version = Annotated[int, PlainValidator(_version, json_schema_input_type=Literal[1])]
Segments = Annotated[
    int | None,
    PlainValidator(_segments, json_schema_input_type=Literal["auto"] | Annotated[int, Field(ge=1)]),
]
_NEVER = "never"


def _recover(value: object) -> float:
    if value == _NEVER:
        return math.inf
    try:
        return TypeAdapter(Duration).validate_python(value)
    except ValidationError:
        raise refusal(f'must be a time, such as "15 min", or "{_NEVER}", not {shown(value)}') from None


Recover = Annotated[
    float | None, PlainValidator(_recover, json_schema_input_type=Literal["never"] | Duration)
]
_TEXT: JsonDict = {"minLength": 1, "pattern": r"\S"}
Name = Annotated[
    str, Field(json_schema_extra={**_TEXT, "maxLength": 200}), AfterValidator(partial(_printable, 200))
]
File = Annotated[str, Field(max_length=4096, json_schema_extra=_TEXT), AfterValidator(_file)]
_Amount = Annotated[float, Field(ge=0, le=ranges.MAX_MEMORY_TOKENS)]
_Times = Annotated[float, Field(ge=1e-3, le=1e3)]
Amounts = Annotated[tuple[_Amount, _Amount], Field(strict=False), AfterValidator(_ascending)]
Band = Annotated[tuple[_Times, _Times], Field(strict=False), AfterValidator(_ascending)]


class KnownFrom(Table):
    """How a part of the profile is known, where from in a few words, and since when."""

    basis: Annotated[Knowledge, Field(strict=False)]
    """Measured, stated, estimated or assumed."""
    source: Annotated[str, AfterValidator(partial(_printable, ranges.MAX_SOURCE))] = ""
    """Where it comes from, in a few words."""
    date: datetime.date | None = None
    """When it was recorded."""


def _known(value: object) -> Origin:
    if isinstance(value, str) and value in tuple(Knowledge):
        return Origin(Knowledge(value))
    if not isinstance(value, dict):
        words = ", ".join(Knowledge)
        raise refusal(f"must be one of {words}, or a table with basis, source and date, not {shown(value)}")
    return Origin(**dict(KnownFrom.model_validate(value)))


Known = Annotated[Origin, PlainValidator(_known, json_schema_input_type=Knowledge | KnownFrom)]


# ----------------------------------------------------------------------------------------------- lengths

_Length = Annotated[int, Field(ge=1, le=ranges.MAX_DECODE_TOKENS)]
_Center = Annotated[float, Field(ge=1, le=ranges.MAX_DECODE_TOKENS)]
_Sigma = Annotated[float, Field(ge=1e-3, le=10)]
_Written = Annotated[str, Field(pattern=f"^([1-9][0-9]{{0,5}}|{ranges.MAX_DECODE_TOKENS})$")]
_Weights = Annotated[
    dict[_Written, Weight], Field(min_length=1, json_schema_extra={"additionalProperties": False})
]


class Spread(Table):
    """How wide lengths spread whose logarithms are normal."""

    relations = (Ways("mean cv", "median sigma"),)

    mean: _Center | None = None
    """The mean; with cv."""
    cv: Annotated[float, Field(ge=1e-3, le=1000)] | None = None
    """Standard deviation over mean."""
    median: _Center | None = None
    """The median; with sigma."""
    sigma: _Sigma | None = None
    """Standard deviation of the logarithms."""

    @property
    def parameters(self) -> tuple[float, float]:
        """Mean, and standard deviation of the logarithms."""
        sigma = self.sigma if self.cv is None else math.sqrt(math.log1p(self.cv**2))
        assert sigma is not None
        mean = self.mean or (self.median or 0) * math.exp(sigma**2 / 2)
        return float(f"{mean:.{_DIGITS}g}"), float(f"{sigma:.{_DIGITS}g}")


class LengthLaw(Table, title="Law of lengths"):
    """A law of lengths by its name."""

    relations = (Ways("uniform", "geometric", "lognormal"),)

    uniform: Annotated[tuple[_Length, _Length], Field(strict=False), AfterValidator(_ascending)] | None = None
    """The least and the largest length; all of them are as likely."""
    geometric: Annotated[float, Field(ge=1, le=ranges.MAX_DECODE_TOKENS // _TAIL)] | None = None
    """The mean; every token may be the last."""
    lognormal: Spread | None = None
    """The logarithms are normal; cut at the quantile .9999."""

    def lengths(self, most: int) -> Lengths:
        """Return the law, if it goes no further than `most`."""
        if self.lognormal is not None:
            longest = longest_lognormal(*self.lognormal.parameters)
            if longest > most:
                limit = f"must be at most {format_tokens(most)}, not {longest:,.0f}"
                raise refusals([Problem(("lognormal",), f"the longest (its quantile .9999) {limit}")])
            _take(longest)
            return Lengths.lognormal(*self.lognormal.parameters)
        if self.geometric:
            _take(_TAIL * self.geometric)
            return Lengths.geometric(self.geometric)
        low, high = self.uniform or (1, 1)
        _take(high - low)
        return Lengths.uniform(low, high)


_room: ContextVar[float] = ContextVar("lengths that the laws of a profile may still have", default=math.inf)


@contextmanager
def laws_bounded() -> Iterator[None]:
    """Let the laws of a profile have so many lengths together that they fit in memory."""
    outer = _room.set(_MOST_LENGTHS)
    try:
        yield
    finally:
        _room.reset(outer)


def _take(lengths: float) -> None:
    _room.set(_room.get() - lengths)
    if _room.get() < 0:
        raise refusal(
            f"laws up to this one have more than {_MOST_LENGTHS:,} lengths together; use fewer or shorter ones"
        )


_FORMS = "a table of length = weight, { uniform = [low, high] }, { geometric = mean } or { lognormal = { mean, cv } }"


@cache
def _adapter(of: Any) -> TypeAdapter[Any]:
    return TypeAdapter(of, config=ConfigDict(strict=True, allow_inf_nan=False))


def _lengths(one: Any, most: int, of: str, value: object) -> Lengths:
    """Read a length, weights by length or a law by its name, up to `most`."""
    if type(value) is int:
        return Lengths.of({_adapter(one).validate_python(value): 1.0})
    if not isinstance(value, dict):
        raise refusal(f"must be a whole number{of}, {_FORMS}, not {shown(value)}")
    if any(key[:1].isalpha() for key in value):
        law = checked(LengthLaw, value)
        lengths = law.lengths(most)
    else:
        weights = _adapter(_Weights).validate_python(value)
        lengths = Lengths.of({int(key): weight for key, weight in weights.items()})
    if lengths.longest > most:
        limit = f"must be at most {format_tokens(most)}, not {format_tokens(lengths.longest)}"
        raise refusal(f"the longest {limit}")
    return lengths


def _law(one: Any, most: int, of: str = " of tokens") -> PlainValidator:
    return PlainValidator(partial(_lengths, one, most, of), json_schema_input_type=one | LengthLaw | _Weights)


Tokens = Annotated[Lengths, _law(_Length, ranges.MAX_DECODE_TOKENS)]
Input = Annotated[Lengths, _law(Annotated[int, Field(ge=0, le=ranges.MAX_TOKENS)], ranges.MAX_DECODE_TOKENS)]
Turns = Annotated[Lengths, _law(Annotated[int, Field(ge=1, le=_MAX_TURNS)], _MAX_TURNS, "")]


class Compact(Table, title="History cut to a share"):
    """What is left of the history of a session that would pass the limit."""

    compact: Annotated[float, Field(gt=0, lt=1)]
    """Share of its tokens that are left."""


def _context(value: object) -> str | float:
    if value in ("end", "slide"):
        return str(value)
    if not isinstance(value, dict):
        raise refusal(f'must be "end", "slide" or such as {{ compact = 0.3 }}, not {shown(value)}')
    return Compact.model_validate(value).compact


Context = Annotated[
    str | float, PlainValidator(_context, json_schema_input_type=Literal["end", "slide"] | Compact)
]


# --------------------------------------------------------------------- gaps, and what requests have in common


class GapTable(Table, title="Law of gaps"):
    """How long until something happens again."""

    relations = (
        Cases("law", exponential="mean", lognormal="median sigma", fixed="value", quantiles="values"),
    )

    law: Literal["exponential", "lognormal", "fixed", "quantiles"]
    """The name of the law."""
    mean: Duration | None = None
    """The mean of an exponential law."""
    median: Duration | None = None
    """The median of a log-normal law."""
    sigma: _Sigma | None = None
    """Standard deviation of its logarithms."""
    value: Moment | None = None
    """Every gap of a fixed law."""
    values: Annotated[list[Moment], Field(min_length=1, max_length=_MOST_VALUES)] | None = None
    """Gaps that are all as likely."""


def _gap(value: object) -> Gap:
    if not isinstance(value, dict):
        example = '{ law = "exponential", mean = "30 s" }'
        raise refusal(f"must be a table such as {example}, not {shown(value)}")
    table = checked(GapTable, value)
    if table.mean is not None:
        return gaps.Exponential(table.mean)
    if table.median is not None and table.sigma is not None:
        return gaps.Lognormal(table.median, table.sigma)
    return gaps.Quantiles(tuple(table.values or (table.value or 0.0,)))


GapLaw = Annotated[Gap, PlainValidator(_gap, json_schema_input_type=GapTable)]


class SharedTokens(Table):
    """Leading tokens that a share of the requests have in common."""

    tokens: PromptTokens
    """How many tokens."""
    weight: Share
    """Share of the requests."""


_Several = Annotated[list[SharedTokens], Field(min_length=1, max_length=_MOST_VALUES)]


def _shared(value: object) -> tuple[SharedPrompt, ...]:
    """Prompts in common; one that all have may be given as a number."""
    if not isinstance(value, list):
        return (SharedPrompt(_adapter(PromptTokens).validate_python(value)),)
    prompts = tuple(SharedPrompt(p.tokens, p.weight) for p in _adapter(_Several).validate_python(value))
    if (total := sum(prompt.weight for prompt in prompts)) > 1 + 1e-9:
        raise refusal(f"the weights must be at most 1 in sum, not {format_number(total, digits=12)}")
    return prompts


Shared = Annotated[
    tuple[SharedPrompt, ...], PlainValidator(_shared, json_schema_input_type=PromptTokens | _Several)
]


def _asked_for(value: object) -> int | float:
    """Read a share up to 1.0, or whole tokens."""
    if isinstance(value, float) and ranges.LEAST_WEIGHT <= value <= 1:
        return value
    if type(value) is int and 1 <= value <= ranges.MAX_TOKENS:
        return value
    raise refusal(f"must be a share up to 1.0, or a whole number of tokens from 1, not {shown(value)}")


class ReusedTokens(Table):
    """What later requests ask for again."""

    tokens: Annotated[float, PlainValidator(_asked_for, json_schema_input_type=Share | PromptTokens)]
    """A share up to 1.0 of what a request leaves, or a number of tokens."""
    share: Share
    """Probability that a later request asks for them."""
    gap: GapLaw
    """How long after."""
    start: Annotated[Literal["completion", "arrival"], Field(alias="from")] = "completion"
    """What the gap follows: completion or arrival of the request."""


def _reuse(value: object) -> Reuse:
    table = ReusedTokens.model_validate(value)
    return Reuse(table.tokens, table.share, table.gap, table.start == "arrival")


Reused = Annotated[Reuse, PlainValidator(_reuse, json_schema_input_type=ReusedTokens)]


def _growing(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    if not points:
        raise refusal("must have at least 1, not 0")
    for i, ((size, ratio), (larger, more)) in enumerate(pairwise(points), 1):
        if larger <= size or more < ratio:
            message = "must be a larger cache than the point before, and no smaller hit ratio"
            raise refusals([Problem((i,), message)])
    return points


_Size = Annotated[float, Field(ge=1, le=ranges.MAX_CACHE_TOKENS)]
_Ratio = Annotated[float, Field(ge=0, le=0.999)]
_Point = Annotated[tuple[_Size, _Ratio], Field(strict=False)]
HitCurve = Annotated[
    tuple[_Point, ...],
    Field(strict=False, max_length=_MOST_VALUES, json_schema_extra={"minItems": 1}),
    AfterValidator(_growing),
]
