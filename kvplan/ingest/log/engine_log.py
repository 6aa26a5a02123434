"""What an engine says about itself as it starts: its KV capacity, and the limits that come with it.

============  ======================================================================================================
vLLM          ``# GPU blocks: 1478, # CPU blocks: 2048`` (V0, later ``# cuda blocks``), ``# GPU blocks: 1381`` (V1); the
              block size is that of the engine arguments in the log
vLLM 0.7.3    ``GPU KV cache size: 446,320 tokens``, alone, or with ``Maximum concurrency for 8,192 tokens per request``
SGLang        ``max_total_num_tokens=2086558, chunked_prefill_size=8192, …, max_running_requests=33``; where that is
              missing ``KV Cache is allocated. … #tokens: 60000, …, page_size=1``
TensorRT-LLM  ``Allocated 78.30 GiB for max tokens in paged KV cache (3731744)``, before it ``Number of tokens per
              block: 32``; in old versions ``Using 132608 tokens in paged KV cache``
TGI           ``Setting max batch total tokens to 446320``
============  ======================================================================================================

A log may hold several starts: the last one counts. Within a start every rank may state a capacity: the smallest counts,
since a request needs its KV on all of them. Data-parallel engines are replicas of their own; of them too the smallest
is the careful choice. A limit counts only where it belongs to the same start as the capacity.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.text_file import lines_of
from kvplan.units import format_number, format_percent, format_tokens

_VLLM, _SGLANG, _TENSORRT, _TGI = "vLLM", "SGLang", "TensorRT-LLM", "TGI"
_BLOCK, _SEQS, _BATCHED = "block_tokens", "max_num_seqs", "max_num_batched_tokens"
_DEFAULT_BLOCK = 16  # vLLM's on GPUs
_ABSURD = 10**12  # tokens
_AFTER = 10  # lines after a capacity that may still tell about it
_OFF = 0.02  # of the capacity: rounding and half-filled blocks explain less
_SHOWN = 160  # characters of a statement
_BEFORE_MATCH = 60  # of them before what matters, where a line is longer
_LISTED = 8  # earlier statements in a note

# A line without any of these says nothing here; looking for them is far cheaper than the expressions below.
_WORDS = (
    *(
        "GPU KV cache size",
        " blocks: ",
        "Maximum concurrency",
        "max_num_",
        "max-num-",
        "block_size",
        "block-size",
    ),
    *("block size to", "max_total_num_tokens=", "KV Cache is allocated", "server_args=", "tokens per block"),
    *(
        "in paged KV cache",
        "TRTGptModel max",
        "max batch total tokens",
        "API server version",
        "TensorRT-LLM version",
    ),
)
_NUMBER = r"(-?\d[\d,]*)"
_CAPACITY = {
    _VLLM: (
        re.compile(rf"GPU KV cache size: {_NUMBER} tokens"),
        re.compile(rf"\b(?:GPU|cuda|rocm|xpu|hpu|tpu|neuron) blocks: {_NUMBER}", re.IGNORECASE),
    ),
    _SGLANG: (
        re.compile(rf"(?<![\w.])max_total_num_tokens={_NUMBER}"),
        re.compile(rf"KV Cache is allocated\..*?#tokens: {_NUMBER}"),
    ),
    _TENSORRT: (
        re.compile(rf"for max tokens in paged KV cache \({_NUMBER}\)"),
        re.compile(rf"Using {_NUMBER} tokens in paged KV cache"),
    ),
    _TGI: (re.compile(rf"Setting max batch total tokens to {_NUMBER}"),),
}
_BLOCKS = _CAPACITY[_VLLM][1]
_TOTAL, _POOL = _CAPACITY[_SGLANG]


def _argument(name: str) -> re.Pattern[str]:
    """``name=1``, ``'name': 1``, ``--name 1``; not as the end of a longer name."""
    return re.compile(rf"(?<![\w-])(?:--)?{name.replace('_', '[_-]')}['\"]?\s?[:= ]\s?['\"]?(\d+)")


_LIMITS: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    (_VLLM, _BLOCK, _argument("block_size")),
    (_VLLM, _BLOCK, re.compile(r"Setting attention block size to (\d+) tokens")),
    (_VLLM, _SEQS, _argument("max_num_seqs")),
    (_VLLM, _BATCHED, _argument("max_num_batched_tokens")),
    (_SGLANG, _BLOCK, _argument("page_size")),
    (_SGLANG, _SEQS, _argument("max_running_requests")),
    (_SGLANG, _BATCHED, _argument("max_prefill_tokens")),
    (
        _SGLANG,
        _BATCHED,
        _argument("chunked_prefill_size"),
    ),  # where it is not off, with -1, it is the tighter one
    (_TENSORRT, _BLOCK, re.compile(r"Number of tokens per block: (\d+)")),
    (_TENSORRT, _SEQS, re.compile(r"(?:TRTGptModel maxBatchSize: |(?<!\w)max_batch_size=)(\d+)")),
    (_TENSORRT, _BATCHED, re.compile(r"(?:TRTGptModel maxNumTokens: |(?<!\w)max_num_tokens=)(\d+)")),
)
_START = re.compile(r"vLLM API server version|\bserver_args=|TensorRT-LLM version")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: (\d+(?:\.\d+)?)x")
_RANK = re.compile(
    r"(?:(?<![A-Za-z])(DP|TP|PP|EP|rank)[ :=]?|(Engine)(?:Core)?[ _](?=\d)|\[\d+,(?=\d+\]<std))(\d+)"
)
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_FRACTION = re.compile(r"(?<=:\d\d)[.,]\d+")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """KV capacity of one engine, and what else its log limits.

    Attributes
    ----------
    source : str
        The file.
    engine : str
        "vLLM", "SGLang", "TensorRT-LLM" or "TGI".
    memory_tokens : int
        KV capacity, tokens.
    block_tokens : int or None
        Tokens in a block. None: the log does not say.
    max_num_seqs, max_num_batched_tokens : int or None
        Requests that run at once; tokens computed in an iteration. None: this start does not say.
    line : int
        Of the statement used, counted from 1.
    stated_in : str
        That line, shortened.
    sha256 : str
        Of the file; empty for lines from elsewhere.
    notes : tuple of str
        What was assumed, what else the log says, and what does not fit.
    """

    source: str
    engine: str
    memory_tokens: int
    block_tokens: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    line: int
    stated_in: str
    sha256: str
    notes: tuple[str, ...]


def read_engine_log(path: Path) -> EngineLimits:
    """The last KV capacity that a log states, which may be compressed; bytes that are not UTF-8 do no harm.

    Parameters
    ----------
    path : Path

    Raises
    ------
    UsageError
        The file cannot be read, or states no capacity.
    ProfileError
        The capacity is none at all, or absurd; with its line.
    """
    with lines_of(path, errors="replace") as lines:
        found = parse_engine_log(lines, lines.source)
    return replace(found, sha256=lines.sha256)


def parse_engine_log(lines: Iterable[str], source: str, *, sha256: str = "") -> EngineLimits:
    """The last KV capacity in some lines; see `read_engine_log`.

    Parameters
    ----------
    lines : iterable of str
    source : str
        What messages call them.
    sha256 : str
        Of where they come from.

    Raises
    ------
    UsageError
        No line states a capacity.
    ProfileError
        The capacity is none at all, or absurd; with its line.

    Examples
    --------
    >>> found = parse_engine_log(["INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381"], "serve.log")
    >>> found.engine, found.memory_tokens, found.block_tokens, found.notes
    ('vLLM', 22096, 16, ("the log states no block size; vLLM's default of 16 tokens is assumed",))
    """
    reader = _Reader()
    for number, line in _numbered(lines):
        if any(word in line for word in _WORDS):
            reader.line(number, _ESCAPE.sub("", line) if "\x1b" in line else line)
    if not reader.starts:
        raise UsageError(
            f"{source}: states no KV capacity; looked for vLLM's 'GPU KV cache size: … tokens' and '# GPU blocks: …', "
            "SGLang's 'max_total_num_tokens=…' and 'KV Cache is allocated. #tokens: …', TensorRT-LLM's '… tokens in "
            "paged KV cache', TGI's 'Setting max batch total tokens to …'"
        )
    return _limits(reader.starts, source, sha256)


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines as editors count them: a lone carriage return, of a progress bar, ends none."""
    number = 1
    for line in lines:
        yield number, line
        number += not line.endswith("\r")


