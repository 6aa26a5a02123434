"""The schema of a profile: the document of all tables, what relates them, and the JSON Schema.

Pydantic checks every value for itself; `relations` say what they have to do with each other.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, ValidationError
from pydantic.config import JsonDict

from kvplan import ranges
from kvplan.engine import aligns_states
from kvplan.errors import did_you_mean, shown
from kvplan.model import EngineName, Prefill, Scheduling, as_written
from kvplan.model.drafts import Drafts
from kvplan.model.kv_layout import Attention
from kvplan.profile import replica, tables
from kvplan.profile.positions import KeyPath
from kvplan.profile.relations import Beside, Check, Problem, Table, Ways, has, only, problems
from kvplan.profile.values import Name, Version, laws_bounded
from kvplan.units import format_number, format_tokens

PARTS = {"gpu": "[gpu]", "timing": "[timing]", "classes": "[[classes]]"}  # of a profile; one must be there
_MOST_REUSED = 32  # classes that ask again, each after a gap of its own
_MOST_PAIRS = 200_000  # of an input and a decode length, of all classes together
_MOST_TABLED = 2 * 10**6  # prompts times the longest output: tables of what no formula says
_LONGEST_DRAFTED = 2**18  # tokens, of the longest output of each class, for each number of drafts
_LONGEST_TABLED = 2**17
_MOST_PAGED = 2 * 10**6  # turns of all sessions times page size: their moments take memory, and half a second
_IN_COMMON = ("classes[].shared", "classes[].reuse", "sessions[]", "prefix.hit_curve")


# ----------------------------------------------------------------------------- relations between tables


def _rates(document: "Document") -> Iterator[Problem]:
    """Require a rate of a class, or a share of the workload's."""
    classes = document.classes
    here, other, why = (
        "rate",
        "share",
        "is a share of [workload] rate, which is not given; give that, or a rate here",
    )
    if document.workload is not None and document.workload.rate is not None:
        here, other, why = (
            "share",
            "rate",
            "not allowed beside [workload] rate; a class gives its share of that",
        )
    for i, c in enumerate(classes):
        if c.has(other):
            yield Problem(("classes", i, other), why)
        if here == "share" and c.has("backlog"):
            yield Problem(
                ("classes", i, "backlog"), "not allowed beside [workload] rate; give each class a rate"
            )
        elif not c.has(here) and (here == "share" or not (c.has("backlog") or c.has("deadline"))):
            yield Problem(("classes", i, here), "required", missing=True)
    if classes and not document.sessions and all(c.rate == 0 for c in classes):
        yield Problem(("classes", 0, "rate"), "must be above 0 in one class at least, not 0 in all")
    shares = [as_written(c.share) for c in classes if c.share is not None]
    total = float(sum(shares))
    if shares and len(shares) == len(classes) and abs(total - 1) > 1e-9:
        seen = format_number(total, digits=12)
        yield Problem(
            ("classes", len(shares) - 1, "share"), f"the shares of all classes must sum to 1, not {seen}"
        )


_RATES: JsonDict = {
    "if": has("workload.rate"),
    "then": only("classes[]", {"required": ["share"], "properties": {"rate": False}}),
    "else": only("classes[]", {"anyOf": [has("rate"), has("backlog")], "properties": {"share": False}}),
}


def _moved_bytes(document: "Document") -> Iterator[Problem]:
    """Require bytes of a token beside memory in tokens where KV goes over a link; else refuse them."""
    gpu = document.gpu
    moved = gpu.offload is not None or (document.fleet is not None and document.fleet.transfer is not None)
    if not moved and gpu.has("memory_tokens") and gpu.has("kv_bytes_per_token"):
        why = "unless KV goes over a link: [fleet] transfer, or [gpu.offload]"
        yield Problem(("gpu", "kv_bytes_per_token"), f"not allowed beside memory_tokens, {why}")
    if moved and not (gpu.kv_bytes_per_token or gpu.kv):
        why = "needs kv_bytes_per_token beside memory_tokens: what a token takes of the bandwidth"
        yield Problem(("gpu",), why, missing=True)


_MOVED_BYTES: JsonDict = {
    "if": {"allOf": [has("gpu.memory_tokens"), has("gpu.kv_bytes_per_token")]},
    "then": {"anyOf": [has("gpu.offload"), has("fleet.transfer")]},
}


