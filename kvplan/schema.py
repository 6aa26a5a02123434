"""What a profile may say: the tables of the TOML file and the checks of their values.

Pydantic checks every value for itself; what relates several values is checked after that, by `_conflicts`.
Nothing else in the package uses pydantic.
"""

import re
import reprlib
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import getitem
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from kvplan.errors import UsageError
from kvplan.model import Prefill, as_written
from kvplan.positions import KeyPath
from kvplan.units import format_number, format_tokens, parse_bytes, parse_seconds

MAX_DECODE_TOKENS = 1_000_000
MAX_MEMORY_TOKENS = 10**12

# Far outside anything real, and near enough that no figure of a report overflows or divides by zero.
_TINY, _HUGE = 1e-12, 1e12
_WEIGHTS = f"a number from {format_number(_TINY)} to {format_number(_HUGE)}"
_LENGTHS = f"a whole number of tokens from 1 to {format_tokens(MAX_DECODE_TOKENS)}"


class Problem(NamedTuple):
    """One thing that is wrong: where, what was seen and what is allowed; or a key that is not there."""

    path: KeyPath
    message: str
    missing: bool = False


# ------------------------------------------------------------------------------------------- single values


def _refusal(message: str, *inside: str) -> PydanticCustomError:
    """What a validator below raises; `inside` leads from its value to the part that is wrong."""
    return PydanticCustomError("refused", "{message}", {"message": message, "inside": inside})


def _version(value: object) -> object:
    # Python finds True == 1.0 == 1.
    if type(value) is not int or value != 1:
        raise _refusal(f"must be 1, the only schema there is, not {shown(value)}")
    return value


def _printable(value: str) -> str:
    if not value.strip() or not value.isprintable() or len(value) > 200:
        raise _refusal(f"must be 1 to 200 printable characters, not {shown(value)}")
    return value


def _seconds(value: object) -> object:
    if isinstance(value, str):
        try:
            return parse_seconds(value)
        except UsageError as error:
            raise _refusal(str(error)) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal(f'must be a number of seconds or a string such as "14.5 ms", not {shown(value)}')
    return value


def _bytes(value: object) -> int:
    if not isinstance(value, str):
        raise _refusal(f'must be a string such as "5.05 GiB", not {shown(value)}')
    try:
        return parse_bytes(value)
    except UsageError as error:
        raise _refusal(str(error)) from None


def _decode(value: object) -> dict[int, float]:
    """Weight of each decode length, ascending; a single length has weight 1."""
    if not isinstance(value, dict):
        if type(value) is not int or not 1 <= value <= MAX_DECODE_TOKENS:
            raise _refusal(f"must be {_LENGTHS}, or a table of length = weight, not {shown(value)}")
        return {value: 1.0}
    weights = {}
    for key, weight in value.items():
        # One spelling only: two spellings of a length would be two keys.
        if not re.fullmatch("[1-9][0-9]{0,6}", key) or int(key) > MAX_DECODE_TOKENS:
            raise _refusal(f"the length must be {_LENGTHS}, not {shown(key)}", key)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not _TINY <= weight <= _HUGE:
            raise _refusal(f"the weight must be {_WEIGHTS}, not {shown(weight)}", key)
        weights[int(key)] = float(weight)
    if not weights:
        raise _refusal("must have at least one length = weight, not an empty table")
    return dict(sorted(weights.items()))


def _segments(value: object) -> int | None:
    if value == "auto":
        return None
    if type(value) is not int or value < 1:
        raise _refusal(f'must be "auto" or a whole number from 1, not {shown(value)}')
    return value