@dataclass(slots=True)
class _Statement:
    """One statement of a capacity; `prefix` is what stands before it, to the second."""

    form: re.Pattern[str]
    amount: int
    ranks: tuple[tuple[str, str], ...]
    prefix: str
    line: int
    text: str
    concurrency: tuple[int, float] | None = None

    @property
    def replica(self) -> tuple[tuple[str, str], ...]:
        """Which data-parallel engine says it; empty where there is one."""
        return tuple(rank for rank in self.ranks if rank[0] in ("DP", "Engine"))


@dataclass(slots=True)
class _StartUp:
    """What one start of an engine states."""

    engine: str
    statements: list[_Statement] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)

    def includes(self, new: _Statement) -> bool:
        """Whether a statement is of another rank or another pool of this start, and not of a later start."""
        if new.form is _POOL:  # one for each rank and model; the total comes after all of them
            return all(s.form is _POOL or s.replica != new.replica for s in self.statements)
        others = [s for s in self.statements if s.form is not _POOL]
        same = [s for s in others if s.ranks == new.ranks]
        # Workers that do not say who they are state it one after the other, in one second.
        repeated = not same or (same[-1].prefix == new.prefix and _CLOCK.search(new.prefix) is not None)
        return repeated and all(s.form is new.form for s in others)

    @property
    def block_tokens(self) -> int:
        return self.limits.get(_BLOCK, _DEFAULT_BLOCK)

    def tokens(self, statement: _Statement) -> int:
        return statement.amount * (self.block_tokens if statement.form is _BLOCKS else 1)

    def telling(self) -> list[_Statement]:
        """The statements that count: totals before pools, and of the pools the last of each rank."""
        totals = [s for s in self.statements if s.form is not _POOL]
        return totals or list({s.ranks: s for s in self.statements}.values())

    def chosen(self) -> _Statement:
        return min(reversed(self.telling()), key=self.tokens)


