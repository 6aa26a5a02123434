"""Statements and settings of an engine's log, sorted into starts."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvplan.errors import ProfileError
from kvplan.ingest.engines import LOGS, Capacity, EngineLog, Ranks, Setting, ranks_of, settled_block, whole
from kvplan.ingest.observed import ObservedDrafts, of_prefix_cache
from kvplan.model.parallelism import Parallelism
from kvplan.ranges import MAX_MEMORY_TOKENS
from kvplan.units import format_tokens

_START = re.compile("|".join(log.start for log in LOGS if log.start))
_FAILURE = re.compile("|".join(log.failures for log in LOGS if log.failures))
_ENDED = re.compile("|".join(log.ended for log in LOGS if log.ended))
_ERROR = re.compile(r"(?:\w+\.)*\w+(?:Error|Exception): \S")
_MOST_STATED = 256  # statements of a start: more than engines have ranks
_AFTER = 10  # lines after a capacity that may still tell about it
_SHOWN, _REASON = 160, 400  # characters of a statement, and of why a start failed
_BEFORE_MATCH = 60  # of them before what matters, where a line is longer
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_FRACTION = re.compile(r"(?<=:\d\d)[.,]\d+")


@dataclass(frozen=True, slots=True)
class Concurrency:
    tokens: int
    requests: float
    line: int
    text: str


@dataclass(slots=True)
class Statement:
    """One statement of a capacity; `prefix` is what stands before it, to the second."""

    kind: Capacity
    amount: int
    ranks: Ranks
    prefix: str
    line: int
    text: str
    cut_off: bool = False  # the file ends with its number
    concurrency: Concurrency | None = None

    @property
    def replica(self) -> Ranks:
        """Which data-parallel engine says it; empty where there is one."""
        return tuple(rank for rank in self.ranks if rank[0] in ("DP", "Engine"))


@dataclass(slots=True)
class StartUp:
    log: EngineLog
    statements: list[Statement] = field(default_factory=list)
    stated: dict[str, str] = field(default_factory=dict)
    hit_rate: tuple[float, int] | None = None  # the last one, percent, and its line
    computed: int = 0  # prompt tokens
    cached: int = 0
    drafted: int = 0  # tokens
    accepted: tuple[float, ...] = ()  # of them by position, times drafted tokens
    remarks: dict[str, str] = field(default_factory=dict)  # by their text without numbers: the last counts

    def includes(self, new: Statement) -> bool:
        """Tell whether a statement is of another rank or another pool of this start, and not of a later start."""
        if len(self.statements) >= _MOST_STATED:  # each is compared with all before it
            return True
        if new.kind.of_pool:  # one for each rank and model; the total comes after all of them
            return all(s.kind.of_pool or s.replica != new.replica for s in self.statements)
        others = [s for s in self.statements if not s.kind.of_pool]
        same = [s for s in others if s.ranks == new.ranks]
        # Workers that do not say who they are state it one after the other, in one second.
        repeated = not same or (same[-1].prefix == new.prefix and _CLOCK.search(new.prefix) is not None)
        return repeated and all(s.kind is new.kind for s in others)

    def limit(self, name: str) -> int | None:
        """Read a number, unless it is beyond all that a profile may say and so limits nothing."""
        number = whole(self.stated.get(name, "0"))
        return number if 0 < number <= MAX_MEMORY_TOKENS else None

    @property
    def settings(self) -> dict[str, str]:
        """Settings in words; "auto" where the arguments leave them to the engine."""
        default = dict.fromkeys(Setting.OF_TIMES, "auto") if Setting.ARGUMENTS in self.stated else {}
        names = (*Setting.OF_TIMES, Setting.VERSION)
        return default | {name: self.stated[name] for name in names if name in self.stated}

    @property
    def parallelism(self) -> Parallelism | None:
        """How GPUs share the model; None where nothing says it.

        Where attention has ranks of its own, they are of the GPUs that share the rest: all, if none says how many.
        """
        if not any(name in self.stated for name in Setting.RANKS):
            return None
        tensor, data, expert, pipeline, context = (self.limit(name) or 1 for name in Setting.RANKS)
        if (attention := self.stated.get(Setting.ATTENTION)) is not None:
            data = (self.limit(Setting.DP) or tensor) if attention == "True" else 1
            tensor = max(tensor // data, 1)
        if self.stated.get(Setting.ALL_EXPERTS) == "True":
            expert = tensor * data
        return Parallelism(tensor, data, expert, pipeline, context)

    @property
    def absent(self) -> tuple[str, ...]:
        if Setting.ARGUMENTS not in self.stated:
            return ()
        limits = (name for name in (Setting.SEQS, Setting.BATCHED) if name not in self.stated)
        return (*limits, *(["gpus"] if self.parallelism is None else []))

    @property
    def settled_block(self) -> int | None:
        """The size of blocks by how many requests fit, where no line states it."""
        if Setting.BLOCK in self.stated:
            return None
        said = ((s.amount, s.concurrency) for s in self.statements if s.kind.in_blocks and s.concurrency)
        sizes = (settled_block(amount, some.tokens, some.requests) for amount, some in said)
        return next(filter(None, sizes), None)

    def block_tokens(self, statement: Statement) -> int:
        """Tell the size of its blocks, stated, settled or the engine's default; 0 where there is none of these."""
        known = self.limit(Setting.BLOCK) or self.settled_block
        return known or (0 if statement.kind.of_any_size else self.log.block_tokens)

    def whole_block(self, memory: int) -> int | None:
        """Tell the size of blocks that is stated beside a capacity; None where that is no multiple of it."""
        block = self.limit(Setting.BLOCK)
        return None if block and self.log.whole_blocks and memory % block else block

    def tokens(self, statement: Statement) -> int:
        return statement.amount * (self.block_tokens(statement) if statement.kind.in_blocks else 1)

    def telling(self) -> list[Statement]:
        """Choose the statements that count: totals before pools, and of the pools the last of each rank."""
        if self.log.largest_pool:
            return [max(self.statements, key=self.tokens)]
        totals = [s for s in self.statements if not s.kind.of_pool]
        return totals or list({s.ranks: s for s in self.statements}.values())

    def chosen(self) -> Statement:
        return min(reversed(self.telling()), key=self.tokens)

    def count(self, number: int, text: str) -> None:
        log = self.log
        for form, remark in log.remarks:
            if said := form.search(text):
                self.remarks[remark] = remark.format(*(f"{whole(amount):,}" for amount in said.groups()))
        if log.hit_rate and (rate := log.hit_rate.search(text)):
            self.hit_rate = float(rate[1]), number
        if log.computed_and_found and (batch := log.computed_and_found.search(text)):
            self.computed += whole(batch[1])
            self.cached += whole(batch[2])
        if log.accepted and (drafts := log.accepted.search(text)):
            drafted, shares = whole(drafts[1]), [float(share) for share in drafts[2].split(", ")]
            # of another number of drafts: what came before does not count
            if len(shares) != len(self.accepted):
                self.drafted, self.accepted = 0, (0.0,) * len(shares)
            self.drafted += drafted
            self.accepted = tuple(a + drafted * b for a, b in zip(self.accepted, shares, strict=True))

    @property
    def hits(self) -> Iterator[str]:
        if self.hit_rate is not None:
            percent, line = self.hit_rate
            yield of_prefix_cache(percent / 100, f"stated last in line {line:,}")
        elif total := self.computed + self.cached:
            counted = f"{format_tokens(self.cached)} of {format_tokens(total)}"
            yield of_prefix_cache(self.cached / total, f"{counted}, by its lines of prefill batches")

    @property
    def drafts(self) -> ObservedDrafts | None:
        if not self.drafted:
            return None
        stated = f"{format_tokens(self.drafted)} tokens drafted, by its lines of metrics"
        return ObservedDrafts.of_shares([share / self.drafted for share in self.accepted], stated)