_Name = Annotated[str, AfterValidator(_printable)]
_Tokens = Annotated[int, Field(ge=1, le=MAX_MEMORY_TOKENS)]
_Amount = Annotated[float, Field(ge=_TINY, le=_HUGE)]
_Rate = Annotated[float, Field(ge=1e-300, le=_HUGE)]  # however rare, the formulas hold
_Seconds = BeforeValidator(_seconds, json_schema_input_type=float | str)
_Bytes = Annotated[int, Field(ge=1, le=10**18), BeforeValidator(_bytes, json_schema_input_type=str)]
_Decode = Annotated[dict[int, float], BeforeValidator(_decode, json_schema_input_type=int | dict[str, float])]
_SegmentsInput = Literal["auto"] | Annotated[int, Field(ge=1)]
_Segments = Annotated[int | None, BeforeValidator(_segments, json_schema_input_type=_SegmentsInput)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Gpu(_Table):
    memory_tokens: _Tokens | None = None
    memory: _Bytes | None = None
    kv_bytes_per_token: _Tokens | None = None
    block_tokens: _Tokens = 1
    prefill: Annotated[Prefill, Field(strict=False)] = Prefill.FUSED
    max_num_seqs: _Tokens | None = None
    max_num_batched_tokens: _Tokens | None = None

    @property
    def capacity_tokens(self) -> int:
        if self.memory is not None and self.kv_bytes_per_token is not None:
            return self.memory // self.kv_bytes_per_token
        return self.memory_tokens or 0


class _Timing(_Table):
    d0: Annotated[_Amount, _Seconds]
    d1: Annotated[float, Field(ge=0, le=_HUGE), _Seconds] = 0.0
    d2: Annotated[float, Field(ge=0, le=_HUGE), _Seconds] = 0.0
    d3: Annotated[float, Field(ge=0, le=_HUGE), _Seconds] = 0.0


class Class(_Table):
    name: _Name
    input: Annotated[int, Field(ge=0, le=10**9)]
    decode: _Decode
    rate: _Rate | None = None
    share: Annotated[float, Field(ge=_TINY, le=1)] | None = None


class Workload(_Table):
    rate: _Rate


class _Plan(_Table):
    delta: Annotated[float, Field(gt=0, le=1)] = 0.01
    horizon: Annotated[_Amount, _Seconds] = 3600.0
    segments: _Segments = None


class _Gate(_Table):
    require: Annotated[list[str], FailFast()] = []


class Document(_Table):
    version: Annotated[Literal[1], BeforeValidator(_version), Field(alias="schema")]
    name: _Name
    gpu: Gpu
    timing: _Timing
    workload: Workload | None = None
    classes: Annotated[list[Class], Field(min_length=1), FailFast()]
    plan: _Plan = _Plan()
    gate: _Gate = _Gate()


class SchemaError(Exception):
    """A document breaks the schema; `problems` says where."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems


def check(document: dict[str, Any]) -> Document:
    """The tables of a parsed profile, checked and with defaults filled in.

    Raises
    ------
    SchemaError
        What is wrong between values is looked for only where every value is right.
    """
    try:
        checked = Document.model_validate(document)
    except ValidationError as error:
        raise SchemaError(_problems(error, document)) from None
    if conflicts := list(_conflicts(checked)):
        raise SchemaError(conflicts)
    return checked


# ------------------------------------------------------------------------------- relations between values


def _conflicts(document: Document) -> Iterator[Problem]:
    """What is wrong between values that are each right."""
    yield from _memory_conflicts(document.gpu)
    yield from _rate_conflicts(document)
    yield from _class_conflicts(document)
    distinct = len({d for c in document.classes for d in c.decode})
    if (document.plan.segments or 1) > distinct:
        yield Problem(
            ("plan", "segments"),
            f"must be at most the {distinct} distinct decode lengths, not {document.plan.segments}",
        )


def _memory_conflicts(gpu: Gpu) -> Iterator[Problem]:
    if gpu.memory_tokens is not None:
        for key in ("memory", "kv_bytes_per_token"):
            if getattr(gpu, key) is not None:
                yield Problem(("gpu", key), "not allowed beside memory_tokens, which says it already")
    elif gpu.memory is None or gpu.kv_bytes_per_token is None:
        yield Problem(("gpu",), "needs memory_tokens, or memory with kv_bytes_per_token", missing=True)
    elif not 1 <= gpu.capacity_tokens <= MAX_MEMORY_TOKENS:
        limit, seen = format_tokens(MAX_MEMORY_TOKENS), format_tokens(gpu.capacity_tokens)
        yield Problem(("gpu", "memory"), f"must hold 1 to {limit} tokens, not {seen}")
    if gpu.block_tokens > gpu.capacity_tokens > 0:
        limit = format_tokens(gpu.capacity_tokens)
        yield Problem(
            ("gpu", "block_tokens"), f"must be at most the memory, {limit} tokens, not {gpu.block_tokens}"
        )


def _rate_conflicts(document: Document) -> Iterator[Problem]:
    if document.workload is None:
        here, other = "rate", "share"
        why = "is a share of [workload] rate, which is not given; give that, or a rate here"
    else:
        here, other = "share", "rate"
        why = "not allowed beside [workload] rate; a class gives its share of that"
    for i, c in enumerate(document.classes):
        if getattr(c, other) is not None:
            yield Problem(("classes", i, other), why)
        if getattr(c, here) is None:
            yield Problem(("classes", i, here), "required", missing=True)
    shares = [as_written(c.share) for c in document.classes if c.share is not None]
    total = float(sum(shares))
    if len(shares) == len(document.classes) and abs(total - 1) > 1e-9:
        last = len(shares) - 1
        seen = format_number(total, digits=12)
        yield Problem(("classes", last, "share"), f"the shares of all classes must sum to 1, not {seen}")


def _class_conflicts(document: Document) -> Iterator[Problem]:
    gpu = document.gpu
    block = gpu.block_tokens
    usable = gpu.capacity_tokens // block * block
    names: set[str] = set()
    for i, c in enumerate(document.classes):
        if c.name in names:
            yield Problem(("classes", i, "name"), f"must be unique, and {shown(c.name)} is taken")
        names.add(c.name)
        if gpu.prefill is Prefill.INLINE and c.input == 0:
            yield Problem(("classes", i, "input"), 'must be at least 1 where prefill = "inline", not 0')
        longest = c.input + max(c.decode)
        held = -(-longest // block) * block
        # Such a request can never finish: an engine that admits it hangs (theory §2, preflight).
        if held > usable > 0:
            yield Problem(
                ("classes", i),
                f"class {shown(c.name)} does not fit: its longest request holds {format_tokens(held)} KV "
                f"tokens (input {format_tokens(c.input)} + decode {format_tokens(max(c.decode))}, "
                f"in blocks of {block}), and memory holds {format_tokens(usable)}",
            )


# ---------------------------------------------------------------------------------------------- messages

_TABLES: dict[KeyPath, type[_Table]] = {
    (): Document,
    ("gpu",): Gpu,
    ("timing",): _Timing,
    ("classes",): Class,
    ("workload",): Workload,
    ("plan",): _Plan,
    ("gate",): _Gate,
}

# What is allowed, by pydantic's error type.
_ALLOWED = {
    "refused": "{message}",
    "int_type": "must be a whole number, not {value}",
    "float_type": "must be a number, not {value}",
    "finite_number": "must be a finite number, not {value}",
    "string_type": "must be a string, not {value}",
    "list_type": "must be a list, not {value}",
    "model_type": "must be a table, not {value}",
    "greater_than": "must be greater than {gt}, not {value}",
    "greater_than_equal": "must be at least {ge}, not {value}",
    "less_than_equal": "must be at most {le}, not {value}",
    "too_short": "must have at least {min_length}, not {actual_length}",
    "enum": "must be {expected}, not {value}",
}


def _problems(error: ValidationError, document: dict[str, Any]) -> list[Problem]:
    # Of the unknown keys of one table the first is the first in the file; there may be a million of them.
    distinct: dict[KeyPath, ErrorDetails] = {}
    for e in error.errors(include_url=False):
        distinct.setdefault(e["loc"][:-1] if e["type"] == "extra_forbidden" else e["loc"], e)
    return [_translated(e, document) for e in distinct.values()]


def _translated(error: ErrorDetails, document: dict[str, Any]) -> Problem:
    path, context = error["loc"], error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        known = _TABLES[path[:1] if len(path) > 1 else ()].model_fields
        keys = [field.alias or name for name, field in known.items()]
        return Problem(path, f"unknown key; {did_you_mean(str(path[-1]), keys, 'known here')}")
    if error["type"] == "missing":
        return Problem(path, "required", missing=True)
    # As written: pydantic's own input is already a number where a unit was read.
    value = shown(reduce(getitem, path, cast(Any, document)))
    limits = {k: format_number(v) if isinstance(v, int | float) else v for k, v in context.items()}
    message = _ALLOWED[error["type"]].format(value=value, **limits)
    return Problem((*path, *context.get("inside", ())), message)


def did_you_mean(word: str, known: Iterable[str], what: str) -> str:
    from difflib import get_close_matches

    known = list(known)
    nearest = get_close_matches(word[:60], known, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"{what}: {', '.join(known)}"


def shown(value: object) -> str:
    """A value as a message quotes it: short, on one line, whatever it is."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer beyond what Python converts to decimals
        return "a whole number with too many digits"
