"""Profiles: find and read the TOML file that describes a replica and its traffic; turn it into a model.

Every refusal is a `ProfileError` with the line and the key path of the first thing that is wrong, and the others.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import tomli

from kvplan.engine import EngineName
from kvplan.errors import ProfileError, did_you_mean, shown
from kvplan.model import ArrivalProcess, MeasuredRange, Plan, Provenance, ServingModel, Timing
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.slo import FIGURES, TIMES, Slo
from kvplan.profile import schema, tables
from kvplan.profile.positions import KeyPath, line_at, offsets, written
from kvplan.profile.relations import MOST_PROBLEMS, Problem
from kvplan.profile.writing import document_text
from kvplan.units import format_seconds

DEFAULT_PROFILE = "llama-3.1-8b-rtx4090"
MAX_BYTES = 10_000_000
MAX_LINES = 1_000_000
_SUPPLIED_BY = {
    "gpu": "kvplan import LOG reads it, import --model M --gpu G estimates it",
    "timing": "kvplan import RESULT... measures it, import --model M --gpu G estimates it",
    "classes": "kvplan import REQUESTS reads them, kvplan plan takes --rate, --in and --out, or write them",
}


@dataclass(frozen=True)
class Profile:
    """A checked profile.

    Attributes
    ----------
    source
        Where it came from: file name, ``<stdin>``, or the name of a shipped profile.
    folder
        Where the files lie that it refers to.
    sha256, text
        Of the bytes read; the TOML text, line ends as ``\\n``. Of one made of tables: as it is written.
    tables
        The profile as written: tables, lists, numbers and text; not to be changed.
    requirements, accepted
        ``[gate] require`` as written, and the parts of which the gate may pass assumptions.
    known, missing
        The model, None where a part of it is missing: gpu, timing, classes.
    """

    name: str
    source: str
    folder: Path
    sha256: str
    text: str
    tables: Mapping[str, Any]
    plan: Plan
    requirements: tuple[str, ...]
    accepted: tuple[str, ...]
    known: ServingModel | None
    missing: tuple[str, ...]
    provenance: Provenance

    @property
    def trace(self) -> Path | None:
        """The file of ``[workload] trace``."""
        name = self.tables.get("workload", {}).get("trace")
        return None if name is None else self.folder / name

    @property
    def model(self) -> ServingModel:
        """Replica, timing and traffic.

        Raises
        ------
        ProfileError
            One of them is missing; with what supplies it.
        """
        if self.known is None:
            raise ProfileError(self.source, "; ".join(map(supply, self.missing)))
        return self.known

    def error(self, message: str, *path: str | int) -> ProfileError:
        """Refuse one key, such as ``"gate", "require", 0``, with its line; for what only later stages can judge."""
        return ProfileError(self.source, message, key=written(path), line=self.line(*path))

    def line(self, *path: str | int) -> int:
        """Line of a key, or of the nearest table around it, counted from 1."""
        (offset,) = offsets(self.text, [path])
        return line_at(self.text, offset)

    def with_slos(self, slos: Iterable[Slo]) -> "Profile":
        """Return the profile with further objectives, which take the place of its own on the same figure."""
        every = {slo.key: slo for slo in (*self.plan.slos, *slos)}
        return replace(self, plan=replace(self.plan, slos=tuple(every.values())))

    def changed(self, values: Mapping[KeyPath, object]) -> "Profile":
        """Return the profile with other values, as TOML gives them, at these keys; None takes a key away.

        A trace that was read for it stays, where it still refers to one.

        Raises
        ------
        ProfileError
            The values are not allowed; without a line, as they are in no file.

        Examples
        --------
        >>> from io import BytesIO
        >>> profile = load_profile("tool-calls-h100", stdin=BytesIO())
        >>> profile.changed({("classes", 0, "rate"): 40.0}).model.total_rate_rps
        40.0
        """
        profile = from_tables(with_values(self.tables, values), self.source, self.folder)
        if self.known is None or self.known.arrivals.trace is None or profile.trace is None:
            return profile
        arrivals = replace(profile.model.arrivals, trace=self.known.arrivals.trace)
        return replace(profile, known=replace(profile.model, arrivals=arrivals))


def supply(part: str) -> str:
    """Say that a part of a profile is missing, and what supplies it."""
    return f"no {schema.PARTS[part]}: {_SUPPLIED_BY[part]}"


def with_values(tables: Mapping[str, Any], values: Mapping[KeyPath, object]) -> dict[str, Any]:
    """Copy tables, with other values at paths that need not be there; None takes away. What is on no path is shared.

    >>> with_values({"classes": [{"rate": 1}], "cost": {}}, {("classes", 0, "rate"): 2, ("cost",): None})
    {'classes': [{'rate': 2}]}
    """
    copy = {**tables}
    for path, value in values.items():
        copy = _with_value(copy, path, value)
    return copy


def _with_value(table: Any, path: KeyPath, value: object) -> Any:
    first, *rest = path
    copy: Any = table.copy()
    if rest:
        inner = table.get(first, {}) if isinstance(table, dict) else table[first]
        copy[first] = _with_value(inner, tuple(rest), value)
    elif value is None:
        copy.pop(first, None)
    else:
        copy[first] = value
    return copy


# ----------------------------------------------------------------------------------------------- files


def shipped_profiles() -> dict[str, Path]:
    """Shipped profiles by name: beside the package in a checkout, inside it once installed."""
    package = Path(__file__).parent.parent
    folders = (package / "profiles", package.parent / "profiles")
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def starter() -> str:
    """Return a commented profile, complete and valid, to edit."""
    return (Path(__file__).parent / "starter.toml").read_text("utf-8")


def listing() -> str:
    """List shipped profiles, sorted: the name, and below it the comment that begins its file.

    >>> print(*listing().splitlines()[:2], sep="\\n")
    agents-collapse
      Agents whose prefix cache one burst can empty for good
    """
    lines = []
    for name, path in sorted(shipped_profiles().items()):
        about = path.read_text("utf-8").partition("\n")[0].removeprefix("#").strip().removesuffix(".")
        lines += [f"{name} (default)" if name == DEFAULT_PROFILE else name, f"  {about}"]
    return "".join(f"{line}\n" for line in lines)


def shipped_text(name: str) -> str:
    """Return the text of a shipped profile as it is; or raise a `ProfileError` that names the nearest."""
    shipped = shipped_profiles()
    if name not in shipped:
        quoted = name if name.isprintable() and 0 < len(name) <= 100 else repr(name[:100])
        nearest = did_you_mean(name, shipped, "there are")
        raise ProfileError(quoted, f"no shipped profile of that name; {nearest}")
    return shipped[name].read_bytes().decode()


def load_profile(reference: str | None, *, stdin: BinaryIO) -> Profile:
    """Read and check a profile.

    Parameters
    ----------
    reference
        A path, ``-`` for standard input, or the name of a shipped profile; a path that exists wins over a
        shipped name. None is the shipped `DEFAULT_PROFILE`.
    stdin : binary file
        Read only where `reference` is ``-``.

    Raises
    ------
    ProfileError
        The profile cannot be found, read or used.
    """
    data, source = read_reference(reference, stdin=stdin)
    return parse_profile(data, source, Path() if reference in (None, "-") else Path(reference).parent)


def read_reference(reference: str | None, *, stdin: BinaryIO) -> tuple[bytes, str]:
    """Return the bytes of a reference such as that of `load_profile`, and their name in messages."""
    if reference == "-":
        return _read(stdin, "<stdin>"), "<stdin>"
    name = DEFAULT_PROFILE if reference is None else reference
    if reference is None or not os.path.lexists(name):
        shipped = shipped_profiles()
        if name not in shipped:
            nearest = did_you_mean(name, shipped, "shipped profiles")
            raise ProfileError(_source(name), f"neither a file nor a shipped profile; {nearest}")
        return read_file(str(shipped[name]), _source(name))
    return read_file(name)


def read_file(name: str, source: str | None = None) -> tuple[bytes, str]:
    """Read the bytes of a file; messages call it `source`, or else its name."""
    source = _source(name) if source is None else source
    try:
        with Path(name).open("rb") as file:
            return _read(file, source), source
    except OSError as error:
        raise ProfileError(source, f"cannot be read: {error.strerror}") from None


def _source(name: str) -> str:
    return name if name.isprintable() and 0 < len(name) <= 1000 else shown(name)


def _read(file: BinaryIO, source: str) -> bytes:
    # Never more than the limit: a device or a pipe may have no end.
    try:
        data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProfileError(source, f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ProfileError(source, f"larger than {MAX_BYTES // 10**6} MB, the limit for a profile")
    return data


def parse_profile(data: bytes, source: str, folder: Path | None = None) -> Profile:
    """Check the bytes of a profile, TOML in UTF-8, and turn them into a model; messages call them `source`.

    Files that it refers to are looked for in `folder`, the working directory if None.

    Raises
    ------
    ProfileError
        With line and key path of the first thing that is wrong; `others` are the rest.

    Examples
    --------
    >>> profile = parse_profile(
    ...     b'''
    ... schema = 1
    ... name = "slot model"
    ... gpu = { memory_tokens = 100, prefill = "disaggregated" }
    ... timing = { d0 = "1 s" }
    ... classes = [{ name = "a", input = 2, decode = 4, rate = 0.5 }]
    ... ''',
    ...     "example.toml",
    ... )
    >>> profile.model.replica.memory_tokens, profile.model.classes[0].decode_tokens
    (100, (4,))
    """
    text = _decoded(data, source)
    document = _parsed(text, source)
    try:
        return _profile(document, source, folder or Path(), text, data)
    except schema.SchemaError as error:
        problems = [*error.problems, *_absent_trace(document, folder)]
        raise _refusal(problems, text, source) from None


def from_tables(tables: Mapping[str, Any], source: str, folder: Path = Path()) -> Profile:
    """Check the tables of a profile as `parse_profile` does, and turn them into a model.

    >>> tables = {
    ...     "schema": 1,
    ...     "name": "slots",
    ...     "gpu": {"memory_tokens": 100},
    ...     "timing": {"d0": "1 s"},
    ...     "classes": [{"name": "a", "input": 2, "decode": 4, "rate": 0.5}],
    ... }
    >>> from_tables(tables, "slots").model.replica.memory_tokens
    100
    """
    try:
        return _profile(tables, source, folder)
    except schema.SchemaError as error:
        raise _refusal(error.problems, None, source) from None


def _profile(
    tables: Mapping[str, Any], source: str, folder: Path, text: str | None = None, data: bytes = b""
) -> Profile:
    """Make a profile of tables, and of the text and bytes that they were read from, if any."""
    checked = schema.check(tables)
    if text is None:
        text = document_text(tables)
        data = text.encode()
    return Profile(
        name=checked.name,
        source=source,
        folder=folder,
        sha256=sha256(data).hexdigest(),
        text=text,
        tables=tables,
        plan=plan_of(checked),
        requirements=tuple(checked.gate.require),
        accepted=tuple(checked.gate.accept),
        known=None if checked.missing else model_of(checked),
        missing=checked.missing,
        provenance=Provenance(**dict(checked.provenance)),
    )


def _absent_trace(document: dict[str, Any], folder: Path | None) -> Iterator[Problem]:
    """Yield a missing trace file as a problem, if other problems keep it from being read."""
    workload = document.get("workload")
    trace = workload.get("trace") if isinstance(workload, dict) else None
    readable = isinstance(trace, str) and trace.strip() and trace.isprintable()
    if readable and not os.path.exists((folder or Path()) / str(trace)):
        yield Problem(("workload", "trace"), f"{shown(trace)} is not there")


# ------------------------------------------------------------------------------------------ text and errors


def _decoded(data: bytes, source: str) -> str:
    if data.count(b"\n") > MAX_LINES:
        raise ProfileError(
            source, f"more than {MAX_LINES:,} lines, the limit for a profile", line=MAX_LINES + 1
        )
    if not data.strip():
        raise ProfileError(source, "empty; a profile starts with schema = 1", line=1)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        seen = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise ProfileError(source, f"must be UTF-8, not {seen}", line=line) from None
    return re.sub("(?<!\r)\r+\n", "\n", text.removeprefix("\ufeff"))  # what was converted twice has two


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        # An error at the end of the text stands behind its last line end.
        line = min(error.lineno, line_at(text, len(text.rstrip("\n"))))
        message = f"not valid TOML: {error.msg} (column {error.colno})"
    except RecursionError:
        line, message = _first_line_raising(RecursionError, text), "nested too deeply"
    except ValueError:
        line, message = _first_line_raising(ValueError, text), "a whole number with too many digits"
    raise ProfileError(source, message, line=line)


def _first_line_raising(kind: type[Exception], text: str) -> int:
    """Line where the TOML parser gives up for a reason that it does not give a position for."""
    ends = [i for i, c in enumerate(text) if c == "\n"] + [len(text)]

    def raises(end: int) -> bool:
        try:
            tomli.loads(text[:end])
        except tomli.TOMLDecodeError:
            return False  # a statement cut in two
        except kind:
            return True
        return False

    return bisect_left(ends, True, key=raises) + 1


def _refusal(problems: Sequence[Problem], text: str | None, source: str) -> ProfileError:
    """Put together all problems, in the order of the file; of tables in no file, without lines."""
    lines: Sequence[int | None] = [None] * len(problems)
    if text is not None:
        places = offsets(text, [p.path for p in problems])
        problems = [problem for _, problem in sorted(zip(places, problems, strict=True), key=itemgetter(0))]
        lines = [line_at(text, place) for place in sorted(places)[:MOST_PROBLEMS]]
    first, *others = (
        ProfileError(source, message, key=written(path) or None, line=line)
        for line, (path, message, _) in zip(lines, problems[:MOST_PROBLEMS], strict=False)
    )
    if (left := len(problems) - MOST_PROBLEMS) > 0:
        others.append(ProfileError(source, f"{left:,} more of that kind"))
    return first.with_others(others)


def _slos(table: tables.Slos | tables.ClassSlos, name: str = "", which: int | None = None) -> Iterator[Slo]:
    """Objectives of a table, of the class with this name and index."""
    of = f" of {name}" if name else ""
    for time in TIMES:
        for figure in FIGURES:
            bound = getattr(getattr(table, time, None), figure, None)
            if bound is not None:
                key = f"{time}.{figure}{of}"
                yield Slo(f"{key} <= {format_seconds(bound)}", key, strict=False, bound=bound, which=which)


def _slos_of_class(c: tables.Class, which: int) -> tuple[Slo, ...]:
    """Objectives of a class; of work with a deadline p99, as the very last, sent evenly until then, is always late."""
    slos, bound = {slo.figure: slo for slo in _slos(c.slo, c.name, which)}, c.deadline
    if bound is not None and ("e2e_s.p99" not in slos or slos["e2e_s.p99"].bound > bound):
        key = f"e2e_s.p99 of {c.name}"
        slos["e2e_s.p99"] = Slo(f"{key} <= {format_seconds(bound)}", key, False, bound, which, deadline=True)
    return tuple(slos.values())


def served(document: schema.Document) -> list[tables.Class]:
    """Classes that somebody asks for, and of which the engine takes some requests."""
    return [
        c for c in document.classes if c.rate != 0 and (document.most is None or c.shortest <= document.most)
    ]


def plan_of(document: schema.Document) -> Plan:
    """Make the plan of a document."""
    slos = [*_slos(document.slo)]
    for which, c in enumerate(served(document)):
        slos += _slos_of_class(c, which)
    p, cost = document.plan, document.cost
    price, load, idle = (None,) * 3 if cost is None else (cost.gpu_hour, cost.power, cost.idle_power)
    return Plan(
        p.delta,
        p.horizon,
        p.segments,
        tuple(slos),
        price,
        p.slower,
        p.headroom,
        p.recover,
        load,
        idle,
        p.spare,
    )


def model_of(document: schema.Document) -> ServingModel:
    """Make the model of a document that has all parts."""
    gpu, timing, workload, drafts = document.gpu, document.timing, document.workload, document.drafts
    rate = None if workload is None else workload.rate
    asked = [c for c in document.classes if c.rate != 0]
    taken = served(document)
    rates = [c.rate_rps(rate) for c in taken]
    more = sum(c.rate_rps(rate) for c in asked) / (sum(rates) or 1)  # with classes that are rejected whole
    engines, replica = document.engines, gpu.with_drafts(drafts)
    ranks, fleet = gpu.data_parallel // engines, None
    law = Timing(**{name: getattr(timing, name) for name in Timing.__slots__}).of_ranks(ranks)
    drafts = drafts and drafts.of_ranks(ranks)
    if document.fleet is not None:
        fleet = document.fleet.fleet(gpu.token_bytes)
        replica = replace(replica, turns_stay=ranks > 1 and fleet.routing is Routing.SESSION)
    if engines > 1:
        in_turn = document.engine is not None and document.engine.name is EngineName.SGLANG
        fleet = fleet or Fleet(replicas=1, routing=Routing.ROUND_ROBIN if in_turn else Routing.LEAST_REQUESTS)
        fleet = replace(fleet, replicas=engines * fleet.replicas)
        replica = replace(replica.of_rank(), gpus=replica.gpus // engines)
    model = ServingModel(
        classes=(
            *(c.request_class(own, document.most, more) for c, own in zip(taken, rates, strict=True)),
            *(
                s.as_class.request_class(s.rate or 1.0, document.most, 1.0)
                if s.asks_once and replica.layout is not None
                else s.request_class(document.most, document.sessions)
                for s in document.sessions
            ),
        ),
        timing=law if drafts is None else drafts.slowed(law),
        replica=replica,
        schedule=None if workload is None else workload.rates([c.name for c in taken]),
        request_overhead_s=timing.request_overhead,
        measured=MeasuredRange(**dict(timing.measured)).of_ranks(ranks),
        provenance=Provenance(**dict(document.provenance)),
        hit_curve=document.prefix.hit_curve or (),
        arrivals=ArrivalProcess() if workload is None else ArrivalProcess(workload.cv),
        drafts=drafts,
        fleet=fleet,
        engine=None if document.engine is None else document.engine.engine,
        left_out=tuple(c.name for c in document.classes if c.rate == 0),
    )
    if not any(table.users for table in document.sessions):
        return model
    from kvplan.analysis.cached_equilibrium import with_rates_of_users

    return with_rates_of_users(model)
