"""What a profile may say: the tables of the TOML file and the checks of their values.

Pydantic checks every value for itself; what relates several values is checked after that, by `_conflicts`.
Nothing else in the package uses pydantic.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial, reduce
from itertools import pairwise
from operator import getitem
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from kvplan.errors import UsageError, did_you_mean, shown
from kvplan.model import Admission, Engine, EngineName, Knowledge, Origin, Prefill, Replica, as_written
from kvplan.model.drafts import Drafts
from kvplan.model.fleet import Routing
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.model.lengths import Lengths
from kvplan.model.offload import Offload
from kvplan.model.provenance import Range
from kvplan.model.sessions import Sessions
from kvplan.profile.laws import (
    MAX_INPUTS,
    MAX_OUTPUTS,
    GapLaw,
    HitCurve,
    Input,
    Reused,
    Shared,
    Tokens,
    Turns,
    refusal,
    seconds,
    seconds_schema,
)
from kvplan.profile.positions import KeyPath
from kvplan.ranges import (
    LEAST_COST_S,
    LEAST_DELTA,
    LEAST_RATE,
    LEAST_WEIGHT,
    LONGEST_ITERATION_S,
    LONGEST_S,
    MAX_BLOCK_TOKENS,
    MAX_CACHE_TOKENS,
    MAX_GPUS,
    MAX_MEMORY_TOKENS,
    MAX_TOKENS,
    MOST_RATE,
    MOST_WEIGHT,
    SHORTEST_S,
)
from kvplan.units import (
    BANDWIDTH_UNITS,
    BYTE_UNITS,
    format_number,
    format_seconds,
    format_tokens,
    parse_bandwidth,
    parse_bytes,
    quantity_pattern,
)

PARTS = {"gpu": "[gpu]", "timing": "[timing]", "classes": "[[classes]]"}  # of a profile; one must be there
MOST_PROBLEMS = 20  # that are told at once
MAX_SOURCE = 300  # characters that say where a part of a profile comes from
_MOST_LAYERS = 10_000
_MOST_KINDS = 64  # of layers
MOST_DRAFTS = 100
MOST_REPLICAS = 10_000  # of a fleet
_LONGEST_PATH = 4096  # characters
LEAST_CV, MOST_CV = 0.01, 100.0  # of gaps

_LEAST_FACTOR, _MOST_FACTOR = 1e-6, 1e6  # of a rate, where it is not 0
_FACTORS = f"0, or a number from {format_number(_LEAST_FACTOR)} to {format_number(_MOST_FACTOR)}"
_MOST_STEPS = 1000
_MOST_CLASSES = 1000  # so that a report takes seconds; traces are fitted with a few
_MOST_SESSIONS = 32
_MOST_REUSED = 32  # classes that ask again, each after a gap of its own
_MOST_PAIRS = 200_000  # of an input and a decode length, of all classes together
_MOST_TABLED = 2 * 10**6  # prompts times the longest output: tables of what no formula says
_LONGEST_DRAFTED = 2**18  # tokens, of the longest output of each class, for each number of drafts
_LONGEST_TABLED = 2**17
_MOST_BAND = 1000.0  # how much longer, or shorter, iterations can have taken
_MOST_PAGED = 2 * 10**6  # turns of all sessions times page size: their moments take memory, and half a second


class Problem(NamedTuple):
    """One thing that is wrong: where, what was seen and what is allowed; or a key that is not there."""

    path: KeyPath
    message: str
    missing: bool = False


# ------------------------------------------------------------------------------------------- single values


def _version(value: object) -> object:
    # Python finds True == 1.0 == 1.
    if type(value) is not int or value != 1:
        raise refusal(f"must be 1, the only schema there is, not {shown(value)}")
    return value


def _printable(value: str) -> str:
    if not value.strip() or not value.isprintable() or len(value) > 200:
        raise refusal(f"must be 1 to 200 printable characters, not {shown(value)}")
    return value


def _file(value: str) -> str:
    if not value.strip() or "\0" in value or len(value) > _LONGEST_PATH:
        raise refusal(f"must be the path of a file, up to {_LONGEST_PATH} characters, not {shown(value)}")
    return value


def _class_rate(value: float) -> float:
    if 0 < value < LEAST_RATE:
        raise refusal(f"must be 0, or at least {format_number(LEAST_RATE)}, not {shown(value)}")
    return value


def _bytes(value: object) -> int:
    if not isinstance(value, str):
        raise refusal(f'must be a string such as "5.05 GiB", not {shown(value)}')
    try:
        return parse_bytes(value)
    except UsageError as error:
        raise refusal(str(error)) from None


def _bandwidth(value: object) -> float:
    if not isinstance(value, str):
        raise refusal(f'must be a string such as "20 GB/s", not {shown(value)}')
    try:
        return parse_bandwidth(value)
    except UsageError as error:
        raise refusal(str(error)) from None


def _segments(value: object) -> int | None:
    if value == "auto":
        return None
    if type(value) is not int or value < 1:
        raise refusal(f'must be "auto" or a whole number from 1, not {shown(value)}')
    return value


def _factor(value: object) -> float:
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not (value == 0 or _LEAST_FACTOR <= cast(float, value) <= _MOST_FACTOR):
        raise refusal(f"must be {_FACTORS}, not {shown(value)}")
    return float(cast(float, value))


def _factors(value: object) -> dict[str, float]:
    """Factor of each class that is named."""
    if not isinstance(value, dict) or not value:
        raise refusal(f"must be a table of class = factor, not {shown(value) if value else 'an empty table'}")
    found = {}
    for name, factor in value.items():
        try:
            found[name] = _factor(factor)
        except PydanticCustomError as error:
            raise refusal(str(error), name) from None
    return found


def _range(least: float, most: float, example: str, value: object) -> Range:
    """Least and most of something."""
    if not isinstance(value, list) or len(value) != 2:
        raise refusal(f"must be two numbers, least and most, such as {example}, not {_in_full(value)}")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number <= most:
            allowed = f"numbers from {format_number(least)} to {format_number(most)}"
            raise refusal(f"must be two {allowed}, such as {example}, not {_in_full(value)}")
    low, high = value
    if low > high:
        raise refusal(f"must be the least first and then the most, not {_in_full(value)}")
    return float(low), float(high)


def _in_full(value: object) -> str:
    """A value as a message quotes it, the numbers of a short list too."""
    return (
        f"[{', '.join(map(shown, value))}]" if isinstance(value, list) and len(value) <= 3 else shown(value)
    )


def _origin(value: object) -> Origin:
    """How a part of the profile is known: a word, or a table with more about it."""
    words = ", ".join(Knowledge)
    if isinstance(value, str) and value in tuple(Knowledge):
        return Origin(Knowledge(value))
    if not isinstance(value, dict):
        raise refusal(f"must be one of {words}, or a table with basis, source and date, not {shown(value)}")
    for key in value:
        if key not in ("basis", "source", "date"):
            raise refusal(f"unknown key; {did_you_mean(key, ('basis', 'source', 'date'), 'known here')}", key)
    basis, source, day = value.get("basis"), value.get("source", ""), value.get("date")
    if basis is None:
        raise refusal(f"needs a basis: one of {words}")
    if not isinstance(basis, str) or basis not in tuple(Knowledge):
        raise refusal(f"must be one of {words}, not {shown(basis)}", "basis")
    if not isinstance(source, str):
        raise refusal(f"must be a string, not {shown(source)}", "source")
    if source and (not source.strip() or not source.isprintable() or len(source) > MAX_SOURCE):
        raise refusal(f"must be up to {MAX_SOURCE} printable characters, not {shown(source)}", "source")
    if day is not None and (isinstance(day, datetime) or not isinstance(day, date)):
        raise refusal(f"must be a date such as 2026-11-22, without quotes, not {shown(str(day))}", "date")
    return Origin(Knowledge(basis), source, day)


@dataclass(frozen=True)
class _Seconds:
    """A time from the least to the most; or 0, where there may be none."""

    least: float
    most: float
    or_none: bool = False

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        check = partial(seconds, self.least, self.most, or_none=self.or_none)
        return core_schema.no_info_plain_validator_function(check)

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> JsonDict:
        return seconds_schema(self.least, self.most, or_none=self.or_none)


_FACTOR_SCHEMA: JsonDict = {
    "anyOf": [{"const": 0}, {"type": "number", "minimum": _LEAST_FACTOR, "maximum": _MOST_FACTOR}]
}
_FACTORS_SCHEMA = {"type": "object", "additionalProperties": _FACTOR_SCHEMA, "minProperties": 1}
_NAME_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S"}

_Name = Annotated[str, AfterValidator(_printable), WithJsonSchema(_NAME_SCHEMA)]
_File = Annotated[
    str,
    AfterValidator(_file),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": _LONGEST_PATH, "pattern": r"\S"}),
]
_Tokens = Annotated[int, Field(ge=1, le=MAX_MEMORY_TOKENS)]
_BlockTokens = Annotated[int, Field(ge=1, le=MAX_BLOCK_TOKENS)]
_CacheTokens = Annotated[int, Field(ge=1, le=MAX_CACHE_TOKENS)]
_Rate = Annotated[float, Field(ge=LEAST_RATE, le=MOST_RATE)]
_ClassRate = Annotated[float, Field(ge=0, le=MOST_RATE), AfterValidator(_class_rate)]
_Iteration = Annotated[float, _Seconds(SHORTEST_S, LONGEST_ITERATION_S)]
_Overhead = Annotated[float, _Seconds(SHORTEST_S, LONGEST_ITERATION_S, or_none=True)]
_Cost = Annotated[float, _Seconds(LEAST_COST_S, LONGEST_ITERATION_S, or_none=True)]
_Duration = Annotated[float, _Seconds(SHORTEST_S, LONGEST_S)]
_Moment = Annotated[float, _Seconds(SHORTEST_S, LONGEST_S, or_none=True)]
_Count = Annotated[int, Field(ge=1, le=MOST_REPLICAS)]
_Bytes = Annotated[
    int,
    Field(ge=1, le=10**16),
    BeforeValidator(_bytes),
    WithJsonSchema({"type": "string", "pattern": quantity_pattern(BYTE_UNITS)}),
]
_Bandwidth = Annotated[
    float,
    Field(ge=1e3, le=1e15),
    BeforeValidator(_bandwidth),
    WithJsonSchema({"type": "string", "pattern": quantity_pattern(BANDWIDTH_UNITS)}),
]
_Factor = Annotated[float, BeforeValidator(_factor), WithJsonSchema(_FACTOR_SCHEMA)]
_Factors = Annotated[dict[str, float], BeforeValidator(_factors), WithJsonSchema(_FACTORS_SCHEMA)]
_Segments = Annotated[
    int | None,
    BeforeValidator(_segments),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}], "default": "auto"}),
]


def _range_schema(least: float, most: float) -> WithJsonSchema:
    numbers: JsonDict = {"type": "number", "minimum": least, "maximum": most}
    return WithJsonSchema({"type": "array", "items": numbers, "minItems": 2, "maxItems": 2})


_Amounts = Annotated[
    Range,
    PlainValidator(partial(_range, 0, MAX_MEMORY_TOKENS, "[0, 8192]")),
    _range_schema(0, MAX_MEMORY_TOKENS),
]
_Band = Annotated[
    Range,
    PlainValidator(partial(_range, 1 / _MOST_BAND, _MOST_BAND, "[0.9, 1.3]")),
    _range_schema(1 / _MOST_BAND, _MOST_BAND),
]
_BASIS_SCHEMA: JsonDict = {"enum": [str(word) for word in Knowledge]}
_ORIGIN_SCHEMA: JsonDict = {
    "anyOf": [
        _BASIS_SCHEMA,
        {
            "type": "object",
            "properties": {
                "basis": _BASIS_SCHEMA,
                "source": {"type": "string", "maxLength": MAX_SOURCE},
                "date": {"type": "string", "format": "date"},
            },
            "required": ["basis"],
            "additionalProperties": False,
        },
    ],
}
_Origin = Annotated[Any, PlainValidator(_origin), WithJsonSchema(_ORIGIN_SCHEMA)]

_MEMORY_WAYS = (("memory_tokens",), ("memory", "kv_bytes_per_token"), ("kv_blocks", "kv"))
_MEMORY_KEYS = tuple(key for way in _MEMORY_WAYS for key in way)
_TOKEN_BYTES = "kv_bytes_per_token"  # said beside memory_tokens too where a link moves them

# What relates keys, as JSON Schema says it; `_conflicts` says it to people.
_MEMORY_ONE_WAY: JsonDict = {
    "oneOf": [
        {
            "required": [*mine],
            "properties": dict.fromkeys(
                (
                    key
                    for key in _MEMORY_KEYS
                    if key not in mine and (mine, key) != (_MEMORY_WAYS[0], _TOKEN_BYTES)
                ),
                False,
            ),
        }
        for mine in _MEMORY_WAYS
    ]
}
_BYTES_WHERE_MOVED: JsonDict = {
    "if": {"properties": {"gpu": {"required": ["memory_tokens", _TOKEN_BYTES]}}},
    "then": {
        "anyOf": [
            {"properties": {"gpu": {"required": ["offload"]}}},
            {"required": ["fleet"], "properties": {"fleet": {"required": ["transfer"]}}},
        ]
    },
}
_HOST_MEMORY_ONE_WAY: JsonDict = {"oneOf": [{"required": ["memory"]}, {"required": ["memory_tokens"]}]}
_RATES_ONE_WAY: JsonDict = {
    "if": {"required": ["workload"], "properties": {"workload": {"required": ["rate"]}}},
    "then": {"properties": {"classes": {"items": {"required": ["share"], "properties": {"rate": False}}}}},
    "else": {"properties": {"classes": {"items": {"required": ["rate"], "properties": {"share": False}}}}},
}
_TOGETHER_OR_SPLIT: JsonDict = {
    "oneOf": [
        {"required": ["replicas"], "properties": {"prefill": False, "decode": False, "transfer": False}},
        {"required": ["prefill", "decode"], "properties": {"replicas": False}},
    ]
}
_ENGINES_WITH: dict[str, tuple[EngineName, ...]] = {
    "admission": (EngineName.VLLM, EngineName.TRTLLM),
    "watermark": (EngineName.VLLM,),
}
_KEYS_OF_ENGINES: JsonDict = {
    "allOf": [
        {
            "if": {"required": ["name"], "properties": {"name": {"const": str(name)}}},
            "then": {"properties": dict.fromkeys(without, False)},
        }
        for name in EngineName
        if (without := [key for key, engines in _ENGINES_WITH.items() if name not in engines])
    ]
}
_ENGINE_WHERE_FUSED: JsonDict = {
    "if": {"required": ["engine"]},
    "then": {"properties": {"gpu": {"properties": {"prefill": {"const": str(Prefill.FUSED)}}}}},
}
_RATE_OR_USERS: JsonDict = {"oneOf": [{"required": ["rate"]}, {"required": ["users"]}]}
_SOME: JsonDict = {"minItems": 1}
_A_PART: JsonDict = {
    "anyOf": [
        {"required": ["gpu"]},
        {"required": ["timing"]},
        {"required": ["classes"], "properties": {"classes": _SOME}},
        {"required": ["sessions"], "properties": {"sessions": _SOME}},
    ]
}
_RATE_OR_SCHEDULE: JsonDict = {
    "anyOf": [{"required": [key]} for key in ("rate", "schedule", "cv", "trace")],
    "dependentRequired": {"schedule": ["period"], "period": ["schedule"]},
}
_STEP_OR_SINUSOID: JsonDict = {
    "oneOf": [
        {
            "required": ["at"],
            "anyOf": [{"required": ["factor"]}, {"required": ["factors"]}],
            "properties": {"amplitude": False, "peak": False},
        },
        {"required": ["amplitude"], "properties": {"at": False, "factor": False, "factors": False}},
    ]
}
_ALONE: JsonDict = {"if": {"contains": {"required": ["amplitude"]}}, "then": {"maxItems": 1}}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True, defer_build=True)


def _about(text: str, default: Any = ..., **options: Any) -> Any:
    """A key with the description that editors show."""
    return Field(default, description=text, **options)


class Kv(_Table):
    """Layers that keep KV cache of one kind."""

    model_config = ConfigDict(title="Layers of one kind")

    kind: Annotated[Attention, Field(strict=False)] = _about(
        "What a layer keeps of a request: all tokens (full), the last ones (window), those since its chunk began "
        "(chunk), or a state of fixed size (state)."
    )
    layers: Annotated[int, Field(ge=1, le=_MOST_LAYERS)] = _about("How many layers are of this kind.")
    bytes: Annotated[int, Field(ge=1, le=10**12)] = _about(
        "Bytes of KV cache per token and layer, on one GPU; of a state, its bytes."
    )
    window: _Tokens | None = _about("Tokens of a window or chunk.", None)


class HostTier(_Table):
    """Host memory behind the prefix cache, and the link to it."""

    model_config = ConfigDict(title="Host tier", json_schema_extra=_HOST_MEMORY_ONE_WAY)

    memory: _Bytes | None = _about('Host memory for KV cache of the replica, such as "200 GiB".', None)
    memory_tokens: _CacheTokens | None = _about("The same in tokens.", None)
    bandwidth: _Bandwidth = _about(
        'From host to GPU, such as "25 GB/s": of the replica, the links of all its GPUs together.'
    )
    inclusive: bool = _about(
        "Whether every full block is written to the host as it is computed; otherwise only what the GPU throws away.",
        True,
    )
    overlap: bool = _about(
        "Whether a request waits for its load while others run; otherwise loads are part of the iteration's time.",
        True,
    )


class Gpu(_Table):
    """One replica: its KV memory and what the engine limits."""

    model_config = ConfigDict(title="Replica", json_schema_extra=_MEMORY_ONE_WAY)

    memory_tokens: _Tokens | None = _about(
        "KV capacity of one replica, tokens. Or give memory with kv_bytes_per_token.", None
    )
    memory: _Bytes | None = _about(
        'KV memory of one replica, such as "5.05 GiB"; needs kv_bytes_per_token.', None
    )
    kv_bytes_per_token: _Tokens | None = _about("Bytes of KV cache per token, all layers.", None)
    kv_blocks: _Tokens | None = _about(
        "Blocks of the engine's pool, each of block_tokens tokens in every layer of a group; needs [[gpu.kv]].",
        None,
    )
    kv: Annotated[list[Kv], Field(max_length=_MOST_KINDS)] = _about(
        "Layers by kind, where they differ in what they keep of a request.", []
    )
    block_tokens: _BlockTokens = _about("Page size of the KV cache, tokens; 16 in vLLM.", 1)
    prefill: Annotated[Prefill, Field(strict=False)] = _about(
        "Where a prompt's KV comes from: computed in the iteration that emits the first token (fused), in an "
        "iteration of its own (inline), or ready-made (disaggregated).",
        Prefill.FUSED,
    )
    max_num_seqs: _Tokens | None = _about("Most requests the engine runs at once.", None)
    max_num_batched_tokens: _Tokens | None = _about("Most tokens the engine computes in an iteration.", None)
    gpus: Annotated[int, Field(ge=1, le=MAX_GPUS)] = _about(
        "GPUs of one replica: what they hold together is its memory. Prices and sizes count them.", 1
    )
    prefix_caching: bool = _about(
        "Whether the engine keeps the KV cache of prefixes, as vLLM and SGLang do by default.", True
    )
    offload: HostTier | None = None

    @property
    def capacity_tokens(self) -> int:
        if self.memory is not None and self.kv_bytes_per_token is not None:
            return self.memory // self.kv_bytes_per_token
        if self.kv_blocks is not None:
            return self.kv_blocks * self.block_tokens
        return self.memory_tokens or 0

    @property
    def layout(self) -> KvLayout | None:
        """None where all layers keep every token; a prefix cache that is asked for keeps a second state.

        Raises
        ------
        ValueError
            Layers and block size do not go together.
        """
        counts = Counter[tuple[Attention, int, int | None]]()
        for one in self.kv:
            counts[one.kind, one.bytes, one.window] += one.layers
        if len(counts) <= 1 and {one.kind for one in self.kv} <= {Attention.FULL}:
            return None
        layers = tuple(Layers(kind, n, size, window) for (kind, size, window), n in counts.items())
        return KvLayout(layers, self.block_tokens, 2 if self._caches_prefixes else 1)

    @property
    def _caches_prefixes(self) -> bool:
        """As it is said; engines do by default, but where layers keep states."""
        states = any(one.kind is Attention.STATE for one in self.kv)
        return self.prefix_caching and not (states and "prefix_caching" not in self.model_fields_set)

    @property
    def token_bytes(self) -> int | None:
        """Bytes of KV cache per token of the replica, all layers and GPUs; None where nothing says it.

        Of a pool token where layers differ.
        """
        if self.layout is not None:
            return self.gpus * self.layout.block_bytes // self.block_tokens
        if self.kv:
            return self.gpus * sum(one.layers * one.bytes for one in self.kv)
        return self.kv_bytes_per_token

    @property
    def host_tier(self) -> Offload | None:
        """The host tier in tokens; `token_bytes` must be known."""
        tier, size = self.offload, self.token_bytes
        if tier is None or size is None:
            return None
        tokens = tier.memory_tokens or (tier.memory or 0) // size
        return Offload(tokens, size / tier.bandwidth, tier.inclusive, tier.overlap, tokens * size)

    def with_drafts(self, drafts: Drafts | None) -> Replica:
        """The replica; of a state there is a block more for each draft."""
        return self.replica if drafts is None else self.replica.with_states(drafts.tokens)

    @property
    def replica(self) -> Replica:
        return Replica(
            memory_tokens=self.capacity_tokens,
            block_tokens=self.block_tokens,
            prefill=self.prefill,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            gpus=self.gpus,
            prefix_caching=self._caches_prefixes,
            layout=self.layout,
            offload=self.host_tier,
        )


class _Measured(_Table):
    """The iterations that a timing was measured on; beyond them, reports say so."""

    model_config = ConfigDict(title="Measured range")

    kv_tokens: _Amounts | None = _about("Least and most KV tokens of an iteration.", None)
    prefill_tokens: _Amounts | None = _about("Least and most prefill tokens of an iteration.", None)
    sequences: _Amounts | None = _about("Least and most sequences of an iteration.", None)
    band: _Band | None = _about(
        "How good the fit is: iterations took from so many to so many times as long as it says.", None
    )


class _Timing(_Table):
    """An iteration takes d0 + d1·KV + d2·prefill + d3·sequences + d4·√sequences + d5·(prefill + sequences - knee)⁺."""

    model_config = ConfigDict(
        title="Iteration time", json_schema_extra={"dependentRequired": {"d5": ["knee_tokens"]}}
    )

    d0: _Iteration = _about('Fixed time of an iteration: seconds, or a string such as "14.5 ms".')
    d1: _Cost = _about("Time per KV token in the batch.", 0.0)
    d2: _Cost = _about("Time per prefill token.", 0.0)
    d3: _Cost = _about("Time per sequence.", 0.0)
    d4: _Cost = _about("Time per square root of the sequences.", 0.0)
    d5: _Cost = _about(
        "Time per token computed beyond knee_tokens, prefill tokens and sequences together.", 0.0
    )
    knee_tokens: Annotated[int, Field(ge=0, le=MAX_MEMORY_TOKENS)] = _about(
        "Tokens computed in an iteration from which on each takes d5 more; needed with d5.", 0
    )
    request_overhead: _Overhead = _about(
        "Time of a request outside the engine (tokeniser, HTTP): part of TTFT and E2E, and of no iteration.",
        0.0,
    )
    measured: _Measured = _about("In what range the timing was measured.", _Measured())


class Class(_Table):
    """Requests whose input and decode lengths have laws of their own, independent of each other."""

    model_config = ConfigDict(title="Class of requests")

    name: _Name = _about("What the report calls the class; unique.")
    input: Input = _about(
        "Prompt length, tokens: a number, length = weight, { uniform = [low, high] }, { geometric = mean }, or "
        "{ lognormal = { mean, cv } }, or { median, sigma }, cut at the quantile .9999 and scaled to the mean."
    )
    decode: Tokens = _about("Generated tokens; like input.")
    rate: _ClassRate | None = _about(
        "Arrivals, requests/s; where no [workload] gives the total. 0 leaves a class out; not all may be 0.",
        None,
    )
    share: Annotated[float, Field(ge=LEAST_WEIGHT, le=1)] | None = _about(
        "Share of [workload] rate; the shares of all classes sum to 1.", None
    )
    shared: Shared | None = _about(
        "Leading tokens, within input, that all its requests have in common; or a list of { tokens, weight }, of each "
        "of which a share of them.",
        None,
    )
    reuse: Reused | None = _about(
        "What later requests ask for again: tokens (a share up to 1.0 of what a request leaves, or a number of them), "
        "share (probability), gap (a law of times), from (completion, or arrival).",
        None,
    )

    @property
    def inputs(self) -> Lengths:
        """Prompt lengths that formulas count."""
        return self.input.at_most(MAX_INPUTS)  # type: ignore[no-any-return]

    @property
    def outputs(self) -> Lengths:
        """Decode lengths that formulas count."""
        return self.decode.at_most(MAX_OUTPUTS)  # type: ignore[no-any-return]


class Session(_Table):
    """Conversations: each turn carries all that came before, and follows the answer after a think time."""

    model_config = ConfigDict(title="Sessions", json_schema_extra=_RATE_OR_USERS)

    name: _Name = _about("What the report calls their turns, a class; unique.")
    rate: _Rate | None = _about("Sessions/s; or users.", None)
    users: Annotated[int, Field(ge=1, le=10**9)] | None = _about(
        "A closed population: each of so many users begins a session think time after the one before.", None
    )
    shared: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = _about(
        "Leading tokens common to all sessions: system prompt, tools.", 0
    )
    first: Tokens = _about(
        "Tokens of the first prompt beyond shared; a number or a law, like decode of a class."
    )
    user: Tokens = _about("Tokens that each further turn adds; like first.")
    decode: Tokens = _about("Generated tokens of each answer; like first.")
    turns: Turns = _about("Turns of a session; like first.")
    think: GapLaw = _about(
        "From an answer to the next turn: a law of times, exponential (mean), lognormal (median, sigma), fixed (value) "
        "or quantiles (values)."
    )

    @property
    def outputs(self) -> Lengths:
        """Decode lengths that formulas count."""
        return self.decode.at_most(MAX_OUTPUTS)  # type: ignore[no-any-return]

    @property
    def law(self) -> Sessions:
        """The sessions of the model."""
        return Sessions(self.first, self.user, self.decode, self.turns, self.think, self.shared, self.users)


class Part(_Table):
    """Part of a schedule: a step (at, with factor or factors), or all of it, a sinusoid (amplitude)."""

    model_config = ConfigDict(title="Part of a schedule", json_schema_extra=_STEP_OR_SINUSOID)

    at: _Moment | None = _about(
        'When the step begins: seconds from the start of the period, or a string such as "8 h"; ascending. '
        "It holds until the next, the last until the first of the next period.",
        None,
    )
    factor: _Factor | None = _about("Multiplies the rate of every class that factors does not name; 1.", None)
    factors: _Factors | None = _about("Factors of single classes: class = factor.", None)
    amplitude: Annotated[float, Field(ge=0, le=1)] | None = _about(
        "Rates vary as a sinusoid, by up to so much of what they are in the mean.", None
    )
    peak: _Moment | None = _about(
        "When the sinusoid is highest, from the start of the period; in its middle.", None
    )

    def factor_of(self, name: str) -> float:
        """Factor of a class in this step."""
        return (self.factors or {}).get(name, 1.0 if self.factor is None else self.factor)


_Schedule = Annotated[list[Part], Field(min_length=1, max_length=_MOST_STEPS, json_schema_extra=_ALONE)]


class Workload(_Table):
    """The total rate, where classes give shares of it, how rates vary over time, and how arrivals cluster."""

    model_config = ConfigDict(title="Workload", json_schema_extra=_RATE_OR_SCHEDULE)

    rate: _Rate | None = _about(
        "Arrivals of all classes together, requests/s; or each class has a rate.", None
    )
    period: _Duration | None = _about('Time after which the schedule repeats, such as "24 h".', None)
    schedule: _Schedule = _about("How rates vary over the period: steps in order, or one sinusoid.", ())
    cv: Annotated[float, Field(ge=LEAST_CV, le=MOST_CV)] = _about(
        "Coefficient of variation of the gaps between all arrivals, which follow a gamma law; 1: Poisson.",
        1.0,
    )
    trace: _File | None = _about(
        "Recorded requests that simulations replay, at the rate of the profile: a file, beside the profile.",
        None,
    )


class _Plan(_Table):
    """What the plan should guarantee."""

    model_config = ConfigDict(title="Plan")

    delta: Annotated[float, Field(ge=LEAST_DELTA, le=1)] = _about(
        "Accepted probability of one overflow within the horizon.", 0.01
    )
    horizon: _Duration = _about('Time that delta is about: seconds, or a string such as "1 h".', 3600.0)
    segments: _Segments = _about(
        'Segments of Nested WAIT: "auto", or a number up to that of the distinct decode lengths.', None
    )
    slower: Annotated[float, Field(ge=0, le=1)] = _about(
        "Objectives must hold with iterations longer by this share, too: for kvplan plan and plan.holds.",
        0.05,
    )
    headroom: Annotated[float, Field(ge=0, le=10)] = _about(
        "Share that kvplan plan and plan.holds add to the demand.", 0.0
    )


class _Gate(_Table):
    """What a check of this profile demands."""

    model_config = ConfigDict(title="Gate")

    require: Annotated[list[str], FailFast()] = _about(
        'Conditions on keys of the report, such as "load.headroom >= 0.20".', []
    )
    accept: Annotated[list[Literal["gpu", "timing", "workload"]], FailFast()] = _about(
        "Parts that may be assumed; otherwise nothing passes that an assumed part stands behind.", []
    )


class _Bounds(_Table):
    """What mean and percentiles of a time are to stay within."""

    model_config = ConfigDict(title="Bounds of a time")

    mean: _Duration | None = _about('The mean, at most: seconds, or a string such as "80 ms".', None)
    p50: _Duration | None = _about("The median, at most.", None)
    p90: _Duration | None = _about("The 90th percentile, at most.", None)
    p95: _Duration | None = _about("The 95th percentile, at most.", None)
    p99: _Duration | None = _about("The 99th percentile, at most.", None)


class _Slos(_Table):
    """Service level objectives, which goodput and `kvplan plan` hold to."""

    model_config = ConfigDict(title="Service level objectives")

    ttft_s: _Bounds = _about("Time to first token.", _Bounds())
    itl_s: _Bounds = _about("Time between two tokens, every gap counted.", _Bounds())
    tpot_s: _Bounds = _about("Mean time between the tokens of a request.", _Bounds())
    e2e_s: _Bounds = _about("Time to the last token.", _Bounds())


class _Costs(_Table):
    """What the plan is priced with."""

    model_config = ConfigDict(title="Cost")

    gpu_hour: Annotated[float, Field(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] = _about(
        "Price of a GPU for an hour, in any currency."
    )


class _Prefix(_Table):
    """What a prefix cache finds, measured on a trace."""

    model_config = ConfigDict(title="Prefix cache")

    hit_curve: HitCurve | None = _about(
        "Points [cache tokens, hit ratio], ascending, in place of all that classes share and reuse.", None
    )


class Speculation(_Table):
    """Speculative decoding: drafts of an iteration, how often they are accepted, and what they cost."""

    model_config = ConfigDict(title="Speculative decoding")

    tokens: Annotated[int, Field(ge=1, le=MOST_DRAFTS)] = _about("Drafts of an iteration.")
    accepted: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(max_length=MOST_DRAFTS)] = _about(
        "How often each draft is accepted, of all iterations: never increasing, of as many drafts at least."
    )
    draft_time: _Overhead = _about("Time of a draft in an iteration, whatever runs.")
    verify_time: _Cost = _about("Time to verify a draft of a sequence.")
    overhead: _Overhead = _about(
        "Time that drafting takes in an iteration, whatever the number of drafts.", 0.0
    )
    lookahead: bool = _about(
        "Whether a request holds a slot more for each draft: with EAGLE, MTP and draft models, not with n-grams.",
        True,
    )

    @property
    def drafts(self) -> Drafts:
        return Drafts(
            self.tokens,
            tuple(self.accepted),
            self.draft_time,
            self.verify_time,
            self.overhead,
            self.lookahead,
        )


class _Fleet(_Table):
    """Several replicas of this kind, whose requests are those of the profile."""

    model_config = ConfigDict(title="Fleet", json_schema_extra=_TOGETHER_OR_SPLIT)

    replicas: _Count | None = _about("Replicas that prefill and decode.", None)
    prefill: _Count | None = _about("Replicas that only compute prompts; with decode.", None)
    decode: _Count | None = _about("Replicas that only generate; with prefill.", None)
    transfer: _Bandwidth | None = _about(
        'Rate at which the KV cache of a prompt goes from prefill to decode, such as "20 GB/s"; without one it takes '
        "no time.",
        None,
    )
    routing: Annotated[Routing, Field(strict=False)] = _about(
        "Which replica a request goes to: any (random), each in turn (round-robin), the one with the fewest requests "
        "(least-requests) or the least KV cache in use (least-kv), or always that of its session (session).",
        Routing.LEAST_REQUESTS,
    )


class _Engine(_Table):
    """The engine whose scheduler serves, and how its version admits requests."""

    model_config = ConfigDict(title="Engine", json_schema_extra=_KEYS_OF_ENGINES)

    name: Annotated[EngineName, Field(strict=False)] = _about(
        "The engine: vllm, sglang or trtllm.", EngineName.VLLM
    )
    admission: Annotated[Admission, Field(strict=False)] = _about(
        "What has to fit in free memory for a prompt to begin: all of it (whole-prompt), or what the first iteration "
        "computes of it (first-chunk: vLLM before March 2026 or with --no-scheduler-reserve-full-isl; TensorRT-LLM's "
        "MAX_UTILIZATION).",
        Admission.WHOLE_PROMPT,
    )
    watermark: Annotated[float, Field(ge=0, lt=1)] = _about(
        "Share of the blocks that vLLM keeps free at admission while anything runs (--watermark).", 0.0
    )

    @property
    def engine(self) -> Engine:
        return Engine(self.name, self.admission, self.watermark)


class _Provenance(_Table):
    """How the parts of the profile are known: measured, stated, estimated, assumed."""

    model_config = ConfigDict(title="Provenance")

    gpu: _Origin = _about(
        "Of [gpu]: a word, or a table with basis, source and date; stated where nothing is said.", Origin()
    )
    timing: _Origin = _about("Of [timing]; of parts known in several ways, the weakest.", Origin())
    workload: _Origin = _about("Of [workload] and [[classes]].", Origin())


class Document(_Table):
    """A replica and its traffic, or what is known of them.

    What stands in for absent tables lets the others be checked; no model is made where parts are `missing`.
    """

    model_config = ConfigDict(
        title="kvplan profile",
        json_schema_extra={
            **_RATES_ONE_WAY,
            **_A_PART,
            "allOf": [_BYTES_WHERE_MOVED, _ENGINE_WHERE_FUSED],
        },
    )

    version: Annotated[Literal[1], BeforeValidator(_version)] = _about(
        "Version of this schema.", alias="schema"
    )
    name: _Name = _about("What the report is headed.")
    gpu: Gpu = Gpu(memory_tokens=MAX_MEMORY_TOKENS)
    timing: _Timing = _Timing(d0=1.0)
    workload: Workload | None = None
    classes: Annotated[list[Class], Field(max_length=_MOST_CLASSES)] = _about(
        "The traffic, class by class.", []
    )
    sessions: Annotated[list[Session], Field(max_length=_MOST_SESSIONS)] = _about(
        "Conversations instead of, or beside, classes; their turns are a class.", []
    )
    prefix: _Prefix = _Prefix()
    speculative: Speculation | None = None
    fleet: _Fleet | None = None
    engine: _Engine | None = None
    plan: _Plan = _Plan()
    slo: _Slos = _Slos()
    cost: _Costs | None = None
    gate: _Gate = _Gate()
    provenance: _Provenance = _Provenance()

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts that the profile does not say: gpu, timing, classes."""
        absent = [name for name in ("gpu", "timing") if name not in self.model_fields_set]
        return (*absent, *([] if self.classes or self.sessions else ["classes"]))


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
        With all that is wrong; between values, in those tables whose values are right.
    """
    try:
        checked, problems = check_values(document), []
    except SchemaError as error:
        problems = error.problems
        # what is left without the tables that have a wrong value
        broken = {problem.path[0] if problem.path else "" for problem in problems}
        broken |= {"schema", "name"} - document.keys()
        rest = {key: value for key, value in document.items() if key not in broken}
        checked = check_values({**rest, "schema": 1, "name": "-"})
        raise SchemaError([*problems, *_conflicts(checked, broken)]) from None
    if conflicts := list(_conflicts(checked)):
        # what stands in the place of a key says what is missing
        wrong = {p.path[:-1] for p in conflicts if not p.missing}
        missing = [p for p in conflicts if p.missing and not {p.path, p.path[:-1]} & wrong]
        raise SchemaError([*(p for p in conflicts if not p.missing), *missing])
    return checked


def check_values(document: dict[str, Any]) -> Document:
    """The same, each value for itself: what relates several values is not looked at.

    Raises
    ------
    SchemaError
    """
    try:
        return Document.model_validate(document)
    except ValidationError as error:
        raise SchemaError(_problems(error, document)) from None


def replaced(document: Document, values: Mapping[KeyPath, object]) -> Document:
    """A checked document with other values, which are right each for itself; only what relates values is checked.

    Parameters
    ----------
    values
        As `check_values` gives them: times in seconds, laws of lengths as `Lengths`. None takes a key away.

    Raises
    ------
    SchemaError
        The values do not go together.

    Examples
    --------
    >>> a = {"name": "a", "input": 9, "decode": 2, "rate": 1}
    >>> tables = {"schema": 1, "name": "n", "gpu": {"memory_tokens": 50}, "timing": {"d0": 1}, "classes": [a]}
    >>> replaced(check(tables), {("gpu", "memory_tokens"): 60, ("classes", 0, "rate"): 2.0}).classes[0].rate
    2.0
    """
    found: Document = _changed(document, values)
    if conflicts := list(_conflicts(found)):
        raise SchemaError(conflicts)
    return found


def _changed(table: Any, values: Mapping[KeyPath, object]) -> Any:
    """A copy of a table, or of a list of them, with other values at these paths."""
    update: dict[Any, object] = {}
    within: dict[Any, dict[KeyPath, object]] = {}
    for (first, *rest), value in values.items():
        if rest:
            within.setdefault(first, {})[tuple(rest)] = value
        else:
            update[first] = value
    if isinstance(table, list):
        return [_changed(one, within[i]) if i in within else one for i, one in enumerate(table)]
    inner = {name: _changed(getattr(table, name), mine) for name, mine in within.items()}
    return table.model_copy(update=update | inner)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a profile, for editors and other programs.

    It accepts every profile that `check` accepts, and refuses what can be refused without arithmetic: that shares
    sum to 1, or that a class fits in memory, only `check` can tell.

    Examples
    --------
    >>> described = json_schema()
    >>> described["title"], described["required"], described["additionalProperties"]
    ('kvplan profile', ['schema', 'name'], False)
    """
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

    class Generator(GenerateJsonSchema):
        """Without titles that repeat the key, and without null, which TOML does not have."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def nullable_schema(self, schema: Any) -> JsonSchemaValue:
            return self.generate_inner(schema["schema"])

        def default_schema(self, schema: Any) -> JsonSchemaValue:
            described = super().default_schema(schema)
            if schema.get("default") in (None, ()) or isinstance(schema["default"], BaseModel | Origin):
                described.pop("default", None)
            return described

    generated = Document.model_json_schema(schema_generator=Generator)
    head = {"$schema": Generator.schema_dialect, "title": generated.pop("title")}
    tables = generated.pop("$defs")
    tables["Prefill"] = {
        "enum": tables["Prefill"]["enum"]
    }  # its key is described, for those who write profiles
    return {**head, **generated, "$defs": tables}


# ------------------------------------------------------------------------------- relations between values


def _conflicts(document: Document, broken: Collection[object] = ()) -> Iterator[Problem]:
    """What is wrong between values that are each right; nothing that rests on tables that are `broken`."""
    for tables, conflicts in _CONFLICTS:
        if not broken or not any(table in broken for table in tables.split()):
            yield from conflicts(document)


def _knee_conflicts(document: Document) -> Iterator[Problem]:
    if "d5" in document.timing.model_fields_set and "knee_tokens" not in document.timing.model_fields_set:
        yield Problem(
            ("timing",), "needs knee_tokens with d5: the tokens beyond which d5 counts", missing=True
        )


def _length_conflicts(document: Document) -> Iterator[Problem]:
    tables: list[Class | Session] = [*document.classes, *document.sessions]
    distinct = len({d for table in tables for d in table.outputs.values.tolist()})
    lengths = sum(c.inputs.values.size * c.outputs.values.size for c in document.classes)
    if lengths > _MOST_PAIRS:
        seen = f"{lengths} pairs of an input and a decode length in all that formulas count"
        yield Problem(("classes",), f"{seen}; must be at most {_MOST_PAIRS}")
    if distinct and (document.plan.segments or 1) > distinct:
        yield Problem(
            ("plan", "segments"),
            f"must be at most the {distinct} distinct decode lengths, not {document.plan.segments}",
        )


def _session_conflicts(document: Document) -> Iterator[Problem]:
    if len(document.missing) == len(PARTS):
        yield Problem((), f"needs one of {', '.join(PARTS.values())} at least", missing=True)
    if document.sessions and document.workload is not None and document.workload.schedule:
        yield Problem(
            ("workload", "schedule"), "not modelled beside [[sessions]], whose turns come after answers"
        )
    for key in ("cv", "trace"):
        if document.sessions and document.workload is not None and key in document.workload.model_fields_set:
            why = "not modelled beside [[sessions]], whose turns come after answers"
            yield Problem(("workload", key), why)
    if document.prefix.hit_curve is not None:
        why = "not beside [prefix] hit_curve, which says already what requests have in common"
        for i, c in enumerate(document.classes):
            for key in ("shared", "reuse"):
                if getattr(c, key) is not None:
                    yield Problem(("classes", i, key), why)
        if document.sessions:
            yield Problem(("sessions", 0), why)
    turns = 0
    for i, one in enumerate(document.sessions):
        if one.rate is None and one.users is None:
            yield Problem(("sessions", i), "needs a rate (sessions/s), or users", missing=True)
        if one.rate is not None and one.users is not None:
            yield Problem(
                ("sessions", i, "users"), "not allowed beside rate: sessions come at random, or of users"
            )
        turns += one.turns.longest
        if turns * document.gpu.block_tokens > _MOST_PAGED:
            seen = f"{turns} turns at most, in blocks of {document.gpu.block_tokens}"
            yield Problem(("sessions", i, "turns"), f"too many for their exact moments: {seen}")


def _layout_conflicts(document: Document) -> Iterator[Problem]:
    gpu = document.gpu
    for i, one in enumerate(gpu.kv):
        bounded = one.kind in (Attention.WINDOW, Attention.CHUNK)
        if bounded and one.window is None:
            yield Problem(("gpu", "kv", i), f"needs window, the tokens of a {one.kind}", missing=True)
        if not bounded and one.window is not None:
            yield Problem(
                ("gpu", "kv", i, "window"), f'goes with kind = "window" or "chunk", not "{one.kind}"'
            )
    try:
        layout = gpu.layout
    except ValueError as error:
        yield Problem(("gpu", "block_tokens" if "block_tokens" in gpu.model_fields_set else "kv"), str(error))
        return
    if layout is None:
        return
    yield from _prefixes_in_common(
        document,
        "not modelled beside layers of several kinds: of windows, chunks and states a prefix cache keeps too little",
    )


def _draft_conflicts(document: Document) -> Iterator[Problem]:
    given = document.speculative
    if given is None:
        return
    for i, (one, following) in enumerate(pairwise(given.accepted), 1):
        if following > one:
            yield Problem(
                ("speculative", "accepted", i),
                f"must be at most {format_number(one)}, like the draft before it, not {format_number(following)}",
            )
    if len(given.accepted) < given.tokens:
        seen = len(given.accepted)
        yield Problem(
            ("speculative", "accepted"),
            f"must say how often each of {given.tokens} drafts is accepted, not of {seen}",
        )
    if document.gpu.prefill is not Prefill.FUSED:
        yield Problem(
            ("gpu", "prefill"), f'must be "fused" beside [speculative], not "{document.gpu.prefill}"'
        )
    if document.timing.d5:
        yield Problem(("timing", "d5"), "not modelled beside [speculative]; verify_time is what drafts cost")
    yield from _prefixes_in_common(document, "not modelled beside [speculative]")


def _prefixes_in_common(document: Document, why: str) -> Iterator[Problem]:
    """Where a profile says that requests have some, and why it must not."""
    for i, c in enumerate(document.classes):
        for key in ("shared", "reuse"):
            if getattr(c, key) is not None:
                yield Problem(("classes", i, key), why)
    if document.sessions:
        yield Problem(("sessions", 0), why)
    if document.prefix.hit_curve is not None:
        yield Problem(("prefix", "hit_curve"), why)


def _fleet_conflicts(document: Document) -> Iterator[Problem]:
    given, gpu = document.fleet, document.gpu
    if given is None:
        return
    if given.replicas is not None:
        for key in ("prefill", "decode", "transfer"):
            if getattr(given, key) is not None:
                yield Problem(("fleet", key), "not allowed beside replicas, which prefill and decode")
        return
    for key, other in (("prefill", "decode"), ("decode", "prefill")):
        if getattr(given, key) is None:
            what = (
                "needs replicas, or prefill and decode" if getattr(given, other) is None else f"needs {key}"
            )
            yield Problem(("fleet",), what, missing=True)
            return
    if gpu.prefill is Prefill.DISAGGREGATED:
        why = (
            'must be "fused" or "inline" beside [fleet] prefill: there it says that prompts arrive ready-made'
        )
        yield Problem(("gpu", "prefill"), f'{why}, not "{gpu.prefill}"')
    if given.transfer is not None and not (gpu.kv_bytes_per_token or gpu.kv):
        why = "needs kv_bytes_per_token beside memory_tokens: what a token takes of the bandwidth"
        yield Problem(("gpu",), why, missing=True)
    if document.speculative is not None:
        yield Problem(("fleet", "prefill"), "not modelled beside [speculative]; give replicas")


def _engine_conflicts(document: Document) -> Iterator[Problem]:
    given, prefill = document.engine, document.gpu.prefill
    if given is None:
        return
    if prefill is not Prefill.FUSED:
        yield Problem(
            ("engine",), f'goes with prefill = "fused", as engines compute prompts, not "{prefill}"'
        )
    for key, engines in _ENGINES_WITH.items():
        if key in given.model_fields_set and given.name not in engines:
            yield Problem(("engine", key), f'goes with name = {_either(engines)}, not "{given.name}"')


def _either(words: Sequence[str]) -> str:
    return " or ".join(f'"{word}"' for word in words)


def _offload_conflicts(document: Document) -> Iterator[Problem]:
    gpu, tier = document.gpu, document.gpu.offload
    if tier is None:
        return
    place = ("gpu", "offload")
    if not gpu.prefix_caching:
        yield Problem(place, "goes with a prefix cache, and prefix_caching = false")
    if gpu.prefill is Prefill.DISAGGREGATED:
        yield Problem(
            place, 'not where prefill = "disaggregated": no prompt is computed that a load would save'
        )
    if document.speculative is not None:
        yield Problem(place, "not modelled beside [speculative]")
    if {one.kind for one in gpu.kv} - {Attention.FULL} or len({one.bytes for one in gpu.kv}) > 1:
        yield Problem(place, "not modelled beside layers of several kinds")
    elif gpu.token_bytes is None:
        why = "needs kv_bytes_per_token beside memory_tokens: what a token takes of the bandwidth"
        yield Problem(("gpu",), why, missing=True)
    if tier.memory is None and tier.memory_tokens is None:
        yield Problem(place, "needs memory, or memory_tokens", missing=True)
    elif tier.memory is not None and tier.memory_tokens is not None:
        yield Problem((*place, "memory_tokens"), "not allowed beside memory, which says it already")
    elif (
        held := gpu.host_tier
    ) is not None and not gpu.block_tokens <= held.memory_tokens <= MAX_CACHE_TOKENS:
        limits = f"{format_tokens(gpu.block_tokens)} to {format_tokens(MAX_CACHE_TOKENS)} tokens"
        key = "memory" if tier.memory_tokens is None else "memory_tokens"
        yield Problem((*place, key), f"must hold {limits}, not {format_tokens(held.memory_tokens)}")


def _table_conflicts(document: Document) -> Iterator[Problem]:
    """Beside layers of several kinds and drafts there is a table of each prompt at each stage."""
    longest, drafts = [c.decode.longest for c in document.classes], document.speculative
    if not longest or not (drafts or document.gpu.kv):
        return
    beside = "[[gpu.kv]]"
    rows = len({n for c in document.classes for n in c.inputs.values.tolist()})
    most, total, what = _LONGEST_TABLED, max(longest), "the longest"
    if drafts is not None:
        beside, rows = "[speculative]", sum(c.inputs.values.size for c in document.classes)
        most, total = _LONGEST_DRAFTED // (len(drafts.accepted) + 1), sum(longest)
        what = "the longest of each class together"
    if total > most:
        limit = f"must be at most {most} beside {beside}"
        yield Problem(("classes",), f"outputs of up to {total} tokens, {what}; {limit}")
    if rows * max(longest) > _MOST_TABLED:
        seen = f"{rows} prompts of up to {max(longest)} tokens"
        limit = f"the product must be at most {format_tokens(_MOST_TABLED)} beside {beside}"
        yield Problem(("classes",), f"{seen}: {limit}")


def _moves_kv(document: Document) -> bool:
    """Whether KV cache goes over a link, so that the bytes of a token count."""
    return document.gpu.offload is not None or (
        document.fleet is not None and document.fleet.transfer is not None
    )


def _memory_conflicts(document: Document) -> Iterator[Problem]:
    gpu, moved = document.gpu, _moves_kv(document)
    if gpu.kv or gpu.kv_blocks is not None:
        for key in ("memory_tokens", "memory", "kv_bytes_per_token"):
            if getattr(gpu, key) is not None:
                yield Problem(("gpu", key), "not allowed beside [[gpu.kv]]; give kv_blocks")
        if gpu.kv_blocks is None:
            yield Problem(("gpu",), "needs kv_blocks, the blocks of the pool, with [[gpu.kv]]", missing=True)
        elif not gpu.kv:
            yield Problem(
                ("gpu", "kv_blocks"),
                "needs [[gpu.kv]], the layers by kind; or give memory_tokens",
                missing=True,
            )
        elif gpu.capacity_tokens > MAX_MEMORY_TOKENS:
            limit = format_tokens(MAX_MEMORY_TOKENS // gpu.block_tokens)
            yield Problem(("gpu", "kv_blocks"), f"must be at most {limit} in blocks of {gpu.block_tokens}")
    elif gpu.memory_tokens is not None:
        if gpu.memory is not None:
            yield Problem(("gpu", "memory"), "not allowed beside memory_tokens, which says it already")
        if gpu.kv_bytes_per_token is not None and not moved:
            why = "not allowed beside memory_tokens, unless KV goes over a link: [fleet] transfer, or [gpu.offload]"
            yield Problem(("gpu", _TOKEN_BYTES), why)
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
    if document.workload is None or document.workload.rate is None:
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
    if document.classes and not document.sessions and all(c.rate == 0 for c in document.classes):
        yield Problem(("classes", 0, "rate"), "must be above 0 in one class at least, not 0 in all")
    shares = [as_written(c.share) for c in document.classes if c.share is not None]
    total = float(sum(shares))
    if shares and len(shares) == len(document.classes) and abs(total - 1) > 1e-9:
        last = len(shares) - 1
        seen = format_number(total, digits=12)
        yield Problem(("classes", last, "share"), f"the shares of all classes must sum to 1, not {seen}")


def _schedule_conflicts(document: Document) -> Iterator[Problem]:
    workload = document.workload
    if workload is None:
        return
    if not workload.schedule:
        if workload.period is not None:
            yield Problem(("workload", "period"), "goes with a [[workload.schedule]], which is not given")
        elif workload.rate is None and not {"cv", "trace"} & workload.model_fields_set:
            yield Problem(("workload", "rate"), "required", missing=True)
        return
    if workload.period is None:
        yield Problem(("workload", "period"), "required where rates have a schedule", missing=True)
    before: float | None = None
    for i, part in enumerate(workload.schedule):
        place = ("workload", "schedule", i)
        yield from _part_conflicts(part, place, len(workload.schedule))
        for key, time in (("at", part.at), ("peak", part.peak)):
            if time is not None and workload.period is not None and time >= workload.period:
                limit = format_seconds(workload.period)
                yield Problem(
                    (*place, key),
                    f"must be before the period ends, less than {limit}, not {format_seconds(time)}",
                )
        if part.at is not None:
            if before is not None and part.at <= before:
                seen = f"{format_seconds(before)}, not {format_seconds(part.at)}"
                yield Problem((*place, "at"), f"must be later than the step before, after {seen}")
            before = part.at
        names = [c.name for c in document.classes]
        for name in part.factors or ():
            if name not in names:
                nearest = did_you_mean(name, names, "classes")
                yield Problem((*place, "factors", name), f"no class has this name; {nearest}")
    steps = [part for part in workload.schedule if part.at is not None]
    for c in document.classes:
        if steps and all(part.factor_of(c.name) == 0 for part in steps):
            yield Problem(
                ("workload", "schedule"), f"class {shown(c.name)} never arrives: factor 0 all the time"
            )


def _part_conflicts(part: Part, place: KeyPath, parts: int) -> Iterator[Problem]:
    if part.amplitude is None:
        if part.peak is not None:
            yield Problem((*place, "peak"), "goes with the amplitude of a sinusoid, which is not given")
        if part.at is None:
            yield Problem((*place, "at"), "required in a step; a sinusoid has an amplitude", missing=True)
        if part.factor is None and part.factors is None:
            yield Problem(place, "needs a factor, or factors of classes", missing=True)
        return
    for key in ("at", "factor", "factors"):
        if getattr(part, key) is not None:
            yield Problem((*place, key), "not allowed beside an amplitude: a step or a sinusoid, not both")
            return
    if parts > 1:
        yield Problem((*place, "amplitude"), f"a sinusoid is a schedule by itself, not one of {parts} tables")


def _class_conflicts(document: Document) -> Iterator[Problem]:
    gpu = document.gpu
    block = gpu.block_tokens
    usable = gpu.capacity_tokens // block * block
    names: set[str] = set()
    kinds: list[tuple[str, Sequence[Class | Session]]] = [
        ("classes", document.classes),
        ("sessions", document.sessions),
    ]
    for kind, tables in kinds:
        for i, table in enumerate(tables):
            if table.name in names:
                yield Problem((kind, i, "name"), f"must be unique, and {shown(table.name)} is taken")
            names.add(table.name)
    if sum(c.reuse is not None for c in document.classes) > _MOST_REUSED:
        yield Problem(("classes",), f"must be at most {_MOST_REUSED} with reuse")
    for i, c in enumerate(document.classes):
        if gpu.prefill is Prefill.INLINE and c.input.shortest == 0:
            yield Problem(("classes", i, "input"), 'must be at least 1 where prefill = "inline", not 0')
        varied = "shortest " if c.input.values.size > 1 else ""
        if c.reuse is not None and varied:
            why = "not modelled where input varies; give input as a number, or use [[sessions]]"
            yield Problem(("classes", i, "reuse"), why)
        for prompt in c.shared or ():
            if prompt.tokens > c.input.shortest:
                limit = f"the {varied}input, {format_tokens(c.input.shortest)} tokens"
                why = f"must be at most {limit}, not {prompt.tokens}"
                if varied:
                    why += "; in [[sessions]] with turns = 1 first is beyond what they share"
                yield Problem(("classes", i, "shared"), why)
    requests = [
        *(
            (
                ("classes", i),
                c.name,
                c.input.longest + (gpu.prefill is not Prefill.INLINE),
                c.input.longest + c.decode.longest,
                f"input {format_tokens(c.input.longest)} + decode {format_tokens(c.decode.longest)}",
            )
            for i, c in enumerate(document.classes)
        ),
        *(
            (
                ("sessions", i),
                one.name,
                one.law.longest,
                one.law.longest,
                f"turn {one.turns.longest}, which carries all before it",
            )
            for i, one in enumerate(document.sessions)
        ),
    ]
    try:
        drafts = None if document.speculative is None else document.speculative.drafts
        replica = gpu.with_drafts(drafts)
    except ValueError:  # as `_layout_conflicts` says
        return
    for place, name, first, last, made_of in requests:
        held = replica.largest_held(first, last, drafts.slots if drafts else 0)
        # Such a request can never finish: an engine that admits it hangs (theory §2, preflight).
        if held > usable > 0:
            yield Problem(
                place,
                f"class {shown(name)} does not fit: its longest request holds {format_tokens(held)} KV tokens "
                f"({made_of}, in blocks of {block}), and memory holds {format_tokens(usable)}",
            )


_TRAFFIC = "gpu classes sessions workload prefix speculative fleet"
# what is looked for between values, and in which tables
_CONFLICTS: tuple[tuple[str, Callable[[Document], Iterator[Problem]]], ...] = (
    ("gpu fleet", _memory_conflicts),
    ("gpu speculative", _layout_conflicts),
    ("gpu timing speculative classes sessions prefix", _draft_conflicts),
    ("gpu speculative fleet", _fleet_conflicts),
    ("gpu engine", _engine_conflicts),
    ("gpu speculative", _offload_conflicts),
    (_TRAFFIC, _table_conflicts),
    ("timing", _knee_conflicts),
    ("classes sessions workload", _rate_conflicts),
    ("classes workload", _schedule_conflicts),
    ("gpu speculative classes sessions", _class_conflicts),
    (f"{_TRAFFIC} timing", _session_conflicts),
    ("classes sessions plan", _length_conflicts),
)

# ---------------------------------------------------------------------------------------------- messages

_TABLES: dict[KeyPath, type[_Table]] = {
    (): Document,
    ("gpu",): Gpu,
    ("gpu", "kv"): Kv,
    ("gpu", "offload"): HostTier,
    ("timing",): _Timing,
    ("timing", "measured"): _Measured,
    ("classes",): Class,
    ("sessions",): Session,
    ("prefix",): _Prefix,
    ("speculative",): Speculation,
    ("fleet",): _Fleet,
    ("engine",): _Engine,
    ("workload",): Workload,
    ("workload", "schedule"): Part,
    ("plan",): _Plan,
    ("slo",): _Slos,
    **dict.fromkeys((("slo", time) for time in _Slos.model_fields), _Bounds),
    ("cost",): _Costs,
    ("gate",): _Gate,
    ("provenance",): _Provenance,
}

# What is allowed, by pydantic's error type.
_ALLOWED = {
    "refused": "{message}",
    "bool_type": "must be true or false, not {value}",
    "int_type": "must be a whole number, not {value}",
    "float_type": "must be a number, not {value}",
    "finite_number": "must be a finite number, not {value}",
    "string_type": "must be a string, not {value}",
    "list_type": "must be a list, not {value}",
    "model_type": "must be a table, not {value}",
    "greater_than_equal": "must be at least {ge}, not {value}",
    "less_than": "must be less than {lt}, not {value}",
    "less_than_equal": "must be at most {le}, not {value}",
    "too_short": "must have at least {min_length}, not {actual_length}",
    "too_long": "must have at most {max_length}, not more",
    "enum": "must be {expected}, not {value}",
    "literal_error": "must be {expected}, not {value}",
}


def _problems(error: ValidationError, document: dict[str, Any]) -> list[Problem]:
    distinct: dict[KeyPath, ErrorDetails] = {}
    unknown = Counter[KeyPath]()
    for e in error.errors(include_url=False):
        if (
            e["type"] == "extra_forbidden"
        ):  # those of a table in the order of the file; there may be a million
            unknown[e["loc"][:-1]] += 1
            if unknown[e["loc"][:-1]] > MOST_PROBLEMS:
                continue
        distinct.setdefault(e["loc"], e)
    found = [_translated(e, document) for e in distinct.values()]
    # a key that a typo hides is not missing
    meant = {(*p.path[:-1], _meant(p.message)) for p in found}
    return [p for p in found if not p.missing or p.path not in meant]


def _meant(message: str) -> str:
    return message.partition("did you mean ")[2].rstrip("?")


def _translated(error: ErrorDetails, document: dict[str, Any]) -> Problem:
    path, context = error["loc"], error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        known = _TABLES[tuple(key for key in path[:-1] if isinstance(key, str))].model_fields
        keys = [field.alias or name for name, field in known.items()]
        return Problem(path, f"unknown key; {did_you_mean(str(path[-1]), keys, 'known here')}")
    if error["type"] == "missing":
        return Problem(path, "required", missing=True)
    # As written: pydantic's own input is already a number where a unit was read.
    value = shown(reduce(getitem, path, cast(Any, document)))
    limits = {k: format_number(v) if isinstance(v, int | float) else v for k, v in context.items()}
    message = _ALLOWED[error["type"]].format(value=value, **limits)
    return Problem((*path, *context.get("inside", ())), message)
