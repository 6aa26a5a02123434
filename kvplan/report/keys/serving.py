"""Keys of the blocks about serving: latency, goodput, advice, cost, drafts, layers of several kinds, fleet."""

from collections.abc import Iterator
from functools import partial

from kvplan.report.keys.record import Block, Kind, Record, class_name
from kvplan.units import format_number, format_tokens

_GROWS = "The queue grows: see latency.reason; or the engine does not run what the profile has."
_ONE_TOKEN = f"{_GROWS} Or every answer is one token, so that there are no gaps."
_FIGURES = {
    "mean": "Mean",
    "p50": "Median",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
}
_TIMES = {
    "ttft_s": "time to first token (TTFT), from arrival",
    "itl_s": "inter-token latency (ITL), every gap between two tokens counted as one",
    "tpot_s": "time per output token (TPOT), the mean gap of a request",
    "e2e_s": "time from arrival to the last token (E2E)",
}
_NO_SPLIT = "No formula covers the traffic with prefill and decode apart, or there are too few GPUs."

_run = partial(Record, source="new: runs at the offered rate, in rounds of two, intervals by batches")
_searched = partial(Record, source="new: runs at one rate after another, objectives decided by shares")
_tried = partial(
    Record, source="new: tried by simulation against the replica as it is, remeasured on fresh requests"
)
_priced = partial(Record, source="arithmetic; the price is the profile's")
_draft = partial(Record, source="new, theory of speculative decoding")
_layers = partial(
    Record,
    source="new, theory of attention of every kind: groups of layers on one pool of blocks, as vLLM makes them",
)
_split = partial(Record, source="new, theory of prefill and decode apart")


def _times(prefix: str, of: str = "", times: tuple[str, ...] = tuple(_TIMES)) -> Iterator[Record]:
    for time in times:
        for name, words in _FIGURES.items():
            yield _run(
                f"{prefix}.{time}.{name}",
                f"{words} of the {_TIMES[time]}{of}.",
                absent=_ONE_TOKEN if time in ("itl_s", "tpot_s") else _GROWS,
            )


