"""The tables of a profile: keys, their values and descriptions, and the relations within each table.

The text below a key is its description in the JSON Schema, which editors show.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import FailFast, Field
from pydantic.config import JsonDict

from kvplan import model, ranges
from kvplan.engine import has_intervals, has_priorities
from kvplan.model import Admission, EngineName, Origin, Prompt, RequestClass, Scheduling, as_written
from kvplan.model.context import Fitting, fitting, limited, of_sample
from kvplan.model.drafts import Drafts
from kvplan.model.fleet import Routing
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sent, Sessions, SharedPrompt
from kvplan.profile import values
from kvplan.profile.relations import Beside, Cases, Check, Needs, Problem, Table, Ways, has, only
from kvplan.units import format_number, format_seconds, format_tokens

if TYPE_CHECKING:
    from kvplan.model.schedule import Schedule

_MAX_INPUTS, _MAX_OUTPUTS = 16, 1024  # lengths that formulas count, with the moments of the law


def _prompts(table: "Class") -> Iterator[Problem]:
    varied = "shortest " if table.input.values.size > 1 else ""
    if table.reuse is not None and varied:
        why = "not modelled where input varies; give input as a number, or use [[sessions]]"
        yield Problem(("reuse",), why)
    for prompt in table.shared or ():
        if prompt.tokens > table.input.shortest:
            limit = f"must be at most the {varied}input, {format_tokens(table.input.shortest)} tokens"
            more = "; in [[sessions]] with turns = 1 first is beyond what they share" if varied else ""
            yield Problem(("shared",), f"{limit}, not {prompt.tokens}{more}")


def _taken_for(table: "Prediction") -> Iterator[Problem]:
    if (wrong := sum((table.taken_for or {}).values())) > 1 + 1e-9:
        yield Problem(("taken_for",), f"must add up to at most 1, not {wrong:g}")


class Prediction(Table, title="Predictions of decode lengths"):
    """How well lengths are known beforehand, to policies that go by them."""

    relations = (Ways("accuracy", "taken_for"), Check(_taken_for))

    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the requests whose class and decode length are predicted right; of others they are another's."""
    taken_for: Annotated[dict[str, Annotated[float, Field(ge=0, le=1)]], Field(min_length=1)] | None = None
    """Shares of the requests that are taken for ones of other classes, by their names; the rest is predicted right."""

    @property
    def right(self) -> float:
        """Share of the requests that are predicted right."""
        wrong = 0.0 if self.taken_for is None else sum(self.taken_for.values())
        return max(0.0, 1 - wrong) if self.accuracy is None else self.accuracy


class Bounds(Table, title="Bounds of a time"):
    """What mean and percentiles of a time are to stay within."""

    mean: values.Duration | None = None
    """The mean, at most: seconds, or a string such as "80 ms"."""
    p50: values.Duration | None = None
    """The median, at most."""
    p90: values.Duration | None = None
    """The 90th percentile, at most."""
    p95: values.Duration | None = None
    """The 95th percentile, at most."""
    p99: values.Duration | None = None
    """The 99th percentile, at most."""


class ClassSlos(Table, title="Objectives of a class"):
    """Objectives of the requests of a class; gaps are not counted by class, so that there is none on them."""

    ttft_s: Bounds = Bounds()
    """Time to first token."""
    tpot_s: Bounds = Bounds()
    """Mean time between the tokens of a request."""
    e2e_s: Bounds = Bounds()
    """Time to the last token."""


