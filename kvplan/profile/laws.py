"""Laws of lengths and gaps, and what requests have in common, as a profile writes them down."""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from kvplan.errors import UsageError, did_you_mean, shown
from kvplan.model.gaps import Exponential, Gap, Lognormal, Quantiles
from kvplan.model.lengths import Lengths, longest_lognormal
from kvplan.model.reuse import Reuse, SharedPrompt
from kvplan.ranges import (
    LEAST_WEIGHT,
    LONGEST_S,
    MAX_CACHE_TOKENS,
    MAX_DECODE_TOKENS,
    MAX_TOKENS,
    MOST_WEIGHT,
    SHORTEST_S,
)
from kvplan.units import TIME_UNITS, format_number, format_tokens, parse_seconds, quantity_pattern

MAX_INPUTS, MAX_OUTPUTS = 16, 1024  # lengths of each that formulas count, with the moments of the law
MAX_TURNS = 10_000
_TAIL = 35  # a geometric law is cut at so many times its mean
_MOST_VALUES = 1000  # of a list
_LEAST_SPREAD, _MOST_CV, _MOST_SIGMA = 1e-3, 1000.0, 10.0
_DIGITS = 12  # of a law's parameters: what is left of either spelling once it is turned into the other

Check = Callable[[object], Any]


def refusal(message: str, *inside: str | int) -> PydanticCustomError:
    """What a validator raises; `inside` leads from its value to the part that is wrong."""
    return PydanticCustomError("refused", "{message}", {"message": message, "inside": inside})


def _time(value: object) -> int | float:
    """A time in seconds, where it is one."""
    if isinstance(value, str):
        try:
            return parse_seconds(value)
        except UsageError as error:
            raise refusal(str(error)) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(f'must be a number of seconds or a string such as "14.5 ms", not {shown(value)}')
    return value


def _inside(check: Check, value: object, *inside: str | int) -> Any:
    """A checked part of a value; what is wrong with it is said of the part."""
    try:
        return check(value)
    except PydanticCustomError as error:
        context = error.context or {}
        raise refusal(context["message"], *inside, *context["inside"]) from None


def _keys(
    value: Mapping[str, object], needed: Mapping[str, Check], optional: Mapping[str, Check]
) -> dict[str, Any]:
    """Checked values of a table, by key."""
    known = {**needed, **optional}
    for key in value:
        if key not in known:
            raise refusal(f"unknown key; {did_you_mean(key, tuple(known), 'known here')}", key)
    for key in needed:
        if key not in value:
            raise refusal(f"needs {key}")
    return {key: _inside(known[key], item, key) for key, item in value.items()}


def _whole(least: int, most: int, of: str, value: object) -> int:
    if type(value) is not int or not least <= value <= most:
        raise refusal(f"must be a whole number{of} from {least} to {format_tokens(most)}, not {shown(value)}")
    return value