LATENCY = Block(
    "latency",
    "How long requests wait for their tokens at the offered rate, and what is in the replica meanwhile; of a fleet, "
    "all of it behind its router.",
    (
        _run(
            "latency.status",
            "Whether the queue is steady or grows, or the runs cannot tell; unsettled: steady, but some figures are "
            "not known well.",
            kind=Kind.TEXT,
            allowed=("steady", "growing", "undecided", "unsettled"),
        ),
        _run("latency.reason", "Why there are no figures.", absent="There are.", kind=Kind.TEXT),
        *_times("latency"),
        class_name("latency"),
        *_times("latency.classes[]", " of the class", ("ttft_s", "tpot_s", "e2e_s")),
        _run(
            "latency.ci95",
            "95 % confidence interval of each figure, by its key; the upper end is null where the runs do not show it.",
            kind=Kind.TABLE,
        ),
        _run("latency.unsettled[]", "Figures that are not known well.", kind=Kind.TEXT),
        _run(
            "latency.cliffs[].key",
            "A percentile that moves far for a per cent of the requests.",
            kind=Kind.TEXT,
        ),
        _run("latency.cliffs[].low_s", "From where it moves."),
        _run("latency.cliffs[].high_s", "To where it moves."),
        *(
            _run(
                f"latency.worst_part.{end}_s",
                f"Where the 24th part of the schedule, or of the trace, {words} in which requests wait longest.",
                absent="Rates do not vary.",
            )
            for end, words in (("begin", "begins"), ("end", "ends"))
        ),
        *_times("latency.worst_part", ", in that part"),
        *(
            _run(f"latency.{name}", f"{meaning}, in the mean{over}.", label=label, absent=_GROWS)
            for name, meaning, over, label in (
                (
                    "preemptions_per_request",
                    "Preemptions of a request until it is done",
                    "",
                    "Preemptions of a request",
                ),
                ("running", "Requests that hold memory", " over time", "Running requests"),
                ("waiting", "Requests that wait", " over time", "Waiting requests"),
            )
        ),
        _run(
            "latency.kv_tokens_mean",
            "KV tokens held, in whole pages, in the mean over time.",
            label="KV tokens",
            format=format_tokens,
            unit="tokens",
            absent=_GROWS,
        ),
    ),
)
GOODPUT = Block(
    "goodput",
    "The largest rate at which every latency objective (SLO) holds; of a fleet all of it.",
    (
        _searched(
            "goodput.rate_rps",
            "Largest rate of this mix at which all objectives of [slo] and --slo hold; 0 where an idle replica "
            "misses one.",
            "where ln(share beyond a limit / share allowed) passes 0, between low and high",
            "goodput.low goodput.high",
            label="Goodput",
        ),
        _searched(
            "goodput.low", "Largest rate that was seen to hold.", label="Held up to", unit="requests/s"
        ),
        _searched(
            "goodput.high",
            "Least rate that was seen to miss.",
            label="Missed from",
            unit="requests/s",
            absent="None missed.",
        ),
        _searched(
            "goodput.binding",
            "Objective that is missed first as the rate rises, or the limit of the sustainable rate.",
            label="Limited by",
            kind=Kind.TEXT,
        ),
        *(
            _searched(
                f"goodput.cliff.{end}",
                f"{words} of the range in which the binding figure moves for a per cent of the requests.",
                unit="s",
                absent="It sits on no cliff.",
            )
            for end, words in (("low", "Lower end"), ("high", "Upper end"))
        ),
    ),
    absent="No objectives are set: [slo] in the profile, or --slo.",
    nullable=True,
)
ADVICE = Block(
    "advice",
    "Settings of the engine that were tried and gain, best first; several where only together they help. Empty where "
    "nothing helps, or nothing is needed.",
    (
        _tried("advice[].settings[].name", "Parameter of the engine's policy.", kind=Kind.TEXT),
        _tried("advice[].settings[].value", "Its value."),
        _tried(
            "advice[].gain_backlogged",
            "How much more is served under a backlog, relative.",
            least=-1.0,
        ),
        _tried(
            "advice[].sustains_offered",
            "Whether a backlog drains at the offered rate with it.",
            kind=Kind.TRUTH,
        ),
        _tried(
            "advice[].needs_version",
            "Of the engine.",
            kind=Kind.TEXT,
            absent="Any version has it.",
        ),
        *(
            _tried(
                f"advice[].ttft_p95_s_{word}",
                f"95th percentile of TTFT at the offered rate {word} it.",
                unit="s",
                absent="The queue grows.",
            )
            for word in ("without", "with")
        ),
    ),
)
COST = Block(
    "cost",
    "What a replica costs, by the hour and by the token.",
    (
        Record(
            "cost.gpus_per_replica",
            "GPUs of a replica.",
            source="the profile",
            label="GPUs of a replica",
            whole=True,
            least=1.0,
        ),
        _priced(
            "cost.per_hour",
            "Cost of a replica for an hour.",
            "gpus_per_replica·gpu_hour",
            "cost.gpus_per_replica gpu_hour",
            label="Per hour",
        ),
        *(
            _priced(
                f"cost.{at}.per_million_{name}",
                f"Cost of a million {words} at the {at} rate.",
                f"per_hour/3600/(rate·{tokens})·10⁶, rate = load.{at}_rps",
                f"cost.per_hour load.{at}_rps {inputs}",
                label=f"Per million {name.replace('_', ' ')}, {at} rate",
                unit="",
                absent=absent,
            )
            for at, absent in (
                ("offered", "More is offered than is served."),
                ("sustainable", "Never: what is sustainable is above 0."),
            )
            for name, words, tokens, inputs in (
                ("output_tokens", "output tokens", "d̄", "decode"),
                ("tokens", "tokens, input and output", "(s̄ + d̄)", "input_tokens decode"),
            )
        ),
    ),
    absent="The profile has no [cost].",
    nullable=True,
)
SPECULATIVE = Block(
    "speculative",
    "What drafting buys.",
    (
        _draft(
            "speculative.tokens_per_iteration",
            "Tokens that an iteration emits for a request on average.",
            "1 + Σ r_i",
            label="Tokens per iteration",
            least=1.0,
        ),
        _draft(
            "speculative.iterations_mean",
            "Iterations that a request of the mix stays, on average.",
            "renewal by convolution",
            "decode",
            label="Iterations of a request",
            least=1.0,
        ),
        _draft(
            "speculative.speed_up",
            "Sustainable rate with drafts over that without.",
            "α/α without drafts",
            "load.load_factor_max",
            label="Sustainable rate, against no drafts",
            format=lambda value: f"× {format_number(value)}",
        ),
        _draft(
            "speculative.itl_speed_up",
            "Mean time between two tokens without drafts over that with them, at the offered rate.",
            "ratio of τ·(n̄ − 1)/(d̄ − 1)",
            "equilibrium.iteration_time_s iterations decode",
            label="Time between tokens, against none",
            format=lambda value: f"× {format_number(value)} faster",
            absent="With or without drafts no equilibrium exists at the offered rate, or requests emit one token.",
        ),
        _draft(
            "speculative.break_even_sequences",
            "Running requests at which an iteration with drafts emits as many tokens in its time as without.",
            "((Ḡ − 1)·d0 − e_c − k·e0)/(v·k − (Ḡ − 1)(d1·t + d3))",
            "d0 d1 d3",
            absent="Drafting pays at every batch, or at none.",
        ),
        _draft(
            "speculative.pays",
            "On which side of that drafting pays.",
            inputs="speculative.break_even_sequences",
            label="Pays",
            kind=Kind.TEXT,
            allowed=("below", "above", "always", "never"),
        ),
        _draft(
            "speculative.best_tokens",
            "Drafts with the least time between two tokens at the offered rate; where no number serves it, with "
            "the largest sustainable rate.",
            label="Best number of drafts",
            unit="",
            absent="Outputs are too long to try every number.",
            whole=True,
        ),
    ),
    absent="The profile has no [speculative].",
    nullable=True,
)
KV_LAYOUT = Block(
    "kv_layout",
    "What a request holds where layers keep KV of several kinds.",
    (
        _layers(
            "kv_layout.groups[].kind",
            "What a layer keeps.",
            kind=Kind.TEXT,
            allowed=("full", "window", "chunk", "state"),
        ),
        _layers("kv_layout.groups[].layers", "Layers of the kind.", whole=True, least=1.0),
        _layers(
            "kv_layout.groups[].groups",
            "Groups that they make, the last one filled up.",
            whole=True,
            least=1.0,
        ),
        _layers("kv_layout.groups[].block_tokens", "Tokens of a block in each layer.", whole=True, least=1.0),
        _layers(
            "kv_layout.groups[].window_tokens",
            "Tokens of a window or chunk.",
            absent="The layers keep all tokens, or a state.",
            whole=True,
            least=1.0,
        ),
        Record(
            "kv_layout.block_tokens",
            "Tokens of a block in each layer of those with the most bytes per token.",
            source="the profile",
            label="Block",
            whole=True,
            least=1.0,
        ),
        _layers("kv_layout.block_bytes", "Bytes of a block.", whole=True, least=1.0),
        _layers(
            "kv_layout.bytes_per_token",
            "Bytes that a long request takes for one token more.",
            label="A token more",
            unit="bytes",
            whole=True,
        ),
        _layers(
            "kv_layout.fixed_tokens_per_request",
            "Pool tokens that a long request holds whatever its length: windows, chunks up to their size, states.",
            label="Held whatever the length",
            format=lambda value: f"{format_number(value)} pool tokens",
            unit="tokens",
            whole=True,
        ),
    ),
    absent="All layers keep every token.",
    nullable=True,
)


