"""Tables of a profile and what relates their keys: each relation said once, for people and as JSON Schema.

A path such as ``classes[].shared`` leads through tables, ``[]`` through each element of a list.
"""

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.config import JsonDict
from pydantic_core import InitErrorDetails, PydanticCustomError

from kvplan.errors import did_you_mean, shown
from kvplan.profile.positions import KeyPath
from kvplan.units import format_number

MOST_PROBLEMS = 20  # that are told at once


class Problem(NamedTuple):
    """One thing that is wrong: where, what was seen and what is allowed; `missing`: the key is not there."""

    path: KeyPath
    message: str
    missing: bool = False


def refusal(message: str, *, missing: bool = False) -> PydanticCustomError:
    """Make an error for the validator of a value."""
    return PydanticCustomError("refused", "{message}", {"message": message, "missing": missing})


def refusals(problems: Iterable[Problem]) -> ValidationError:
    """Make an error for a validator about parts of its value."""
    details = [
        InitErrorDetails(type=refusal(p.message, missing=p.missing), loc=p.path, input=None) for p in problems
    ]
    return ValidationError.from_exception_data("profile", details)


# What pydantic's types of errors say.
_IN_WORDS = {
    "missing": "required",
    "bool_type": "must be true or false, not {value}",
    "int_type": "must be a whole number, not {value}",
    "float_type": "must be a number, not {value}",
    "finite_number": "must be a finite number, not {value}",
    "string_type": "must be a string, not {value}",
    "list_type": "must be a list, not {value}",
    "tuple_type": "must be a list, not {value}",
    "dict_type": "must be a table, not {value}",
    "model_type": "must be a table, not {value}",
    "date_type": "must be a date such as 2026-11-22, without quotes, not {value}",
    "greater_than": "must be more than {gt}, not {value}",
    "greater_than_equal": "must be at least {ge}, not {value}",
    "less_than": "must be less than {lt}, not {value}",
    "less_than_equal": "must be at most {le}, not {value}",
    "too_short": "must have at least {min_length}, not {actual_length}",
    "too_long": "must have at most {max_length}, not more",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must be a whole number from 1 to 1,000,000, not {value}",
    "enum": "must be {expected}, not {value}",
    "literal_error": "must be {expected}, not {value}",
}


class Relation:
    """A relation between keys of a table, or of tables within it."""

    # of the table that it rests on, where others can be judged without them
    keys: frozenset[str] = frozenset()

    def problems(self, table: Any) -> Iterator[Problem]:
        """Yield violations, with paths from the table."""
        raise NotImplementedError

    def json(self) -> JsonDict:
        """JSON Schema of the table, as far as it can be said there."""
        return {}


class Table(BaseModel):
    """A table of a profile: pydantic checks every value for itself, `problems` the relations between them."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True, defer_build=True)
    relations: ClassVar[tuple[Relation, ...]] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, value: Any, validate: Any) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            raise refusals(cls._explained(error)) from None

    @classmethod
    def _explained(cls, error: ValidationError) -> Iterator[Problem]:
        unknown = 0
        for details in error.errors(include_url=False):
            kind, context, place = details["type"], details.get("ctx", {}), details["loc"]
            if kind == "refused":
                yield Problem(place, **context)
            elif kind == "extra_forbidden":
                unknown += 1
                if unknown <= MOST_PROBLEMS:
                    keys = [field.alias or name for name, field in cls.model_fields.items()]
                    yield Problem(place, f"unknown key; {did_you_mean(str(place[-1]), keys, 'known here')}")
            else:
                limits = {
                    k: format_number(v) if isinstance(v, int | float) else v for k, v in context.items()
                }
                said = _IN_WORDS[kind].format(value=shown(details["input"]), **limits)
                yield Problem(place[:-1] if place[-1:] == ("[key]",) else place, said, kind == "missing")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> JsonDict:
        described: dict[str, Any] = handler.resolve_ref_schema(handler(schema))
        for key, text in _descriptions(cls).items():
            described["properties"][cls.model_fields[key].alias or key]["description"] = text
        if said := [json for relation in cls.relations if (json := relation.json())]:
            described["allOf"] = [*said]
        return described

    def has(self, key: str) -> bool:
        """Tell whether the profile has a key, and not an empty list."""
        value = self.__dict__[key] if key in self.model_fields_set else None
        return value is not None and (value.__class__ is not list or bool(value))


def _descriptions(table: type[Table]) -> dict[str, str]:
    """Read the text below each key for the JSON Schema alone: pydantic would read it at every start."""
    texts = {}
    (tree,) = ast.parse(inspect.getsource(table)).body
    for statements in pairwise(cast(ast.ClassDef, tree).body):
        match statements:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[key] = " ".join(text.split())
    return texts


def problems(table: Table, without: Iterable[str] = ()) -> Iterator[Problem]:
    """Yield violations in a table and those within it, apart from what rests on keys `without`."""
    for relation in type(table).relations:
        if relation.keys.isdisjoint(without):
            yield from relation.problems(table)
    for key in table.model_fields_set.difference(without):
        value = getattr(table, key)
        if isinstance(value, Table):
            yield from (p._replace(path=(key, *p.path)) for p in problems(value))
        elif isinstance(value, list) and value and isinstance(value[0], Table):
            for i, inner in enumerate(value):
                yield from (p._replace(path=(key, i, *p.path)) for p in problems(inner))


_T = TypeVar("_T", bound=Table)


def checked(kind: type[_T], value: object) -> _T:
    """Check a table's values, and the relations between them."""
    table = kind.model_validate(value)
    if violations := [*problems(table)]:
        raise refusals(violations)
    return table