def _host_tier(document: "Document") -> Iterator[Problem]:
    gpu, tier = document.gpu, document.gpu.offload
    if tier is None:
        return
    if {group.kind for group in gpu.kv} - {Attention.FULL} or len({group.bytes for group in gpu.kv}) > 1:
        yield Problem(("gpu", "offload"), "not modelled beside layers of several kinds")
        return
    held, said = gpu.host_tier, [*filter(tier.has, ("memory", "memory_tokens"))]
    least, most = gpu.block_tokens, ranges.MAX_CACHE_TOKENS
    if held is not None and len(said) == 1 and not least <= held.memory_tokens <= most:
        limits = f"must hold {format_tokens(least)} to {format_tokens(most)} tokens"
        yield Problem(("gpu", "offload", *said), f"{limits}, not {format_tokens(held.memory_tokens)}")


def _layers(document: "Document") -> Iterator[Problem]:
    try:
        layout = document.gpu.layout
    except ValueError:  # as the table says
        return
    if layout is None:
        return
    engine, why = document.engine, layout.not_cached
    if engine is not None and engine.scheduling is Scheduling.PRIORITY:
        why = 'layers of several kinds and scheduling = "priority"'
    if engine is not None and engine.name is not EngineName.VLLM:
        why = "layers of several kinds but in vLLM"
    for i, kv in enumerate(document.gpu.kv):
        if kv.checkpoints and engine is not None and aligns_states(engine.engine):
            yield Problem(("gpu", "kv", i, "checkpoints"), "must be false: no mode of vLLM 0.32 and later")
    several = "layers of several kinds; what is modelled is shared, and sessions"
    for problem in Beside("gpu.kv[]", *_IN_COMMON).problems(document):
        is_shared = problem.path[0] == "sessions" or problem.path[-1] == "shared"
        if not is_shared:
            yield problem._replace(message=f"not modelled beside {several}")
        elif why and document.gpu.prefix_caching:
            yield problem._replace(
                message=f"not modelled beside {why}; with [gpu] prefix_caching = false it is"
            )


def _priorities(document: "Document") -> Iterator[Problem]:
    by_priority = document.engine is not None and document.engine.scheduling is Scheduling.PRIORITY
    given = [] if by_priority else [i for i, c in enumerate(document.classes) if c.has("priority")]
    if given:
        others = f"; nor is that of {len(given) - 1:,} more" if len(given) > 1 else ""
        why = f'not allowed without [engine] scheduling = "priority"{others}'
        yield Problem(("classes", given[0], "priority"), why)


_PRIORITIES: JsonDict = {
    "if": has("classes[].priority"),
    "then": {"allOf": [has("engine.scheduling"), only("engine.scheduling", {"const": "priority"})]},
}


_OF_SEVERAL_RANKS = (
    *(("timing", "all_ranks"), ("timing", "d5_all_ranks")),
    *(("engine", "balance_iterations"), ("engine", "prefill_interval")),
)


def _all_ranks(document: "Document") -> Iterator[Problem]:
    for table, key in _OF_SEVERAL_RANKS:
        given, engine = getattr(document, table), document.engine
        alone = key == "prefill_interval" and engine is not None and engine.name is not EngineName.VLLM
        if given is not None and given.has(key) and document.gpu.data_parallel == 1 and not alone:
            yield Problem((table, key), "not allowed without [gpu] data_parallel above 1")


_ALONE: JsonDict = {"allOf": [has("engine.name"), only("engine.name", {"const": "sglang"})]}
_SEVERAL_RANKS: JsonDict = {
    "if": {
        "anyOf": [
            *(has(f"{table}.{key}") for table, key in _OF_SEVERAL_RANKS[:-1]),
            {**has("engine.prefill_interval"), "not": _ALONE},
        ]
    },
    "then": {"allOf": [has("gpu.data_parallel"), only("gpu.data_parallel", {"minimum": 2})]},
}


def _classes(document: "Document") -> Iterator[Problem]:
    """Names, and prompts that are computed beside decodes."""
    names: set[str] = set()
    for kind in ("classes", "sessions"):
        for i, table in enumerate(getattr(document, kind)):
            if table.name in names:
                yield Problem((kind, i, "name"), f"must be unique, and {shown(table.name)} is taken")
            names.add(table.name)
    if sum(c.reuse is not None for c in document.classes) > _MOST_REUSED:
        yield Problem(("classes",), f"must be at most {_MOST_REUSED} with reuse")
    for i, c in enumerate(document.classes):
        if document.gpu.prefill is Prefill.INLINE and c.input.shortest == 0:
            yield Problem(("classes", i, "input"), 'must be at least 1 where prefill = "inline", not 0')