def _number(least: float, most: float, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        allowed = f"a number from {format_number(least)} to {format_number(most)}"
        raise refusal(f"must be {allowed}, not {shown(value)}")
    return float(value)


def seconds(least: float, most: float, value: object, *, or_none: bool = False) -> float:
    """A time in seconds, as a number or with a unit, from the least to the most; or 0, where there may be none."""
    found = _time(value)
    if not ((or_none and found == 0) or least <= found <= most):
        allowed = f"{'0, or ' * or_none}a time from {format_number(least)} s to {format_number(most)} s"
        raise refusal(f"must be {allowed}, not {shown(value)}")
    return float(found)


def seconds_schema(least: float, most: float, *, or_none: bool = False) -> JsonDict:
    """JSON Schema of such a time; of one with a unit it says no range."""
    number: JsonDict = {"type": "number", "minimum": least, "maximum": most}
    text: JsonDict = {"type": "string", "pattern": quantity_pattern(TIME_UNITS)}
    return {"anyOf": [number, {"const": 0}, text] if or_none else [number, text]}


# ----------------------------------------------------------------------------------------------- lengths


_FORMS = "a table of length = weight, { uniform = [low, high] }, { geometric = mean } or { lognormal = { mean, cv } }"


def _lengths(least: int, longest: int, most: int, of: str, value: object) -> Lengths:
    """A single length, from the least to the longest; or weights by length or a law by its name, up to the most."""
    if not isinstance(value, dict):
        if type(value) is not int:
            raise refusal(f"must be a whole number{of}, {_FORMS}, not {shown(value)}")
        return Lengths.of({_whole(least, longest, of, value): 1.0})
    if law := next((name for name in _NAMED if name in value), None):
        if len(value) > 1:
            raise refusal(f"must be one law, or weights by length; not {' and '.join(map(shown, value))}")
        return _inside(partial(_NAMED[law], most, of), value[law], law)  # type: ignore[no-any-return]
    return Lengths.of(_weights(most, of, value))


def _uniform(most: int, of: str, value: object) -> Lengths:
    if not isinstance(value, list) or len(value) != 2:
        raise refusal(f"must be the least and the largest, such as [40, 200], not {shown(value)}")
    low, high = (_whole(1, most, of, end) for end in value)
    if low > high:
        raise refusal(f"must be the least first and then the largest, not [{low}, {high}]")
    return Lengths.uniform(low, high)


def _geometric(most: int, of: str, value: object) -> Lengths:
    return Lengths.geometric(_number(1, most // _TAIL, value))


def _lognormal(most: int, of: str, value: object) -> Lengths:
    pairs = "mean and cv, or median and sigma"
    if not isinstance(value, dict):
        raise refusal(f"must be a table of {pairs}, such as {{ mean = 400, cv = 0.95 }}, not {shown(value)}")
    center = partial(_number, 1, most)
    cv, sigmas = (partial(_number, _LEAST_SPREAD, limit) for limit in (_MOST_CV, _MOST_SIGMA))
    given = _keys(value, {}, {"mean": center, "cv": cv, "median": center, "sigma": sigmas})
    if set(given) == {"mean", "cv"}:
        mean, sigma = given["mean"], math.sqrt(math.log1p(given["cv"] ** 2))
    elif set(given) == {"median", "sigma"}:
        sigma = given["sigma"]
        mean = given["median"] * math.exp(sigma**2 / 2)
    else:
        raise refusal(f"needs {pairs}; not {', '.join(given) or 'an empty table'}")
    mean, sigma = (float(f"{parameter:.{_DIGITS}g}") for parameter in (mean, sigma))
    if (longest := longest_lognormal(mean, sigma)) > most:
        raise refusal(
            f"the longest (its quantile .9999) must be at most {format_tokens(most)}, not {longest:,.0f}"
        )
    return Lengths.lognormal(mean, sigma)


_NAMED = {"uniform": _uniform, "geometric": _geometric, "lognormal": _lognormal}


def _weights(most: int, of: str, value: dict[str, object]) -> dict[int, float]:
    weights = {}
    for key, weight in value.items():
        # One spelling only: two spellings of a length would be two keys.
        if not re.fullmatch("[1-9][0-9]{0,6}", key) or int(key) > most:
            allowed = f"a whole number{of} from 1 to {format_tokens(most)}"
            if key[:1].isalpha():
                raise refusal(f"no law of lengths; {did_you_mean(key, _NAMED, 'laws are')}", key)
            raise refusal(f"the length must be {allowed}, not {shown(key)}", key)
        weights[int(key)] = _inside(_weight, weight, key)
    if not weights:
        raise refusal("must have at least one length = weight, not an empty table")
    return weights


def _weight(value: object) -> float:
    return _number(LEAST_WEIGHT, MOST_WEIGHT, value)


_TOKENS = " of tokens"


def _lengths_schema(least: int, longest: int, most: int) -> JsonDict:
    length: JsonDict = {"type": "integer", "minimum": 1, "maximum": most}
    center: JsonDict = {"type": "number", "minimum": 1, "maximum": most}
    lognormal: JsonDict = {
        "anyOf": [
            _table({"mean": center, "cv": _spread(_MOST_CV)}),
            _table({"median": center, "sigma": _spread(_MOST_SIGMA)}),
        ]
    }
    digits = len(str(most)) - 2  # of what is less than a power of ten
    pattern = f"^([1-9][0-9]{{0,{digits}}}|{most})$"
    return {
        "anyOf": [
            {"type": "integer", "minimum": least, "maximum": longest},
            _table({"uniform": {"type": "array", "items": length, "minItems": 2, "maxItems": 2}}),
            _table({"geometric": {"type": "number", "minimum": 1, "maximum": most // _TAIL}}),
            _table({"lognormal": lognormal}),
            {
                "type": "object",
                "patternProperties": {
                    pattern: {"type": "number", "minimum": LEAST_WEIGHT, "maximum": MOST_WEIGHT}
                },
                "additionalProperties": False,
                "minProperties": 1,
            },
        ]
    }


def _spread(most: float) -> JsonDict:
    return {"type": "number", "minimum": _LEAST_SPREAD, "maximum": most}


def _table(properties: JsonDict) -> JsonDict:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _law(least: int, longest: int, most: int, of: str) -> Any:
    return Annotated[
        Any,
        PlainValidator(partial(_lengths, least, longest, most, of)),
        WithJsonSchema(_lengths_schema(least, longest, most)),
    ]


Input = _law(0, MAX_TOKENS, MAX_DECODE_TOKENS, _TOKENS)
Tokens = _law(1, MAX_DECODE_TOKENS, MAX_DECODE_TOKENS, _TOKENS)
Turns = _law(1, MAX_TURNS, MAX_TURNS, "")


# -------------------------------------------------------------------------------------------------- gaps


_GAP = partial(seconds, SHORTEST_S, LONGEST_S, or_none=True)


def _values(value: object) -> tuple[float, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_VALUES:
        raise refusal(
            f'must be a list of 1 to {_MOST_VALUES} times, such as ["1 s", "4 s"], not {shown(value)}'
        )
    return tuple(_inside(_GAP, item, i) for i, item in enumerate(value))


_POSITIVE = partial(seconds, SHORTEST_S, LONGEST_S)
_LAWS: dict[str, tuple[dict[str, Check], Callable[..., Gap]]] = {
    "exponential": ({"mean": _POSITIVE}, Exponential),
    "lognormal": ({"median": _POSITIVE, "sigma": partial(_number, _LEAST_SPREAD, _MOST_SIGMA)}, Lognormal),
    "fixed": ({"value": _GAP}, lambda value: Quantiles((value,))),
    "quantiles": ({"values": _values}, Quantiles),
}


def _gap(value: object) -> Gap:
    words = ", ".join(_LAWS)
    if not isinstance(value, dict):
        example = '{ law = "exponential", mean = "30 s" }'
        raise refusal(f"must be a table such as {example}, not {shown(value)}")
    law = value.get("law")
    if law is None:
        raise refusal(f"needs a law: one of {words}")
    if not isinstance(law, str) or law not in _LAWS:
        raise refusal(f"must be one of {words}, not {shown(law)}", "law")
    needed, make = _LAWS[law]
    found = _keys(value, {"law": str, **needed}, {})
    del found["law"]
    return make(*(found[key] for key in needed))


def _gap_schema() -> JsonDict:
    mean, gap = (seconds_schema(SHORTEST_S, LONGEST_S, or_none=or_none) for or_none in (False, True))
    parameters: dict[str, JsonDict] = {
        "exponential": {"mean": mean},
        "lognormal": {"median": mean, "sigma": _spread(_MOST_SIGMA)},
        "fixed": {"value": gap},
        "quantiles": {"values": {"type": "array", "items": gap, "minItems": 1, "maxItems": _MOST_VALUES}},
    }
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"law": {"const": law}, **own},
                "required": ["law", *own],
                "additionalProperties": False,
            }
            for law, own in parameters.items()
        ]
    }


GapLaw = Annotated[Any, PlainValidator(_gap), WithJsonSchema(_gap_schema())]


# ------------------------------------------------------------------------------------- shared and reused


def _shared(value: object) -> tuple[SharedPrompt, ...]:
    """Prompts in common; one that all have may be given as a number."""
    if not isinstance(value, list):
        return (SharedPrompt(_whole(1, MAX_TOKENS, _TOKENS, value)),)
    if not 1 <= len(value) <= _MOST_VALUES:
        raise refusal(f"must have 1 to {_MOST_VALUES} prompts, not {len(value)}")
    found = tuple(_inside(_shared_prompt, item, i) for i, item in enumerate(value))
    if (total := sum(prompt.weight for prompt in found)) > 1 + 1e-9:
        raise refusal(f"the weights must be at most 1 in sum, not {format_number(total, digits=12)}")
    return found


def _shared_prompt(value: object) -> SharedPrompt:
    if not isinstance(value, dict):
        raise refusal(f"must be a table such as {{ tokens = 3000, weight = 0.6 }}, not {shown(value)}")
    found = _keys(
        value,
        {"tokens": partial(_whole, 1, MAX_TOKENS, _TOKENS), "weight": partial(_number, LEAST_WEIGHT, 1.0)},
        {},
    )
    return SharedPrompt(found["tokens"], found["weight"])


_COUNT_SCHEMA: JsonDict = {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS}
_SHARE_SCHEMA: JsonDict = {"type": "number", "minimum": LEAST_WEIGHT, "maximum": 1}
_SHARED_SCHEMA: JsonDict = {
    "anyOf": [
        _COUNT_SCHEMA,
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"tokens": _COUNT_SCHEMA, "weight": _SHARE_SCHEMA},
                "required": ["tokens", "weight"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": _MOST_VALUES,
        },
    ]
}
Shared = Annotated[Any, PlainValidator(_shared), WithJsonSchema(_SHARED_SCHEMA)]


def _asked_for(value: object) -> int | float:
    """A share up to 1.0, or a whole number of tokens."""
    if isinstance(value, float) and LEAST_WEIGHT <= value <= 1:
        return value
    if type(value) is int and 1 <= value <= MAX_TOKENS:
        return value
    raise refusal(f"must be a share up to 1.0, or a whole number of tokens from 1, not {shown(value)}")


def _from(value: object) -> bool:
    if value not in ("completion", "arrival"):
        raise refusal(f"must be completion or arrival, not {shown(value)}")
    return value == "arrival"


def _reuse(value: object) -> Reuse:
    if not isinstance(value, dict):
        raise refusal(f"must be a table with tokens, share and gap, not {shown(value)}")
    needed: dict[str, Check] = {
        "tokens": _asked_for,
        "share": partial(_number, LEAST_WEIGHT, 1.0),
        "gap": _gap,
    }
    found = _keys(value, needed, {"from": _from})
    return Reuse(found["tokens"], found["share"], found["gap"], found.get("from", False))


_REUSE_SCHEMA: JsonDict = {
    "type": "object",
    "properties": {
        "tokens": {"type": "number", "minimum": LEAST_WEIGHT, "maximum": MAX_TOKENS},
        "share": _SHARE_SCHEMA,
        "gap": _gap_schema(),
        "from": {"enum": ["completion", "arrival"]},
    },
    "required": ["tokens", "share", "gap"],
    "additionalProperties": False,
}
Reused = Annotated[Any, PlainValidator(_reuse), WithJsonSchema(_REUSE_SCHEMA)]


def _hit_curve(value: object) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_VALUES:
        raise refusal(
            f"must be a list of 1 to {_MOST_VALUES} points [cache tokens, hit ratio], not {shown(value)}"
        )
    points = tuple(_inside(_point, item, i) for i, item in enumerate(value))
    for i, ((size, ratio), (larger, more)) in enumerate(pairwise(points), 1):
        if larger <= size or more < ratio:
            raise refusal("must be a larger cache than the point before, and no smaller hit ratio", i)
    return points


def _point(value: object) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise refusal(f"must be [cache tokens, hit ratio], such as [1_000_000, 0.05], not {shown(value)}")
    return _inside(partial(_number, 1, MAX_CACHE_TOKENS), value[0], 0), _inside(
        partial(_number, 0, 0.999), value[1], 1
    )


_CURVE_SCHEMA: JsonDict = {
    "type": "array",
    "items": {
        "type": "array",
        "prefixItems": [
            {"type": "number", "minimum": 1, "maximum": MAX_CACHE_TOKENS},
            {"type": "number", "minimum": 0, "maximum": 0.999},
        ],
        "minItems": 2,
        "maxItems": 2,
    },
    "minItems": 1,
    "maxItems": _MOST_VALUES,
}
HitCurve = Annotated[Any, PlainValidator(_hit_curve), WithJsonSchema(_CURVE_SCHEMA)]