def _step(path: str) -> tuple[str, bool, str]:
    """Return a path's first key, whether it has a list, and the rest."""
    head, _, rest = path.partition(".")
    return head.removesuffix("[]"), head.endswith("[]"), rest


def given(table: Any, path: str) -> Iterator[tuple[KeyPath, Any]]:
    """Yield places of a path that have a value, and these."""
    key, listed, rest = _step(path)
    if table.has(key):
        value = getattr(table, key)
        places = [((key, i), inner) for i, inner in enumerate(value)] if listed else [((key,), value)]
        for place, inner in places:
            within = given(inner, rest) if rest else [((), inner)]
            yield from ((place + more, each) for more, each in within)


def has(path: str) -> JsonDict:
    """JSON Schema of tables in which something stands at a path."""
    key, listed, rest = _step(path)
    inner = has(rest) if rest else {}
    return {"required": [key], "properties": {key: {"contains": inner} if listed else inner}}


def only(path: str, values: JsonDict | bool) -> JsonDict:
    """JSON Schema of tables in which nothing but such values stands at a path; nothing at all where False."""
    key, listed, rest = _step(path)
    inner = only(rest, values) if rest else values
    return {"properties": {key: {"items": inner} if listed else inner}}


def _either(words: Iterable[object]) -> str:
    return " or ".join(f'"{word}"' if isinstance(word, str) else shown(word) for word in words)


class _Way:
    """``"a b"`` are both, ``"a|b"`` one of them at least, ``"a?"`` may be there or not."""

    def __init__(self, text: str) -> None:
        self.needed = [word.split("|") for word in text.split() if word[-1] != "?"]
        self.keys = text.replace("|", " ").replace("?", "").split()

    def __str__(self) -> str:
        return " and ".join(" or ".join(group) for group in self.needed)


class Ways(Relation):
    """Ways to say one thing, see `_Way`: exactly one is given, in full; of those that are begun, the first."""

    def __init__(self, *ways: str) -> None:
        self.ways = [_Way(way) for way in ways]
        self.order = dict.fromkeys(key for way in self.ways for key in way.keys)
        self.keys = frozenset(self.order)

    def problems(self, table: Table) -> Iterator[Problem]:
        begun = ((way, key) for way in self.ways for group in way.needed for key in group if table.has(key))
        way, first = next(begun, (None, ""))
        if way is None:
            yield Problem((), f"needs {', or '.join(map(str, self.ways))}", missing=True)
            return
        lacking = " and ".join(" or ".join(group) for group in way.needed if not any(map(table.has, group)))
        for key in self.order:
            if table.has(key) and key not in way.keys:
                yield Problem((key,), f"not allowed beside {first}" + f"; give {lacking}" * bool(lacking))
        if lacking:
            yield Problem((), f"needs {lacking} beside {first}", missing=True)

    def json(self) -> JsonDict:
        described: list[Any] = []
        for way in self.ways:
            form: JsonDict = {"required": [group[0] for group in way.needed if len(group) == 1]}
            for group in way.needed:
                if len(group) > 1:
                    some: list[Any] = [only(key, {"minItems": 1}) | {"required": [key]} for key in group]
                    form["anyOf"] = some
            described.append(form | {"properties": {key: False for key in self.order if key not in way.keys}})
        return {"oneOf": described}


