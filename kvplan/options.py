"""Options of commands and functions: a record each, filled by the command line and by programs."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from kvplan.arguments import (
    AnyPath,
    ApiPrices,
    Bursts,
    Choice,
    Choices,
    Count,
    Engine,
    Engines,
    File,
    Flag,
    Keys,
    Names,
    Number,
    Objectives,
    Pairs,
    Price,
    Prices,
    Ranks,
    Rate,
    Share,
    Sizes,
    Text,
    Texts,
    Time,
    Whole,
)
from kvplan.engine import EngineName
from kvplan.ranges import MOST_REPLICAS

if TYPE_CHECKING:
    from kvplan.profile.reading import Profile

    Service: TypeAlias = AnyPath | Profile

LIMITS = "max_num_seqs", "max_num_batched_tokens", "max_model_len"
RANKS = {"--tp": "tensor", "--dp": "data", "--ep": "expert", "--pp": "pipeline", "--dcp": "context"}

Progress: TypeAlias = Callable[[float], None] | None  # told what part of the work is done
Announce: TypeAlias = Callable[[str, bool], None] | None  # told of a policy whose loop is compiled


class Router(StrEnum):
    """Routers in front of replicas."""

    ANY = "any"
    SESSION = "session"
    ROUND_ROBIN = "round-robin"
    LEAST_REQUESTS = "least-requests"


class Arrivals(StrEnum):
    """Kinds of arrivals."""

    POISSON = "poisson"
    GAMMA = "gamma"
    BURST = "burst"
    SATURATED = "saturated"
    INTERLEAVED = "interleaved"
    CLOSED = "closed"


class TimeUnit(StrEnum):
    """Units of times of requests."""

    NS = "ns"
    US = "us"
    MS = "ms"
    S = "s"


class Target(StrEnum):
    """Targets of emit: engines, and what operates a service."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    KEDA = "keda"
    HPA = "hpa"
    LATENCY = "latency"
    EPP = "epp"
    WVA = "wva"
    PROMETHEUS = "prometheus"


class CountedBy(StrEnum):
    """Whose counters say how many requests arrive."""

    ENGINE = "engine"
    EPP = "epp"


class Aim(StrEnum):
    """Figures to measure beside the speed."""

    MEMORY = "memory"


class Part(StrEnum):
    """A part of a profile that `[provenance]` tells of."""

    GPU = "gpu"
    TIMING = "timing"
    WORKLOAD = "workload"


MINUTES = 20.0  # that the runs of a benchmark may take
_SLO = Objectives(
    "Objective, such as ttft-p95=2s or 'itl_s.p99 <= 80 ms', beside those of [slo]. May be repeated.", ()
)


@dataclass(kw_only=True)
class ModelOptions:
    """Options of a model and its GPUs."""

    gpu_memory: Text[str | None] = Text("Memory of a GPU as --gpu names it, such as 96GB.", metavar="SIZE")
    gpu_bandwidth: Text[str | None] = Text("Bandwidth of its memory, such as 4TB/s.", metavar="RATE")
    gpu_flops: Text[str | None] = Text(
        "Its dense 16-bit operations per second, such as 148TFLOPS.", metavar="RATE"
    )
    kv_dtype: Text[str] = Text(
        "Data type of the KV cache, such as fp8; auto is the type of the model.", "auto", metavar="TYPE"
    )
    loras: Whole[int | None] = Whole("LoRA adapters that are loaded at once.", least=1, most=10_000)
    lora_rank: Whole[int | None] = Whole("The largest rank of the adapters.", least=1, most=10_000)
    max_num_seqs: Count[int | None] = Count("Most requests that the engine runs at once.", least=1)
    max_num_batched_tokens: Count[int | None] = Count(
        "Most tokens that the engine computes in an iteration.", least=1
    )
    max_model_len: Count[int | None] = Count(
        "Most tokens of a request; the engine refuses longer ones.", least=1
    )

    @property
    def gpu_figures(self) -> dict[str, str | None]:
        """Figures of a GPU beside its name."""
        return {"memory": self.gpu_memory, "bandwidth": self.gpu_bandwidth, "flops": self.gpu_flops}

    @property
    def limits(self) -> dict[str, int]:
        """Limits of the engine that are given, by key."""
        return {key: value for key in LIMITS if (value := getattr(self, key)) is not None}

    @property
    def adapted(self) -> bool:
        """Tell whether anything is said of how the model runs but its weights."""
        return bool(self.kv_dtype != "auto" or self.loras or self.lora_rank)