class Starts:
    """Sorts statements and settings of one service into starts."""

    def __init__(self) -> None:
        self.starts: list[StartUp] = []
        # how telling a line is, its number, and why a start ended
        self.failure: tuple[int, int, str] | None = None
        self.begun = 0  # the line of a start, after the last capacity
        self._start = 0  # that of the last start
        self._serves = False
        self._text, self._repeats = "", 0  # the line before, and how often it came again
        self._waiting: dict[tuple[str, str], str] = {}  # settings of the start that comes, by engine and name

    def ran(self, number: int, text: str) -> None:
        if self.starts and not self.begun:
            self.starts[-1].count(number, text)
            self._serves = True

    def line(self, number: int, text: str) -> None:
        self._repeats = self._repeats + 1 if text == self._text else 0
        self._text = text
        if self._repeats > _MOST_STATED:
            return
        if _START.search(text):
            if not self.begun or self._waiting or self.failure:  # else it is another line of the same start
                self.begun = self._start = number
            self._anew()
            # a version stands in a line before those of the arguments
            self._waiting = {key: said for key, said in self._waiting.items() if key[1] == Setting.VERSION}
        settings = _settings(number, text)
        statement = _statement(number, text)
        last = self._stated_before(number)
        self._waiting.update(settings)
        if statement is not None:
            self._state(*statement)
        elif last and last.log.limits_follow:
            self._give(last, settings)
        if self.starts and not self.begun:
            self.starts[-1].count(number, text)
        if not self._serves:
            self._fail(number, text)
        last = self._stated_before(number)
        if last and last.log.concurrency and (match := last.log.concurrency.search(text)):
            ranks, shown = ranks_of(text[: match.start()]), _shortened(text, match.start())
            for stated in last.statements:  # engines start side by side, and so do their lines
                if stated.ranks == ranks:
                    stated.concurrency = Concurrency(whole(match[1]), float(match[2]), number, shown)

    def refuse_failure(self, source: str) -> None:
        """Refuse a log whose last start failed: no engine serves as an earlier one did."""
        if self.failure is None:
            return
        _, line, reason = self.failure
        before = self.starts if self.begun else self.starts[:-1]
        begun = f", from line {self._start:,} on," if self._start else ""
        message = f"the last start{begun} failed, so that nothing serves: {reason}"
        if before and self._start:
            used = before[-1].chosen()
            message += (
                f"; the start before it states {format_tokens(before[-1].tokens(used))} tokens in line {used.line:,}: "
                f"to read that, head -n {self._start - 1} {source} | kvplan import -"
            )
        raise ProfileError(source, message, line=line)

    def _anew(self) -> None:
        self.failure, self._serves = None, False

    def _fail(self, number: int, text: str) -> None:
        match, telling = _FAILURE.search(text), 3
        if match is None:
            match, telling = _ENDED.search(text), 1
        if match is None and self.failure:
            match, telling = _ERROR.search(text), 2
        if match is not None and telling > (self.failure or (0,))[0]:
            self.failure = telling, number, _shortened(text[match.start() :], 0, _REASON)

    def _stated_before(self, number: int) -> StartUp | None:
        """Return the start that stated a capacity in this line or right before it."""
        if self.begun or not self.starts:
            return None
        last = self.starts[-1]
        return last if number - last.statements[-1].line <= _AFTER else None

    def _state(self, log: EngineLog, statement: Statement) -> None:
        last = self.starts[-1] if self.starts and not self.begun else None
        if last is None or last.log is not log or not last.includes(statement):
            self.starts.append(StartUp(log))
            self._anew()
            self._start = self._start if self.begun else 0
        self.begun = 0
        statements = self.starts[-1].statements
        del statements[_MOST_STATED - 1 :]
        statements.append(statement)
        self._give(self.starts[-1], self._waiting)
        if not log.limits_follow:  # else of a start in two phases the second has them too
            self._waiting = {key: value for key, value in self._waiting.items() if key[0] != log.engine}

    @staticmethod
    def _give(start: StartUp, settings: dict[tuple[str, str], str]) -> None:
        start.stated.update({name: value for (of, name), value in settings.items() if of == start.log.engine})