def _predictions(document: "Document") -> Iterator[Problem]:
    names = [c.name for c in document.classes]
    for i, c in enumerate(document.classes):
        for name in (c.prediction and c.prediction.taken_for) or ():
            place = ("classes", i, "prediction", "taken_for", name)
            if name not in names:
                yield Problem(place, f"no class has this name; {did_you_mean(name, names, 'classes')}")
            elif name == c.name:
                yield Problem(place, "its own class; the rest of its requests is predicted right")


def _room(document: "Document") -> Iterator[Problem]:
    """Such a request can never finish: an engine that admits it hangs (theory §2, preflight)."""
    gpu, drafts = document.gpu, document.drafts
    block = gpu.block_tokens
    usable = gpu.capacity_tokens // block * block
    requests: list[tuple[KeyPath, str, int, int, str]] = []
    for i, c in enumerate(document.classes):
        made_of = f"input {format_tokens(c.input.longest)} + decode {format_tokens(c.decode.longest)}"
        first = c.input.longest + (gpu.prefill is not Prefill.INLINE)
        requests.append((("classes", i), c.name, first, c.input.longest + c.decode.longest, made_of))
    for i, s in enumerate(document.sessions):
        made_of = f"turn {s.turns.longest}, which carries all before it"
        tokens = s.law(None, document.sessions).longest
        requests.append((("sessions", i), s.name, tokens, tokens, made_of))
    try:
        replica = gpu.with_drafts(drafts)
    except ValueError:  # as the table says
        return
    for place, name, first, last, made_of in requests:
        if document.most is not None and last > document.most:
            first, last, made_of = min(first, document.most), document.most, "max_model_len"
        held = replica.largest_held(first, last, drafts.slots if drafts else 0)
        if held > usable > 0:
            longest = (
                f"its longest request holds {format_tokens(held)} KV tokens ({made_of}, in blocks of {block})"
            )
            fits = f"class {shown(name)} does not fit: {longest}, and memory holds {format_tokens(usable)}"
            yield Problem(place, fits)


def _served(document: "Document") -> Iterator[Problem]:
    """Refuse a class with only requests longer than max_model_len, which engines refuse."""
    shortest: list[tuple[KeyPath, int]] = [
        (("sessions", i), s.shared + s.first.shortest + s.decode.shortest)
        for i, s in enumerate(document.sessions)
    ]
    if document.classes and not document.sessions:
        shortest = [(("classes",), min(c.shortest for c in document.classes))]
    for place, least in shortest:
        if document.most is not None and least > document.most:
            why = f"all requests have at least {format_tokens(least)} tokens"
            limit = f"the engine refuses more than max_model_len, {format_tokens(document.most)}"
            yield Problem(place, f"{why}, and {limit}")


def _factors(document: "Document") -> Iterator[Problem]:
    schedule = [] if document.workload is None else document.workload.schedule
    names = [c.name for c in document.classes]
    for i, part in enumerate(schedule):
        for name in part.factors or ():
            if name not in names:
                why = f"no class has this name; {did_you_mean(name, names, 'classes')}"
                yield Problem(("workload", "schedule", i, "factors", name), why)
    steps = [part for part in schedule if part.at is not None]
    for name in names:
        if steps and all(part.factor_of(name) == 0 for part in steps):
            why = f"class {shown(name)} never arrives: factor 0 all the time"
            yield Problem(("workload", "schedule"), why)


def _lengths(document: "Document") -> Iterator[Problem]:
    several: list[tables.Class | tables.Session] = [*document.classes, *document.sessions]
    distinct = len({d for table in several for d in table.outputs.values.tolist()})
    pairs = sum(c.inputs.values.size * c.outputs.values.size for c in document.classes)
    if pairs > _MOST_PAIRS:
        seen = f"{pairs} pairs of an input and a decode length in all that formulas count"
        yield Problem(("classes",), f"{seen}; must be at most {_MOST_PAIRS}")
    if distinct and (document.plan.segments or 1) > distinct:
        limit = f"must be at most the {distinct} distinct decode lengths"
        yield Problem(("plan", "segments"), f"{limit}, not {document.plan.segments}")


def _turns(document: "Document") -> Iterator[Problem]:
    turns = 0
    for i, s in enumerate(document.sessions):
        turns += s.turns.longest
        if turns * document.gpu.block_tokens > _MOST_PAGED:
            seen = f"{turns} turns at most, in blocks of {document.gpu.block_tokens}"
            yield Problem(("sessions", i, "turns"), f"too many for their exact moments: {seen}")