class _Reader:
    """Sorts statements and limits into starts."""

    def __init__(self) -> None:
        self.starts: list[_StartUp] = []
        self._waiting: dict[tuple[str, str], int] = {}  # limits of the start that comes
        self._begun = False  # a start, after the last capacity

    def line(self, number: int, text: str) -> None:
        if _START.search(text):
            self._begun = True
            self._waiting.clear()
        limits = {(engine, name): _whole(m[1]) for engine, name, form in _LIMITS if (m := form.search(text))}
        statement = _statement(number, text)
        if statement is not None:
            self._waiting.update(limits)
            self._state(*statement)
        elif self._follows(_TENSORRT, number) and any(engine == _TENSORRT for engine, _ in limits):
            self._give(self.starts[-1], limits)
        else:
            self._waiting.update(limits)
        if (found := _CONCURRENCY.search(text)) and self._follows(_VLLM, number):
            ranks = _ranks(text[: found.start()])
            for stated in self.starts[-1].statements:  # engines start side by side, and so do their lines
                if stated.ranks == ranks:
                    stated.concurrency = _whole(found[1]), float(found[2])

    def _follows(self, engine: str, number: int) -> bool:
        """Whether a line comes right after a capacity of this engine."""
        if self._begun or not self.starts or self.starts[-1].engine != engine:
            return False
        return number - self.starts[-1].statements[-1].line <= _AFTER

    def _state(self, engine: str, statement: _Statement) -> None:
        last = self.starts[-1] if self.starts and not self._begun else None
        if last is None or last.engine != engine or not last.includes(statement):
            self.starts.append(_StartUp(engine))
        self._begun = False
        self.starts[-1].statements.append(statement)
        self._give(self.starts[-1], self._waiting)
        self._waiting = {key: value for key, value in self._waiting.items() if key[0] != engine}

    @staticmethod
    def _give(start: _StartUp, limits: dict[tuple[str, str], int]) -> None:
        start.limits.update(
            {name: value for (of, name), value in limits.items() if of == start.engine and value}
        )