class Class(Table, title="Class of requests"):
    """Requests whose input and decode lengths have laws of their own, independent of each other."""

    relations = (
        Check(_prompts),
        Needs("backlog", "deadline"),
        Needs("deadline", "backlog"),
        Beside("backlog", "rate", "share"),
    )

    name: values.Name
    """What the report calls the class; unique."""
    input: values.Input
    """Prompt length, tokens: a number, length = weight, { uniform = [low, high] }, { geometric = mean }, or {
    lognormal = { mean, cv } }, or { median, sigma }, cut at the quantile .9999 and scaled to the mean."""
    decode: values.Tokens
    """Generated tokens; like input."""
    rate: values.ClassRate | None = None
    """Arrivals, requests/s; where no [workload] gives the total. 0 leaves a class out; not all may be 0."""
    share: values.Share | None = None
    """Share of [workload] rate; the shares of all classes sum to 1."""
    backlog: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """In place of a rate, requests that are there at the start and have to be done by the deadline. Runs of simulate
    begin with them; elsewhere their client sends them evenly until then."""
    deadline: values.Deadline | None = None
    """When the backlog has to be done, such as "24 h"."""
    shared: values.Shared | None = None
    """Leading tokens, within input, that all its requests have in common; or a list of { tokens, weight }, of each
    of which a share of them."""
    slo: ClassSlos = ClassSlos()
    """What its own requests are to stay within, beside [slo]: ttft_s, tpot_s and e2e_s."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Which class goes first with [engine] scheduling = "priority": the one with the lower number."""
    reuse: values.Reused | None = None
    """What later requests ask for again: tokens (a share up to 1.0 of what a request leaves, or a number of them),
    share (probability), gap (a law of times), from (completion, or arrival)."""
    prediction: Prediction | None = None
    """How well a predictor knows decode lengths; without it policies that need them know them."""

    @property
    def inputs(self) -> Lengths:
        """Prompt lengths that formulas count."""
        return self.input.at_most(_MAX_INPUTS)

    @property
    def outputs(self) -> Lengths:
        """Decode lengths that formulas count."""
        return self.decode.at_most(_MAX_OUTPUTS)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest request."""
        return self.input.shortest + self.decode.shortest

    def rate_rps(self, total_rate: float | None) -> float:
        """Requests/s, where `total_rate` is that of all classes if they have shares."""
        if total_rate is not None and self.share is not None:
            # In decimals and rounded once, so that as_written() gives back the product of what was written.
            return float(as_written(self.share) * as_written(total_rate))
        if self.backlog is not None and self.deadline is not None:
            return self.backlog / self.deadline
        return self.rate or 0.0

    def request_class(self, rate: float, most: int | None, asked: float) -> RequestClass:
        """Return the model's class at this rate, of requests of at most `most` tokens, prompt and answer.

        Of those longer prompts have shorter answers. `asked` are there for each request of this and other classes that
        have some.
        """
        fits = fitting(self.input, self.decode, most) or Fitting(1.0, self.input, self.decode, 0)
        inputs, outputs, law = (
            fits.inputs.at_most(_MAX_INPUTS),
            fits.decode.at_most(_MAX_OUTPUTS),
            fits.inputs,
        )
        prompts = [*map(Prompt, inputs.values.tolist(), inputs.probabilities.tolist())]
        if fits.longest and len(prompts) > 1 and outputs.values.size > 1:
            law = self.input  # of which runs draw a prompt beside its answer
            beside = (self.decode.upto(fits.longest - p.tokens).at_most(_MAX_OUTPUTS) for p in prompts)
            prompts = [p._replace(decode=answers) for p, answers in zip(prompts, beside, strict=True)]
        return RequestClass(
            name=self.name,
            input_tokens=round(inputs.mean),
            decode_tokens=tuple(outputs.values.tolist()),
            decode_weights=tuple(outputs.weights.tolist()),
            rate_rps=rate * fits.share,
            shared=self.shared or (),
            reuse=self.reuse,
            prompts=tuple(prompts) if len(prompts) > 1 else (),
            input_law=None if inputs is law else law,
            decode_law=None if outputs is fits.decode else fits.decode,
            most=fits.longest or None,
            rejected=asked / fits.share - 1,
            accuracy=None if self.prediction is None else self.prediction.right,
            taken_for=tuple(((self.prediction and self.prediction.taken_for) or {}).items()),
            priority=self.priority,
            deadline_s=self.deadline,
        )


class Session(Table, title="Sessions"):
    """Conversations: each turn carries all that came before, and follows the answer after a think time."""

    name: values.Name
    """What the report calls their turns, a class; unique."""
    rate: values.Rate | None = None
    """Sessions/s; or users; neither of those that fan_out of others names."""
    users: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """A closed population: each of so many users begins a session think time after the one before."""
    shared: Annotated[int, Field(ge=0, le=ranges.MAX_TOKENS)] = 0
    """Leading tokens common to all sessions: system prompt, tools."""
    first: values.Tokens
    """Tokens of the first prompt beyond shared; a number or a law, like decode of a class."""
    user: values.Tokens
    """Tokens that each further turn adds; like first."""
    decode: values.Tokens
    """Generated tokens of each answer; like first."""
    turns: values.Turns
    """Turns of a session; like first."""
    think: values.GapLaw
    """From an answer to the next turn: a law of times, exponential (mean), lognormal (median, sigma), fixed
    (value) or quantiles (values)."""
    context: values.Context = "end"
    """What becomes of a session whose next prompt and answer would pass max_model_len: it ends (end), drops its oldest
    turns (slide), or goes on with a share of its history, { compact = 0.3 }."""
    fan_out: (
        Annotated[dict[str, Annotated[int, Field(ge=1, le=64)]], Field(min_length=1, max_length=8)] | None
    ) = None
    """Subagents that each answer but the last sends out: so many sessions of each kind named. They begin with the same
    shared, and the next turn comes when all are done, with the last answer of each."""

    @property
    def outputs(self) -> Lengths:
        """Decode lengths that formulas count."""
        return self.decode.at_most(_MAX_OUTPUTS)

    @property
    def asks_once(self) -> bool:
        """True where sessions of one turn come at a rate: requests with a beginning in common."""
        return self.turns.longest == 1 and self.rate is not None

    @property
    def as_class(self) -> Class:
        """The class of those that ask once."""
        inputs = Lengths(self.first.values + self.shared, self.first.weights)
        begin = (SharedPrompt(self.shared),) if self.shared else ()
        return Class.model_construct(name=self.name, input=inputs, decode=self.decode, shared=begin)

    def sender(self, kinds: "Sequence[Session]") -> "Session | None":
        """Find the kind that sends these; None: they come by themselves."""
        return next((kind for kind in kinds if self.name in (kind.fan_out or ())), None)

    def rate_rps(self, kinds: "Sequence[Session]") -> float:
        """Sessions/s; 1 for those of users."""
        sender = self.sender(kinds)
        if sender is None:
            return self.rate or 1.0
        return (sender.rate or 1.0) * (sender.turns.mean - 1) * (sender.fan_out or {})[self.name]

    def law(self, most: int | None, kinds: "Sequence[Session]") -> Sessions:
        """Return the model's sessions, of turns of at most so many tokens; `kinds` are all of the profile."""
        laws, sender = (self.first, self.user, self.decode, self.turns), self.sender(kinds)
        sends = (
            Sent(kind.name, n, kind.decode) for kind in kinds if (n := (self.fan_out or {}).get(kind.name))
        )
        shared, name = (self.shared, "") if sender is None else (sender.shared, self.name)
        law = Sessions(*laws, self.think, shared, self.users, sends=tuple(sends), name=name)
        return limited(law, most, self.context)

    def request_class(self, most: int | None, kinds: "Sequence[Session]") -> RequestClass:
        """Return the turns as a class; of a closed population the rate follows from the whole model."""
        law, decode, begin = self.law(most, kinds), self.decode, None
        prompts = tuple(Prompt(round(tokens), share, variance) for share, tokens, variance in law.prompts)
        if law.limit is not None:
            begin = fitting(self.first, self.decode, law.limit.most - law.shared)
            decode, prompts = of_sample(law, _MAX_INPUTS, _MAX_OUTPUTS)
        outputs = decode.at_most(_MAX_OUTPUTS)
        share = 1.0 if begin is None else begin.share  # of those that begin
        return RequestClass(
            name=self.name,
            input_tokens=round(sum(prompt.share * prompt.tokens for prompt in prompts)),
            decode_tokens=tuple(outputs.values.tolist()),
            decode_weights=tuple(outputs.weights.tolist()),
            rate_rps=self.rate_rps(kinds) * share * law.turns.mean,
            sessions=law,
            prompts=prompts,
            decode_law=None if outputs is decode else decode,
            most=None if law.limit is None else law.limit.most,
            rejected=(1 / share - 1) / law.turns.mean,
        )