@dataclass
class PlanOptions(ModelOptions):
    """Options of a plan of services: a model of the catalogue or a config.json, or one or more profiles."""

    services: "Service | Iterable[Service]" = ()
    _: KW_ONLY
    gpu: Names = Names("GPUs to compare, such as H100,B200 or H100:3g.40gb.", (), complete="gpus")
    tp: Ranks = Ranks("GPUs that share each layer. Default: 1,2,4,8.", ())
    dp: Ranks = Ranks("Data-parallel ranks with --tp GPUs each. Default: 1.", ())
    ep: Ranks = Ranks("GPUs that experts are spread over. Default: 1.", ())
    pp: Ranks = Ranks("Pipeline stages with --tp x --dp GPUs each. Default: 1.", ())
    dcp: Ranks = Ranks("GPUs of --tp that share a request's KV. Default: 1.", ())
    weights: Names = Names(
        "Types of the weights, such as bf16,fp8. Default: the model's own, and fp8 where the GPU has it.",
        (),
        metavar="TYPE,...",
    )
    engine: Engines[Engine | None] = Engines(
        "The engine, and its version if that is known: vllm==0.15.1. Default: vllm.", complete="engines"
    )
    rate: Rate[float | None] = Rate(
        "Requests/s of the whole service, or such as 60/min; of conversations, turns."
    )
    users: Count[int | None] = Count("Users who ask, read the answer, think, and ask again.")
    think: Time = Time("From an answer to the next question. Default: 30 s.", plain=False)
    input: Text[str | None] = Text(
        "Tokens of a prompt, mean and coefficient of variation (0.95).", flag="--in", metavar="N[:CV]"
    )
    output: Text[str | None] = Text("Tokens of an answer; like --in.", flag="--out", metavar="N[:CV]")
    trace: File = File("Requests to replay, instead of --in and --out; faster with --rate.")
    system_prompt: Count[int | None] = Count("Tokens that all prompts begin with, beside --in. Default: 0.")
    turns: Text[str | None] = Text(
        "Turns of a conversation, each of which carries all before it: 20, or a law, such as 8:geometric (its mean) or "
        "5..40:uniform. Default: 1.",
        metavar="N[:LAW]",
    )
    slo: Objectives = _SLO
    gpu_hour: Prices = Prices("Price of a GPU an hour: 3, or H100=3,B200=5.5.")
    replica_hour: Prices = Prices("Price of a replica an hour: 12, or NAME=12 by GPU or file name.")
    api_price: ApiPrices = ApiPrices("What an API asks for a million tokens: in=0.6,out=2.4.")
    offload: Sizes = Sizes(
        "Host memory of a replica behind its prefix cache: the least that saves replicas (auto), or sizes to compare, "
        "such as 100GiB,200GiB."
    )
    memory_hour: Price[float] = Price("With --offload: price of a GiB of host memory an hour.", 0.0)
    headroom: Share[float | None] = Share("Added to the demand, such as 20%. Default: 0.")
    slower: Share[float | None] = Share(
        "Objectives must hold with iterations longer by this share, too. Default: 5%."
    )
    spare: Whole[int | None] = Whole(
        "Replicas beyond those that it takes, as many as may fail or be replaced at once: in GPUs and price alone. "
        "Default: 0.",
        least=0,
        most=MOST_REPLICAS,
    )
    recover: Time = Time(
        "Within which a replica must be normal again after a standard burst, or never: nobody asks. Default: 15min, "
        "three mean stays or session lives if that is longer; never without objectives.",
        plain=False,
        never=True,
    )
    settings: Pairs = Pairs(
        "A setting of the engine that is given instead of searched, such as max_num_batched_tokens=8192. "
        "May be repeated.",
        (),
        metavar="KEY=VALUE",
    )
    router: Choice[Router | None] = Choice(Router, "What sends requests to replicas. Default: any.")
    split: Flag = Flag("Also look at prefill and decode on replicas of their own.")
    schedule: Text[str | None] = Text(
        "Plan a day with replicas that come and go: a TOML file with a [workload] period and schedule, a trace, or "
        "'own' for the profile's schedule.",
        metavar="FILE",
    )
    load_time: Time = Time(
        "With --schedule: from the start of a replica until it serves. Default: 2 min.", plain=False
    )
    executor: Text[str] = Text(
        "Where kinds of replicas are looked at: in this process (serial), on all cores (cores), in a local Dask "
        "cluster (dask), or by a running Dask scheduler (tcp://HOST:PORT).",
        "serial",
        metavar="NAME",
    )
    folder: File = File("Where the planned profile is to stand, which refers to --trace.", flag=None)
    progress: Callable[[str], None] | None = field(default=None, compare=False)

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of each kind of parallelism, in the order of `RANKS`."""
        return self.tp, self.dp, self.ep, self.pp, self.dcp


@dataclass
class AnalyzeOptions:
    """Options of a report on a profile."""

    profile: "Service | None" = None
    _: KW_ONLY
    slo: Objectives = _SLO
    trial: Flag = Flag(
        "Also run the replica where a burst can empty its prefix cache, to see how long that lasts, and with the last "
        "class filling what others leave."
    )
    progress: Progress = field(default=None, compare=False)


@dataclass
class MeasureOptions:
    """Options of measurements: aim, load generator and time."""

    profile: "Service | None" = None
    _: KW_ONLY
    tool: Text[str] = Text(
        "Load generator, and its version if that is known: vllm, sglang, guidellm, aiperf or inference-perf.",
        "vllm",
        flag="--with",
        metavar="TOOL[==VERSION]",
        complete="benchmarks",
    )
    url: Text[str | None] = Text("Where the replica answers. Default: http://localhost:8000.", metavar="URL")
    minutes: Number[float] = Number("Time that the runs may take.", MINUTES)
    aim: Choice[Aim | None] = Choice(Aim, "Also ask for what has the KV capacity, exactly.", flag="--for")
    slo: Objectives = _SLO

    @property
    def memory(self) -> bool:
        """Tell whether the KV capacity is asked for."""
        return self.aim is Aim.MEMORY


@dataclass
class CheckOptions:
    """Requirements on a profile."""

    profile: "Service | None" = None
    _: KW_ONLY
    require: Texts = Texts(
        "Requirement on every profile, beside its own, such as 'goodput.rate_rps >= 5'. May be repeated.",
        (),
        metavar="REQUIREMENT",
        complete="keys_to_require",
    )
    baseline: File = File(
        "Earlier report of kvplan analyze --format json, to compare with; needs --tolerance."
    )
    tolerance: Pairs = Pairs(
        "How far a key may move from the baseline, up or down, such as load.sustainable_rps=2%. May be repeated.",
        (),
        metavar="KEY=SHARE",
        complete="keys_to_require",
    )
    accept: Choices = Choices(
        Part,
        "Part that may be assumed: gpu, timing or workload. Otherwise no profile with an assumed part passes. "
        "May be repeated.",
        metavar="PART",
    )
    remedies: Flag = Flag("Where something fails, look for the smallest change that would pass.")
    progress: Progress = field(default=None, compare=False)


@dataclass(kw_only=True)
class MetricsOptions:
    """Counters of a service that a profile is compared with."""

    metrics: File = File(
        "Answer of a server's /metrics, or of Prometheus: does the service still do what the profile says? Nothing "
        "else is judged then."
    )
    since: File = File("An earlier answer; what happened between the two counts.")
    interval: Time = Time('Time that the metrics cover, such as "10 min".')
    group: Text[str | None] = Text("The model, where the metrics are of several.", metavar="NAME")


@dataclass
class SimulateOptions:
    """Which policies are simulated, on which requests, and how often."""

    profile: "Service | None" = None
    policy: Names = Names(
        "Scheduling policies to compare on the same arrivals. Default: those of --grid; else "
        "greedy,rate-limited,vllm, but vllm alone where requests have prefixes in common, which the others do not "
        "cache.",
        (),
        complete="policies",
    )
    _: KW_ONLY
    settings: Pairs = Pairs(
        "Set a parameter of a policy, such as vllm.watermark=0.05; a list has commas. May be repeated.",
        (),
        flag="--set",
        metavar="POLICY.KEY=VALUE",
        complete="parameters",
    )
    grid: Pairs = Pairs(
        "Try values of a parameter of a policy, all combinations of several, and mark the best: a list with commas, "
        "LOW:HIGH:COUNT, or LOW:HIGH:logCOUNT for even ratios. May be repeated.",
        (),
        metavar="POLICY.KEY=VALUES",
        complete="parameters",
    )
    arrivals: Choice[Arrivals | None] = Choice(
        Arrivals,
        "How requests arrive: at random (poisson), at random but more unevenly (gamma), in bursts (burst), all at the "
        "start (saturated), all at the start and in turns instead of at random (interleaved), or each client's next "
        "when its last is finished (closed). Default: as the profile says, poisson.",
    )
    cv: Number[float | None] = Number(
        "Coefficient of variation of the time between arrivals, which is then gamma. Default of --arrivals gamma: 3."
    )
    concurrency: Whole[int | None] = Whole("With --arrivals closed: number of clients. Default: 128.")
    burst: Bursts = Bursts(
        "With --arrivals burst: factors of the rates during and between bursts, and the seconds of each. Default: "
        "1.5,0.5,60,60."
    )
    trace: File = File("Replay the arrival times and lengths of this trace as they are.")
    requests: Count[int | None] = Count(
        "Number of requests that arrive. Default: 10,000, or as many as arrive before --horizon; of sessions those of "
        "ten times the longest."
    )
    horizon: Time = Time(
        'Simulated time at which the run ends, such as "600 s" or "1 h". Default: when all requests are finished.'
    )
    burst_sessions: Text[str | None] = Text(
        "So many sessions of the profile beside the others, all of which begin at a time, such as 600@0.",
        metavar="N@TIME",
    )
    slo: Objectives = _SLO
    seeds: Whole[int | None] = Whole("Number of runs, each with a seed of its own. Default: 1.")
    seed: Whole[int | None] = Whole("First of the seeds. Default: 0.")
    hindsight: Flag = Flag(
        "Add bounds that no policy can surpass. For small runs whose iterations take d0 alone."
    )
    note: Callable[[str], None] | None = field(default=None, compare=False)
    announce: Announce = field(default=None, compare=False)
    progress: Progress = field(default=None, compare=False)


@dataclass
class SweepOptions:
    """Which points of a profile are looked at, and which figures of them."""

    profile: "Service | None" = None
    vary: Pairs = Pairs(
        "Number of the profile to vary, and its values: a list with commas, LOW:HIGH:COUNT, or LOW:HIGH:logCOUNT for "
        "even ratios. May be repeated.",
        (),
        metavar="KEY=VALUES",
    )
    columns: Keys = Keys(
        "Keys of the report to compute and write; * stands for anything. Default: verdict, rates, headroom, KV cache "
        "usage, iteration time, worst-cycle loss, spectral radius.",
        (),
        complete="columns",
    )
    _: KW_ONLY
    sample: Text[str | None] = Text(
        "Draw N points from ranges LOW:HIGH or LOW:HIGH:log instead of a grid: at random, or as a Latin hypercube "
        "(lhs).",
        metavar="random:N|lhs:N",
    )
    seed: Whole[int] = Whole("Seed of the sample, and first seed of simulations.", 0)
    simulate: Flag = Flag("Simulate every point as well.")
    policy: Names = Names(
        "With --simulate: scheduling policies. Default: greedy,vllm.", (), complete="policies"
    )
    seeds: Whole[int | None] = Whole("With --simulate: number of seeds at each point. Default: 1.")
    requests: Count[int | None] = Count("With --simulate: number of requests in each run. Default: 1,000.")


@dataclass
class ImportOptions(ModelOptions):
    """Files that become a profile, and what is said beside them."""

    files: "AnyPath | Iterable[AnyPath]" = ()
    _: KW_ONLY
    model: Text[str | None] = Text(
        "With --gpu: estimate what no FILE measures. A name of the catalogue, or a config.json.",
        metavar="MODEL",
        complete="models",
    )
    gpu: Text[str | None] = Text(
        "GPU of --model, such as H100, or a slice of it, H100:3g.40gb. One that kvplan does not know is described with "
        "--gpu-memory, --gpu-bandwidth and --gpu-flops.",
        metavar="NAME",
        complete="gpus",
    )
    capacity: Count[int | None] = Count(
        "KV cache capacity. Default: what the log says.", least=1, metavar="TOKENS"
    )
    tp: Whole[int | None] = Whole("GPUs that share each layer. Default: what the log says, or 1.", least=1)
    dp: Whole[int | None] = Whole("Data-parallel ranks with --tp GPUs each. Default: like --tp.", least=1)
    ep: Whole[int | None] = Whole("GPUs that experts are spread over. Default: like --tp.", least=1)
    pp: Whole[int | None] = Whole("Pipeline stages with --tp x --dp GPUs each. Default: like --tp.", least=1)
    dcp: Whole[int | None] = Whole("GPUs of --tp that share a request's KV. Default: like --tp.", least=1)
    weights: Text[str | None] = Text(
        "Type of the weights, such as fp8. Default: the model's.", metavar="TYPE"
    )
    engine: Engines[Engine | None] = Engines(
        "The engine, and its version if that is known: vllm==0.15.1. Default: that of a log, or vllm.",
        complete="engines",
    )
    utilization: Number[float | None] = Number(
        "Share of the GPU's memory that the engine may use. Default: its own, such as 0.92."
    )
    told: Pairs = Pairs(
        "What a file is that is not recognized: log, timing, drafts, requests, metrics, model or profile.",
        (),
        flag="--as",
        metavar="KIND=FILE",
    )
    group: Text[str | None] = Text("The replica, or model, where a file has several.", metavar="NAME")
    since: File = File("Earlier answer of /metrics, to count from there.")
    interval: Time = Time('Time that /metrics covers, such as "300 s".')
    unit: Choice[TimeUnit | None] = Choice(
        TimeUnit, "What times of requests are in, where the file does not say."
    )
    classes: Whole[int | None] = Whole(
        "So many classes of one decode length. Default: lengths as recorded.", least=1
    )
    repeated: Flag = Flag("Prompts of results were sent before: a prefix cache found them whole.")
    cached_share: Share[float] = Share("Share of their prompts that a prefix cache found, such as 60%.", 0.0)
    against: File = File(
        "A plan, or profile, whose expectations are compared with results.", complete="profiles"
    )
    max_size: Text[str] = Text("Largest file or pipe that is read.", "4 GiB", metavar="SIZE")
    name: Text[str | None] = Text("Name of the profile.", metavar="NAME")
    base: "Service | None" = None
    folder: File = File("Where the profile is to stand, which may refer to requests.", flag=None)
    announce: Announce = field(default=None, compare=False)
    progress: Progress = field(default=None, compare=False)

    @property
    def ranks(self) -> dict[str, int]:
        """Numbers by kind of parallelism, of those that are given."""
        given = zip(RANKS.values(), (self.tp, self.dp, self.ep, self.pp, self.dcp), strict=True)
        return {kind: number for kind, number in given if number is not None}

    @property
    def engine_named(self) -> tuple[EngineName | None, str]:
        """The engine, and its version or nothing."""
        return self.engine or (None, "")

    @property
    def says_how(self) -> bool:
        """Tell whether anything is said of how a model runs."""
        return self.adapted or self.weights is not None


@dataclass(kw_only=True)
class EmitOptions:
    """Target of emit, and names of the service."""

    target: Choice[Target | None] = Choice(
        Target, "What to write for. Default: the engine of the profile, or vllm."
    )
    engine: Choice[EngineName | None] = Choice(
        EngineName, "Whose metrics are queried, vllm or sglang. Default: the engine of the profile, or vllm."
    )
    name: Text[str | None] = Text(
        "Name of the Deployment that serves, and of what is written. Default: the engine's."
    )
    namespace: Text[str | None] = Text("Its namespace.")
    selector: Text[str | None] = Text(
        "Labels of its series in Prometheus. Default: its namespace, and pods that begin with its name.",
        metavar="MATCHERS",
    )
    arrivals: Choice[CountedBy] = Choice(
        CountedBy, "Who counts arrivals: the engines, or the router (EPP).", CountedBy.ENGINE
    )
    pool: Text[str | None] = Text("InferencePool of the router, whose queue counts then.", metavar="NAME")
    model: Text[str | None] = Text("The model, as clients ask for it. For wva.", metavar="NAME")
    prometheus: Text[str | None] = Text(
        "Prometheus for keda. Default: http://prometheus-operated.monitoring:9090.", metavar="URL"
    )
    load_time: Time = Time("From the start of a replica until it serves. Default: 2 min.")
    scrape: Time = Time("Between two looks of Prometheus at a replica. Default: 15s.")
    slo: Objectives = _SLO
    headroom: Share[float | None] = Share(
        "What the targets of an autoscaler leave free: by simulated days, or such as 0.1.",
        "auto",
        low=-0.9,
        high=10,
        metavar="auto|SHARE",
    )
    day_mean: Flag = Flag("The rate of the profile is the mean of a day, not its peak.")
    verify: Flag = Flag(
        "Simulate other days with these targets, with guesses that are deployed, and with a fixed fleet."
    )