def _of_fleet(way: str, what: str, rate: str, no_gpus: str) -> Iterator[Record]:
    yield Record(
        f"fleet.{way}.gpus",
        f"GPUs of {what}.",
        source="the profile",
        absent=no_gpus,
        whole=True,
        least=1.0,
    )
    yield _split(
        f"fleet.{way}.rate_rps",
        f"Largest rate that {what} sustain, iterations being no longer than the tightest objective on ITL or TPOT.",
        rate,
        absent=_NO_SPLIT,
    )
    yield _split(
        f"fleet.{way}.goodput_rps",
        f"Largest rate at which {what} meet all objectives, requests being routed at random.",
        "replicas · largest rate with latency.* at most its bound, for each objective",
        absent="goodput.rate_rps has that of the profile's fleet; kvplan plan --split compares both ways.",
    )
    for time in ("ttft", "itl"):
        yield _split(
            f"fleet.{way}.{time}_s",
            f"Mean {time.upper()} of {what} at the offered rate, simulated behind the router.",
            absent="The queue grows at the offered rate, or the simulator does not model the fleet so.",
        )


FLEET = Block(
    "fleet",
    "Prefill and decode on replicas of their own, or both on each.",
    (
        _split(
            "fleet.split.prefill",
            "Replicas that compute prompts: of [fleet], or of the best split of as many GPUs.",
            absent=_NO_SPLIT,
            whole=True,
            least=1.0,
        ),
        _split(
            "fleet.split.decode",
            "Replicas that generate.",
            absent=_NO_SPLIT,
            whole=True,
            least=1.0,
        ),
        *_of_fleet(
            "split", "replicas apart", "min(x·r_p, y·r_d), r_p and r_d of a replica of each kind", _NO_SPLIT
        ),
        Record(
            "fleet.together.replicas",
            "Replicas that do both, on as many GPUs.",
            source="the profile",
            whole=True,
            least=1.0,
        ),
        *_of_fleet("together", "replicas together", "replicas · r, r of one of them", ""),
        _split(
            "fleet.winner",
            "What serves more: by goodput where that is known, else by rate.",
            inputs="fleet.split.goodput_rps fleet.together.goodput_rps fleet.split.rate_rps fleet.together.rate_rps",
            absent=_NO_SPLIT,
            kind=Kind.TEXT,
            allowed=("split", "together", "even"),
        ),
        _split(
            "fleet.crossing_itl_s",
            "Limit on the time between tokens at which both sustain the same rate.",
            "x·r_p = r(ITL) of together, or y·r_d(ITL) = r(ITL)",
            absent="One of them serves more at every limit, or there is no split.",
        ),
        _split("fleet.reason", "In numbers, why.", kind=Kind.TEXT),
    ),
    absent="The profile has no [fleet].",
    nullable=True,
)