class Part(Table, title="Part of a schedule"):
    """Part of a schedule: a step (at, with factor or factors), or all of it, a sinusoid (amplitude)."""

    relations = (Ways("amplitude peak?", "at factor|factors"),)

    at: values.Moment | None = None
    """When the step begins: seconds from the start of the period, or a string such as "8 h"; ascending. It holds
    until the next, the last until the first of the next period."""
    factor: values.Factor | None = None
    """Multiplies the rate of every class that factors does not name; 1."""
    factors: Annotated[dict[str, values.Factor], Field(min_length=1)] | None = None
    """Factors of single classes: class = factor."""
    amplitude: values.UpToOne | None = None
    """Rates vary as a sinusoid, by up to so much of what they are in the mean."""
    peak: values.Moment | None = None
    """When the sinusoid is highest, from the start of the period; in its middle."""

    def factor_of(self, name: str) -> float:
        """Factor of a class in this step."""
        return (self.factors or {}).get(name, 1.0 if self.factor is None else self.factor)


def _steps(workload: "Workload") -> Iterator[Problem]:
    before: float | None = None
    for i, part in enumerate(workload.schedule):
        if part.amplitude is not None and len(workload.schedule) > 1:
            why = f"a sinusoid is a schedule by itself, not one of {len(workload.schedule)} tables"
            yield Problem(("schedule", i, "amplitude"), why)
        for key, time in (("at", part.at), ("peak", part.peak)):
            if time is not None and workload.period is not None and time >= workload.period:
                limit = f"must be before the period ends, less than {format_seconds(workload.period)}"
                yield Problem(("schedule", i, key), f"{limit}, not {format_seconds(time)}")
        if part.at is not None:
            if before is not None and part.at <= before:
                seen = f"{format_seconds(before)}, not {format_seconds(part.at)}"
                yield Problem(("schedule", i, "at"), f"must be later than the step before, after {seen}")
            before = part.at