def _settings(number: int, text: str) -> dict[tuple[str, str], str]:
    settings = {
        (log.engine, name): match[1]
        for log in LOGS
        for name, form in log.limits
        if (match := form.search(text))
    }
    for log in LOGS:
        for name, said in ((Setting.UNIFIED, log.unified), (Setting.ARGUMENTS, log.arguments)):
            if said and said.search(text):
                settings[log.engine, name] = str(number)
    return settings


def _statement(number: int, text: str) -> tuple[EngineLog, Statement] | None:
    """Read the capacity that a line states, and whose; that of a draft model is another model's."""
    if "Draft model" in text:
        return None
    for log in LOGS:
        for kind in log.capacities:
            if match := kind.form.search(text):
                before, shown = text[: match.start()], _shortened(text, match.start())
                prefix = _FRACTION.sub("", before)
                amount = math.prod(map(whole, match.groups()))
                cut_off = match.end() == len(text) and text[-1].isdigit()
                return log, Statement(kind, amount, ranks_of(before), prefix, number, shown, cut_off)
    return None


def _shortened(text: str, place: int, most: int = _SHOWN) -> str:
    """Keep of a line the part about what matters, without what cannot be printed."""
    start = 0 if len(text) <= most else max(0, place - _BEFORE_MATCH)
    part = text[start : start + most]
    plain = " ".join("".join(c if c.isprintable() else " " for c in part).split())
    return f"{'…' if start else ''}{plain}{'…' if len(text.rstrip()) > start + most else ''}"