class Cases(Relation):
    """Keys that go with each value of another one, see `_Way`."""

    def __init__(self, key: str, **ways: str) -> None:
        self.key, self.ways = key, {value: _Way(way) for value, way in ways.items()}
        self.order = dict.fromkeys(key for way in self.ways.values() for key in way.keys)
        self.keys = frozenset(self.order)

    def problems(self, table: Table) -> Iterator[Problem]:
        value = getattr(table, self.key)
        way, beside = self.ways[value], f'beside {self.key} = "{value}"'
        for key in self.order:
            if table.has(key) and key not in way.keys:
                yield Problem((key,), f"not allowed {beside}")
            if [key] in way.needed and not table.has(key):
                yield Problem((key,), f"required {beside}", missing=True)

    def json(self) -> JsonDict:
        cases: list[Any] = []
        for value, way in self.ways.items():
            others: JsonDict = {key: False for key in self.order if key not in way.keys}
            then = {"required": [key for (key,) in way.needed], "properties": others}
            cases.append({"if": has(self.key) | only(self.key, {"const": value}), "then": then})
        return {"allOf": cases}


class Needs(Relation):
    """A key that another one goes with."""

    def __init__(self, key: str, other: str) -> None:
        self.key, self.other = key, other

    def problems(self, table: Table) -> Iterator[Problem]:
        if table.has(self.key) and not table.has(self.other):
            yield Problem((self.other,), f"required beside {self.key}", missing=True)

    def json(self) -> JsonDict:
        return {"dependentRequired": {self.key: [self.other]}}


class Beside(Relation):
    """Keys that must not stand beside another or, if `values` are named, must have one of them there.

    `above`: only beside a larger number; `when`: only beside this value.
    """

    def __init__(
        self,
        there: str,
        *paths: str,
        values: tuple[object, ...] = (),
        why: str = "",
        above: int | None = None,
        when: str | None = None,
    ) -> None:
        self.there, self.paths, self.values, self.why = there, paths, values, why
        self.above, self.when = above, when
        self.keys = frozenset(_step(path)[0] for path in (there, *paths))

    def problems(self, table: Table) -> Iterator[Problem]:
        there = next((value for _, value in given(table, self.there)), None)
        if (
            there is None
            or (self.above is not None and there <= self.above)
            or self.when not in (None, there)
        ):
            return
        around, _, name = self.there.rpartition(".")
        if isinstance(there, Table):
            name = f"[[{self.there[:-2]}]]" if name.endswith("[]") else f"[{self.there}]"
        elif around:
            name = f"[{around}] {name}" + (f' = "{self.when}"' if self.when is not None else "")
        for place, value in (pair for path in self.paths for pair in given(table, path)):
            if value not in self.values:
                must = f"must be {_either(self.values)}" if self.values else "not modelled"
                seen = f", not {_either([value])}" if self.values else ""
                yield Problem(place, f"{must} beside {name}{seen}{self.why}")

    def json(self) -> JsonDict:
        values = [str(value) if isinstance(value, str) else value for value in self.values]
        allowed: JsonDict | bool = {"enum": values} if values else False  # type: ignore[dict-item]
        there = has(self.there)
        if self.above is not None:
            there = {"allOf": [there, only(self.there, {"exclusiveMinimum": self.above})]}
        if self.when is not None:
            there = {"allOf": [there, only(self.there, {"const": self.when})]}
        return {"if": there, "then": {"allOf": [only(path, allowed) for path in self.paths]}}


class Check(Relation):
    """A relation that takes arithmetic: a function of the table, the keys it rests on, and JSON Schema if any."""

    def __init__(
        self, of: Callable[[Any], Iterator[Problem]], keys: str = "", schema: JsonDict | None = None
    ) -> None:
        self.of, self.keys, self.schema = of, frozenset(keys.split()), schema or {}

    def problems(self, table: Table) -> Iterator[Problem]:
        return self.of(table)

    def json(self) -> JsonDict:
        return self.schema