_SINUSOID_ALONE: JsonDict = {"if": has("schedule[].amplitude"), "then": only("schedule", {"maxItems": 1})}


class Workload(Table, title="Workload"):
    """The total rate, where classes give shares of it, how rates vary over time, and how arrivals cluster."""

    relations = (
        Ways("rate|schedule|cv|trace period?"),
        Needs("schedule", "period"),
        Needs("period", "schedule"),
        Check(_steps, schema=_SINUSOID_ALONE),
    )

    rate: values.Rate | None = None
    """Arrivals of all classes together, requests/s; or each class has a rate."""
    period: values.Duration | None = None
    """Time after which the schedule repeats, such as "24 h"."""
    schedule: list[Part] = Field(default=[], min_length=1, max_length=1000)
    """How rates vary over the period: steps in order, or one sinusoid."""
    cv: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """Coefficient of variation of the gaps between all arrivals, which follow a gamma law; 1: Poisson."""
    trace: values.File | None = None
    """Recorded requests that simulations replay, at the rate of the profile: a file, beside the profile."""

    def rates(self, classes: list[str]) -> "Schedule | None":
        """Schedule of the rates of these classes."""
        if not self.schedule or self.period is None:
            return None
        from kvplan.model.schedule import Sinusoid, Steps

        only, period = self.schedule[0], self.period
        if only.amplitude is not None:
            return Sinusoid(period, only.amplitude, period / 2 if only.peak is None else only.peak)
        starts = [part.at or 0.0 for part in self.schedule]
        factors = [tuple(map(part.factor_of, classes)) for part in self.schedule]
        if starts[0] > 0:  # until then the last step of the period before holds
            starts, factors = [0.0, *starts], [factors[-1], *factors]
        return Steps(period, tuple(starts), tuple(factors))