def _fan_out(document: "Document") -> Iterator[Problem]:
    """Check who sends whom; all others come by themselves."""
    kinds, most = document.sessions, document.most
    sent: set[str] = set()
    astray = False  # somebody is named who cannot be sent: of whom else, nobody knows
    for i, s in enumerate(kinds):
        own = ("sessions", i, "fan_out")
        for name in s.fan_out or ():
            others = [kind.name for kind in kinds if kind is not s and kind.fan_out is None]
            if name not in others:
                known = did_you_mean(name, others, "known are") if others else "there are none"
                yield Problem((*own, name), f"must name other sessions, without fan_out; {known}")
                astray = True
            elif name in sent:
                yield Problem((*own, name), "must be named once")
            else:
                sent.add(name)
        if s.fan_out is not None and s.turns.longest == 1:
            yield Problem(own, "nothing follows the answer where turns = 1")
        if s.fan_out is not None and s.has("users"):
            yield Problem(own, "not modelled beside users; give rate")
    for i, s in enumerate(kinds):
        given = [key for key in ("rate", "users") if s.has(key)]
        if s.name in sent:
            given += [key for key in ("shared",) if s.has(key)]
            yield from (
                Problem(("sessions", i, key), "not allowed in what fan_out of others names") for key in given
            )
        elif not given and not astray:
            yield Problem(("sessions", i), "needs rate, or users", missing=True)
        elif len(given) == 2:
            yield Problem(("sessions", i, "users"), "not allowed beside rate")
        tied = s.fan_out is not None or s.name in sent
        if tied and most is not None and s.law(None, kinds).longest > most:
            yield Problem(
                ("sessions", i), "fan_out: not modelled where max_model_len ends or shortens sessions"
            )


def _tabled(document: "Document") -> Iterator[Problem]:
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


# -------------------------------------------------------------------------------------------- document


class Document(Table, title="kvplan profile"):
    """A replica and its traffic, or what is known of them.

    What stands in for absent tables lets the others be checked; no model is made where parts are `missing`.
    """

    relations = (
        Ways("gpu|timing|classes|sessions"),
        Check(_rates, "classes sessions workload", _RATES),
        Check(_moved_bytes, "gpu fleet", _MOVED_BYTES),
        Check(_host_tier, "gpu"),
        Check(_layers, "gpu classes sessions prefix"),
        Check(_priorities, "classes engine", _PRIORITIES),
        Check(_all_ranks, "gpu timing engine", _SEVERAL_RANKS),
        Check(_classes, "gpu classes sessions"),
        Check(_room, "gpu classes sessions speculative"),
        Check(_served, "engine classes sessions"),
        Check(_factors, "classes workload"),
        Check(_predictions, "classes"),
        Check(_lengths, "classes sessions plan"),
        Check(_turns, "sessions gpu"),
        Check(_fan_out, "sessions engine"),
        Check(_tabled, "gpu classes speculative"),
        Beside(
            *("sessions[]", "workload.schedule", "workload.cv", "workload.trace"),
            why=", whose turns come after answers",
        ),
        Beside("workload.schedule", "classes[].backlog", why=", as it comes evenly"),
        Beside("workload.trace", "classes[].slo", why=", whose requests are of one class"),
        Beside("prefix.hit_curve", *_IN_COMMON[:3], why=", which says already what requests have in common"),
        Beside("speculative", *_IN_COMMON, "gpu.offload"),
        Beside("speculative", "fleet.prefill", why="; give replicas"),
        Beside("speculative", "gpu.kv[].checkpoints", values=(False,)),
        Beside("speculative", "gpu.prefill", values=("fused",)),
        Beside("engine", "gpu.prefill", values=("fused",), why=", as engines compute prompts"),
        Beside("gpu.offload", "gpu.prefill", values=("fused", "inline"), why=": no prompt is computed"),
        Beside("gpu.offload", "gpu.prefix_caching", values=(True,)),
        Beside(
            *("gpu.data_parallel", "prefix.hit_curve", "gpu.offload"),
            above=1,
            why=", whose ranks have caches of their own",
        ),
        Beside("engine.prefill_interval", "engine.scheduling", values=("fcfs",)),
        Beside("engine.scheduling", "gpu.offload", "fleet.prefill", "speculative", when="priority"),
        Beside("gpu.data_parallel", "fleet.prefill", above=1),
        Beside("gpu.data_parallel", "gpu.prefill", values=("fused",), above=1),
        Beside(
            *("gpu.data_parallel", "engine.batch_wait_iterations"),
            above=1,
            why=", as TensorRT-LLM only balances those; balance_iterations is its wait",
        ),
        Beside(
            "fleet.prefill", "gpu.prefill", values=("fused", "inline"), why=": prompts would be ready-made"
        ),
    )

    version: Version = Field(alias="schema")
    """Version of this schema."""
    name: Name
    """What the report is headed."""
    model: tables.Model | None = None
    gpu: replica.Gpu = replica.Gpu(memory_tokens=ranges.MAX_MEMORY_TOKENS)
    timing: replica.Timing = replica.Timing.model_validate({"d0": "1 s"})
    workload: tables.Workload | None = None
    classes: list[tables.Class] = Field(default=[], max_length=ranges.MOST_CLASSES)
    """The traffic, class by class."""
    sessions: list[tables.Session] = Field(default=[], max_length=32)
    """Conversations instead of, or beside, classes; their turns are a class."""
    prefix: tables.Prefix = tables.Prefix()
    speculative: tables.Speculation | None = None
    fleet: tables.Fleet | None = None
    engine: tables.Engine | None = None
    plan: tables.Plan = tables.Plan()
    slo: tables.Slos = tables.Slos()
    cost: tables.Costs | None = None
    gate: tables.Gate = tables.Gate()
    provenance: tables.Provenance = tables.Provenance()

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts that the profile does not say: gpu, timing, classes."""
        absent = [name for name in ("gpu", "timing") if name not in self.model_fields_set]
        return (*absent, *([] if self.classes or self.sessions else ["classes"]))

    @property
    def most(self) -> int | None:
        """Most tokens of a request that the engine takes."""
        return None if self.engine is None else self.engine.max_model_len

    @property
    def engines(self) -> int:
        """Data-parallel ranks that are engines of their own: those of a dense model, of whose times none is of all."""
        timing = self.timing
        shared = timing.experts, timing.d4, timing.all_ranks, timing.d5_all_ranks
        engine = self.engine
        spaced = engine is not None and engine.prefill_interval > 1 and engine.name is not EngineName.SGLANG
        waits = spaced or (engine is not None and engine.balance_iterations > 0)
        return 1 if self.gpu.expert_parallel > 1 or waits or any(shared) else self.gpu.data_parallel

    @property
    def drafts(self) -> Drafts | None:
        """Drafts of the model."""
        return None if self.speculative is None else self.speculative.drafts


class SchemaError(Exception):
    """A document breaks the schema; `problems` says where."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems


def check(document: Mapping[str, Any]) -> Document:
    """Check a parsed profile; or raise a `SchemaError` with all that is wrong.

    What relates values is looked at in those tables whose values are right.
    """
    try:
        checked = check_values(document)
    except SchemaError as error:
        # what is left without the tables that have a wrong value
        broken = {str(problem.path[0]) if problem.path else "" for problem in error.problems}
        broken |= {"schema", "name"} - document.keys()
        rest = {key: value for key, value in document.items() if key not in broken}
        more = problems(check_values({**rest, "schema": 1, "name": "-"}), broken)
        raise SchemaError([*error.problems, *more]) from None
    if broken_relations := [*problems(checked)]:
        # what stands in the place of a key says what is missing
        wrong = {p.path[:-1] for p in broken_relations if not p.missing}
        missing = [p for p in broken_relations if p.missing and not {p.path, p.path[:-1]} & wrong]
        raise SchemaError([*(p for p in broken_relations if not p.missing), *missing])
    return checked


def check_values(document: Mapping[str, Any]) -> Document:
    """Check each value for itself, or raise a `SchemaError`: what relates several values is not looked at."""
    try:
        with laws_bounded():
            return Document.model_validate(document)
    except ValidationError as error:
        raise SchemaError(_told(error)) from None


def _told(error: ValidationError) -> list[Problem]:
    distinct: dict[KeyPath, Problem] = {}
    for details in error.errors(include_url=False):
        distinct.setdefault(details["loc"], Problem(details["loc"], **details["ctx"]))
    # a key that a typo hides is not missing
    meant = {(*p.path[:-1], p.message.partition("did you mean ")[2].rstrip("?")) for p in distinct.values()}
    return [p for p in distinct.values() if not p.missing or p.path not in meant]


# ----------------------------------------------------------------------------------------- JSON Schema


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
            plain = isinstance(schema.get("default"), bool | float | str | list)
            return super().default_schema(schema) if plain else self.generate_inner(schema["schema"])

    generated = Document.model_json_schema(schema_generator=Generator)
    head = {"$schema": Generator.schema_dialect, "title": generated.pop("title")}
    definitions = generated.pop("$defs")
    # its key is described, for those who write profiles
    definitions["Prefill"] = {"enum": definitions["Prefill"]["enum"]}
    return {**head, **generated, "$defs": definitions}