def _statement(number: int, text: str) -> tuple[str, _Statement] | None:
    """The capacity that a line states, and whose; that of a draft model is another model's."""
    if "Draft model" in text:
        return None
    for engine, forms in _CAPACITY.items():
        for form in forms:
            if found := form.search(text):
                before = text[: found.start()]
                shown = _shortened(text, found.start())
                prefix = _FRACTION.sub("", before)
                return engine, _Statement(form, _whole(found[1]), _ranks(before), prefix, number, shown)
    return None


def _ranks(prefix: str) -> tuple[tuple[str, str], ...]:
    """Who writes a line: ``(EngineCore_DP0 pid=7)`` is (("DP", "0"),)."""
    return tuple((m[1] or m[2] or "rank", m[3]) for m in _RANK.finditer(prefix))


def _whole(digits: str) -> int:
    """A number with thousands separators; one too long to be meant is only known to be large."""
    plain = digits.replace(",", "")
    return int(plain) if len(plain) <= 18 else 10**18


def _shortened(text: str, place: int) -> str:
    """A line without what cannot be printed, about the part that matters."""
    start = 0 if len(text) <= _SHOWN else max(0, place - _BEFORE_MATCH)
    part = text[start : start + _SHOWN]
    plain = " ".join("".join(c if c.isprintable() else " " for c in part).split())
    return f"{'…' if start else ''}{plain}{'…' if len(text.rstrip()) > start + _SHOWN else ''}"


def _limits(starts: list[_StartUp], source: str, sha256: str) -> EngineLimits:
    start = starts[-1]
    used = start.chosen()
    memory = start.tokens(used)
    if not 0 < memory <= _ABSURD:
        seen = f"a KV capacity of {format_tokens(memory)} tokens" if memory <= 0 else "an absurd KV capacity"
        message = f"{seen}; must be at least 1 and at most {format_tokens(_ABSURD)}: {used.text}"
        raise ProfileError(source, message, line=used.line)
    blocks = used.form is _BLOCKS
    return EngineLimits(
        source=source,
        engine=start.engine,
        memory_tokens=memory,
        block_tokens=start.block_tokens if blocks else start.limits.get(_BLOCK),
        max_num_seqs=start.limits.get(_SEQS),
        max_num_batched_tokens=start.limits.get(_BATCHED),
        line=used.line,
        stated_in=used.text,
        sha256=sha256,
        notes=tuple(_notes(starts, used)),
    )


def _notes(starts: list[_StartUp], used: _Statement) -> Iterator[str]:
    start = starts[-1]
    if used.form is _BLOCKS and _BLOCK not in start.limits:
        yield f"the log states no block size; vLLM's default of {_DEFAULT_BLOCK} tokens is assumed"
    if len(starts) > 1:
        yield _earlier(starts, used)
    telling = start.telling()
    amounts = sorted(start.tokens(s) for s in telling)
    if amounts[0] != amounts[-1]:
        yield (
            f"{len(telling)} ranks of this start state from {format_tokens(amounts[0])} to "
            f"{format_tokens(amounts[-1])} tokens; the smallest counts"
        )
    if used.form is _POOL and len(start.statements) > len(telling):
        yield "a rank states several KV pools; its last one counts"
    replicas = {s.replica for s in telling}
    if len(replicas) > 1:
        yield f"{len(replicas)} data-parallel engines; this is the capacity of one"
    if used.concurrency is not None:
        length, times = used.concurrency
        memory = start.tokens(used)
        # The factor is rounded to two digits, which matters where it is small.
        if abs(length * times - memory) > _OFF * memory + 0.005 * length:
            yield (
                f"the log's maximum concurrency, {format_number(times, 6)} times {format_tokens(length)} tokens, makes "
                f"{format_tokens(length * times)} tokens, {format_percent(length * times / memory - 1, signed=True)}"
                " of the capacity; some layers may hold less than the whole context, or blocks another size"
            )


def _earlier(starts: list[_StartUp], used: _Statement) -> str:
    """That a file states several capacities, and which."""
    before = [(start.tokens(s), s.line) for start in starts[:-1] for s in [start.chosen()]]
    listed = [f"{format_tokens(tokens)} tokens in line {line:,}" for tokens, line in before[-_LISTED:]]
    if len(before) > _LISTED:
        listed.insert(0, "…")
    return (
        f"{len(starts)} KV capacities are stated one after the other; the last, in line {used.line:,}, counts; "
        f"before it: {', '.join(listed)}"
    )