class Plan(Table, title="Plan"):
    """What the plan should guarantee."""

    delta: Annotated[float, Field(ge=ranges.LEAST_DELTA, le=1)] = 0.01
    """Accepted probability of one overflow within the horizon."""
    horizon: values.Duration = 3600.0
    """Time that delta is about: seconds, or a string such as "1 h"."""
    segments: values.Segments = None
    """Segments of Nested WAIT: "auto", or a number up to that of the distinct decode lengths."""
    slower: values.UpToOne = 0.05
    """Objectives must hold with iterations longer by this share, too: for kvplan plan and plan.holds."""
    headroom: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Share that kvplan plan and plan.holds add to the demand."""
    spare: Annotated[int, Field(ge=0, le=ranges.MOST_REPLICAS)] = 0
    """Replicas that are bought beyond those of [fleet], which no figure counts on: for kvplan plan."""
    recover: values.Recover = None
    """Time within which a replica is normal again after a standard burst, or "never": nobody asks. Without it the
    larger of 15 min, three mean stays in a full replica, and three session lives; "never" without objectives."""


class Gate(Table, title="Gate"):
    """What a check of this profile demands."""

    require: Annotated[list[str], FailFast()] = Field(default=[])
    """Conditions on keys of the report, such as "verdict.status == stable"."""
    accept: Annotated[list[Literal["gpu", "timing", "workload"]], FailFast()] = Field(default=[])
    """Parts that may be assumed; otherwise nothing passes that an assumed part stands behind."""


class Slos(Table, title="Service level objectives"):
    """Service level objectives, which goodput and `kvplan plan` hold to."""

    ttft_s: Bounds = Bounds()
    """Time to first token."""
    itl_s: Bounds = Bounds()
    """Time between two tokens, every gap counted."""
    tpot_s: Bounds = Bounds()
    """Mean time between the tokens of a request."""
    e2e_s: Bounds = Bounds()
    """Time to the last token."""


def _power(costs: "Costs") -> Iterator[Problem]:
    if costs.gpu_hour is None and costs.power is None and costs.idle_power is None:
        yield Problem((), "needs gpu_hour or power", missing=True)
    if costs.power is not None and (costs.idle_power or 0) > costs.power:
        yield Problem(("idle_power",), f"must be at most power, {format_number(costs.power)} W")


class Costs(Table, title="Cost"):
    """What the plan is priced with, and what it draws."""

    relations = (
        Needs("idle_power", "power"),
        Check(_power, schema={"anyOf": [{"required": ["gpu_hour"]}, {"required": ["power"]}]}),
    )

    gpu_hour: values.Weight | None = None
    """Price of a GPU for an hour, in any currency."""
    power: values.Power | None = None
    """What a GPU draws at load, such as "700 W"."""
    idle_power: values.Power | None = None
    """What a GPU draws while its engine has nothing to compute, such as "120 W"."""


class Prefix(Table, title="Prefix cache"):
    """What a prefix cache finds, measured on a trace."""

    hit_curve: values.HitCurve | None = None
    """Points [cache tokens, hit ratio], ascending, in place of all that classes share and reuse."""


def _acceptance(drafts: "Speculation") -> Iterator[Problem]:
    for i, (rate, following) in enumerate(pairwise(drafts.accepted), 1):
        if following > rate:
            limit = f"must be at most {format_number(rate)}, like the draft before it"
            yield Problem(("accepted", i), f"{limit}, not {format_number(following)}")
    if len(drafts.accepted) < drafts.tokens:
        wanted = f"must say how often each of {drafts.tokens} drafts is accepted"
        yield Problem(("accepted",), f"{wanted}, not of {len(drafts.accepted)}")


class Speculation(Table, title="Speculative decoding"):
    """Speculative decoding: drafts of an iteration, how often they are accepted, and what they cost."""

    relations = (Check(_acceptance),)

    tokens: Annotated[int, Field(ge=1, le=ranges.MOST_DRAFTS)]
    """Drafts of an iteration."""
    accepted: Annotated[list[values.UpToOne], Field(max_length=ranges.MOST_DRAFTS)]
    """How often each draft is accepted, of all iterations: never increasing, of as many drafts at least."""
    draft_time: values.Overhead
    """Time of a draft in an iteration, whatever runs."""
    verify_time: values.Cost
    """Time to verify a draft of a sequence."""
    overhead: values.Overhead = 0.0
    """Time that drafting takes in an iteration, whatever the number of drafts."""
    lookahead: bool = True
    """Whether a request holds a slot more for each draft: with EAGLE, MTP and draft models, not with n-grams."""

    @property
    def drafts(self) -> Drafts:
        costs = self.draft_time, self.verify_time, self.overhead
        return Drafts(self.tokens, tuple(self.accepted), *costs, self.lookahead)


class Fleet(Table, title="Fleet"):
    """Several replicas of this kind, whose requests are those of the profile."""

    relations = (Ways("replicas", "prefill decode transfer?"),)

    replicas: values.Replicas | None = None
    """Replicas that prefill and decode."""
    prefill: values.Replicas | None = None
    """Replicas that only compute prompts; with decode."""
    decode: values.Replicas | None = None
    """Replicas that only generate; with prefill."""
    transfer: values.Bandwidth | None = None
    """Rate at which the KV cache of a prompt goes from prefill to decode, such as "20 GB/s"; without one it takes
    no time."""
    routing: Annotated[Routing, Field(strict=False)] = Routing.LEAST_REQUESTS
    """Which replica a request goes to: any (random), each in turn (round-robin), the one with the fewest requests
    (least-requests) or the least KV cache in use (least-kv), or always that of its session (session)."""

    def fleet(self, token_bytes: int | None) -> model.fleet.Fleet:
        """Return the model's fleet."""
        return model.fleet.Fleet(
            prefill=self.prefill or 0,
            decode=self.decode or 0,
            replicas=self.replicas or 0,
            routing=self.routing,
            transfer_bytes_per_s=self.transfer,
            bytes_per_token=token_bytes,
        )


_OF_TRTLLM = "admission? batch_wait_iterations? batch_wait_tokens? balance_iterations?"


class Model(Table, title="Model"):
    """The model that is served, and what its replica was estimated from; commands are written of it."""

    relations = (Needs("loras", "lora_rank"), Needs("lora_rank", "loras"))

    name: values.Name
    """Its name on Hugging Face, or that of the folder of its config.json."""
    config: values.File | None = None
    """Its config.json, beside the profile, where the catalogue does not have it."""
    weights: values.Name | None = None
    """Type of its weights, such as "fp8"; the checkpoint's own where nothing is said."""
    kv_dtype: values.Name | None = None
    """Type of its KV cache, such as "fp8"."""
    gpu: values.Name | None = None
    """GPU of a replica, as --gpu names it."""
    utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the GPU's memory that the engine may use; its own default where nothing is said."""
    loras: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """LoRA adapters that are loaded at once."""
    lora_rank: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """The largest rank of the adapters."""


def _versions(engine: "Engine") -> Iterator[Problem]:
    intervals = engine.name is EngineName.TRTLLM or has_intervals(engine.engine)  # no version of it has any
    if engine.prefill_interval > 1 and not intervals:
        yield Problem(("prefill_interval",), f"{engine.name} {engine.version} has none; later versions do")
    ordered = engine.name is not EngineName.VLLM or has_priorities(engine.engine)
    if engine.scheduling is Scheduling.PRIORITY and not ordered:
        yield Problem(("scheduling",), f"vllm {engine.version} goes by no priority; 0.9.2 and later do")


class Engine(Table, title="Engine"):
    """The engine whose scheduler serves, and how its version admits requests."""

    relations = (
        Cases(
            "name",
            vllm="admission? watermark? scheduling? prefill_interval?",
            sglang="receive_every_steps? prefill_interval?",
            trtllm=_OF_TRTLLM,
        ),
        Needs("batch_wait_iterations", "batch_wait_tokens"),
        Needs("batch_wait_tokens", "batch_wait_iterations"),
        Check(_versions),
    )

    name: Annotated[EngineName, Field(strict=False)] = EngineName.VLLM
    """The engine: vllm, sglang or trtllm."""
    version: values.EngineVersion = ""
    """Its version, such as "0.15.1": of the KV capacity that is estimated, and of the limits it has by default."""
    max_model_len: values.MemoryTokens | None = None
    """Most tokens of a request, prompt and output together (--max-model-len): the engine refuses longer ones."""
    admission: Annotated[Admission, Field(strict=False)] = Admission.WHOLE_PROMPT
    """What has to fit in free memory for a prompt to begin: all of it (whole-prompt), or what the first iteration
    computes of it (first-chunk: vLLM before March 2026 or with --no-scheduler-reserve-full-isl; TensorRT-LLM's
    MAX_UTILIZATION)."""
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the blocks that vLLM keeps free at admission while anything runs (--watermark)."""
    scheduling: Annotated[Scheduling, Field(strict=False)] = Scheduling.FCFS
    """Who goes first: whoever came first (fcfs), or the class with the lower priority (vLLM's --scheduling-policy
    priority), of which the running request with the highest number that came last gives way first."""
    prefill_interval: Annotated[int, Field(ge=1, le=ranges.MOST_STEPS)] = 1
    """Iterations of which one computes prompts, of all data-parallel ranks: vLLM's --prefill-schedule-interval, and one
    more than SGLang's --prefill-decode-interval, which an engine alone has too."""
    receive_every_steps: Annotated[int, Field(ge=1, le=ranges.MOST_STEPS)] = 1
    """Steps of decodes after which SGLang looks for new requests (--scheduler-recv-interval)."""
    batch_wait_iterations: Annotated[int, Field(ge=0, le=ranges.MOST_STEPS)] = 0
    """Most iterations that prompts of TensorRT-LLM wait for batch_wait_tokens (batch_wait_timeout_iters)."""
    batch_wait_tokens: Annotated[int, Field(ge=0, le=ranges.MAX_MEMORY_TOKENS)] = 0
    """Tokens of prompts and running requests that are enough (batch_wait_max_tokens_ratio times max_num_tokens)."""
    balance_iterations: Annotated[int, Field(ge=0, le=ranges.MOST_STEPS)] = 0
    """Most iterations that prompts of TensorRT-LLM wait until every data-parallel rank has one (timeout_iters of its
    attention_dp_config, with enable_balance and batching_wait_iters of 0)."""

    @property
    def engine(self) -> model.Engine:
        return model.Engine(**dict(self))


class Provenance(Table, title="Provenance"):
    """How the parts of the profile are known: measured, stated, estimated, assumed."""

    gpu: values.Known = Origin()
    """Of [gpu]: a word, or a table with basis, source and date; stated where nothing is said."""
    timing: values.Known = Origin()
    """Of [timing]; of parts known in several ways, the weakest."""
    workload: values.Known = Origin()
    """Of [workload] and [[classes]]."""
