"""Keys of the blocks about the fluid: verdict, load, equilibrium, saturation."""

from functools import partial

from kvplan.report.keys.record import Block, Kind, Record, Warm, change, class_name, percent
from kvplan.report.words import Status
from kvplan.units import format_tokens

_FLUID = "WAIT-s eq. 3-6"
_LIMITS = "WAIT-s eq. 3-6, WAIT Prop. 1, 2; engine limits and pages new"
NO_EQUILIBRIUM = "Λ >= 1: the work alone takes longer than the time between arrivals, no equilibrium exists."
UNIQUE = "K = Σλ·S̄·τ* − D, D what running requests have in common beyond once"
GUARANTEED = (
    "x/τ(x) where x admissions an iteration fill memory, or meet a limit, and only what is in use is found"
)
WARM_SATURATION = "τ(M) = F + n*·(c̄ − d2·h), h prompt tokens found of a request"

# What `load.sensitivity` is about, with its symbol and the quantity; a limit need not be there
_SENSITIVE = {
    "memory_tokens": ("M", "memory"),
    **{name: (name, name) for name in ("d0", "d1", "d2", "d3", "d4", "d5", "knee_tokens")},
    "max_num_seqs": ("B_max", "max_num_seqs"),
    "max_num_batched_tokens": ("T_b", "max_num_batched_tokens"),
}

_steady = partial(
    Record,
    source=_FLUID,
    absent=f"{NO_EQUILIBRIUM} Or no warm state of a prefix cache serves the offered rate.",
)

VERDICT = Block(
    "verdict",
    "The answer in a word, and the limit that binds.",
    (
        Record(
            "verdict.status",
            "Whether the load fits, and whether the replica recovers by itself from any backlog in random order.",
            "overloaded: offered > sustainable; stable: otherwise, and offered ≤ verdict.recovers_up_to_rps; "
            "needs_cap: the rest",
            "load.offered_rps load.sustainable_rps verdict.recovers_up_to_rps",
            source="WAIT Prop. 1, 2; finite memory new",
            kind=Kind.TEXT,
            allowed=tuple(Status),
            warm=Warm(
                "overloaded: offered > the good rate; needs_cap: otherwise, and the cache can collapse or offered > "
                "verdict.recovers_up_to_rps; stable: the rest",
                "load.offered_rps prefix_cache.sustainable_rps.good prefix_cache.collapse_possible "
                "verdict.recovers_up_to_rps",
            ),
        ),
        Record(
            "verdict.binding",
            "The limit that is met first as the load grows.",
            "the smallest of the limits' rates; memory is called compute where M·Σλ·c̄ > Σλ·S̄·F",
            "limits",
            source="WAIT-s eq. 3-6; engine limits new",
            label="Binding constraint",
            kind=Kind.TEXT,
            allowed=("kv_memory", "compute", "max_num_seqs", "max_num_batched_tokens"),
            warm=Warm(
                "the smallest of the limits' guaranteed rates; memory is called compute where requests add more than "
                "half of τ(M)",
                "limits",
            ),
        ),
        Record("verdict.summary", "The verdict in one sentence with its numbers.", kind=Kind.TEXT),
        Record(
            "verdict.recovers_up_to_rps",
            "Largest offered rate at which any backlog in random order drains, from the worst of several "
            "collapsed states: a flood, requests of all ages, pulses. For the profile's engine and its admission.",
            "smallest of the sustainable rate and X − max(3·SE, 0.5 %·X), X the rate that a saturated replica was "
            "seen to serve; the sustainable rate where nothing is ever preempted",
            "load.sustainable_rps",
            source="new",
            absent="The engine does not run what the profile has.",
            basis="simulated",
            warm=Warm(
                "smallest of the guaranteed rate and X − max(3·SE, 0.5 %·X) of a cache that finds only what is always "
                "in use; of users, the same part of what they ask",
                "load.sustainable_rps",
            ),
        ),
        Record(
            "verdict.recovers_settled",
            "Whether the runs that measured it sufficed; if not, it may be too low.",
            source="new",
            kind=Kind.TRUTH,
            basis="simulated",
        ),
        Record(
            "verdict.drain.burst_requests",
            "Requests of a standard burst: four times the offered rate for a minute, or for the mean stay in a full "
            "replica if that is longer; of sessions three times those of two minutes, all at once.",
            source="new",
            absent="The engine does not run what the profile has.",
        ),
        *(
            Record(
                f"verdict.drain.{key}",
                f"{words} of the time until a standard burst is gone: until its queue stays empty for a mean stay, or "
                "for a session's life.",
                source="new",
                unit="s",
                absent="It is not gone within what was run, a day at most: verdict.drain.reason says why.",
                basis="simulated",
            )
            for key, words in (("seconds", "Median over runs"), ("low", "Least"), ("high", "Most"))
        ),
        Record("verdict.drain.reason", "Why there is no time; empty where there is one.", kind=Kind.TEXT),
        Record(
            "verdict.drain.preempted",
            "Preemptions from its begin on until it is gone, the median over runs.",
            source="new",
            absent="It is not gone within what was run.",
            whole=True,
            basis="simulated",
        ),
    ),
)
LOAD = Block(
    "load",
    "What is offered against what can be sustained.",
    (
        Record(
            "load.offered_rps",
            "Arrivals of all classes together.",
            "Σλ",
            "class_rate",
            source="the profile",
            label="Offered load",
        ),
        Record(
            "load.work_rate",
            "Seconds of work demanded per second; from 1 on, no policy is stable at any memory.",
            "Λ = Σλ·c̄, c̄ = d1·S̄ + d2·s̄ + d3·n̄; with d5 Λ = Σλ·(c̄ + d5·(s̄ + n̄)), as if every iteration "
            "were beyond the knee: small batches may keep up even where Λ >= 1",
            "rate work context d1 prefill d2 iterations d3",
            source="WAIT-s eq. 3, WAIT Prop. 1; d2 to d5 new",
            label="Work rate",
        ),
        Record(
            "load.load_factor_max",
            "Factor by which every rate can grow before the first limit is met.",
            "α = smallest of x/(Σλ·(F + x·c̄)) for x = M/S̄, B_max/n̄, T_b/t̄ admissions an iteration, or for "
            "fewer where those are served faster",
            "rate fixed work memory footprint max_num_seqs iterations max_num_batched_tokens computed",
            source=_LIMITS,
            label="Largest load factor",
            warm=Warm(
                "α = guaranteed rate/Σλ; of a closed population, users guaranteed over users",
                "rate load.sustainable_rps users",
            ),
        ),
        Record(
            "load.headroom",
            "How much the load can grow, as a fraction of itself; negative where it is too large already.",
            "α − 1",
            "load.load_factor_max",
            source=_LIMITS,
            least=-1.0,
        ),
        Record(
            "load.sustainable_rps",
            "Largest total rate that some policy can serve.",
            "α·Σλ",
            "load.load_factor_max rate",
            source=_LIMITS,
            label="Sustainable rate",
            warm=Warm(GUARANTEED, "memory footprint fixed work"),
        ),
        Record(
            "load.sustainable_rps_range",
            "The same rate where iterations take as long, and as short, as the error band of the timing allows.",
            "α·Σλ/band[1] to α·Σλ/band[0]",
            "load.sustainable_rps band",
            source="new",
            unit="requests/s",
            absent="The profile gives no error band of its timing.",
            kind=Kind.PAIR,
        ),
        Record(
            "load.sustainable_decode_tokens_per_s",
            "Decode tokens per second at the sustainable rate.",
            "α·Σλ·d̄",
            "load.sustainable_rps decode",
            source="WAIT-s eq. 6, counted in decode tokens",
            label="Sustainable decode",
        ),
        *(
            Record(
                f"load.sensitivity.{name}",
                f"Relative change of the sustainable rate for +10 % {name}.",
                f"α(1.1·{symbol})/α − 1, every limit considered",
                f"load.load_factor_max {quantity}",
                source="new, from WAIT-s eq. 3-6",
                label=f"Rate for +10% {name}",
                format=change,
                unit="",
                absent="The profile has no such limit." if name.startswith("max_num_") else "",
                least=-1.0,
            )
            for name, (symbol, quantity) in _SENSITIVE.items()
        ),
    ),
)
EQUILIBRIUM = Block(
    "equilibrium",
    "The preemption-free steady state at the offered load.",
    (
        _steady(
            "equilibrium.kv_tokens",
            "KV tokens held in memory; more than memory holds where the load does not fit.",
            "M* = Σλ·S̄·τ*",
            "rate footprint equilibrium.iteration_time_s",
            label="KV tokens",
            format=format_tokens,
            warm=Warm(UNIQUE, "rate footprint equilibrium.iteration_time_s"),
        ),
        _steady(
            "equilibrium.kv_utilization",
            "Share of memory in use.",
            "M*/M",
            "equilibrium.kv_tokens memory",
            label="KV cache usage",
            format=percent,
        ),
        _steady(
            "equilibrium.iteration_time_s",
            "Time of an iteration.",
            "τ* = F/(1 − Σλ·c̄), the least with Σλ·τ* admissions an iteration",
            "fixed rate work",
            source=f"{_FLUID}, WAIT Prop. 2",
            label="Iteration time",
            warm=Warm(
                "τ* = F/(1 − Σλ·(c̄ − d2·h)), h prompt tokens found of a request; + dx·h₂ in the brackets where loads "
                "from a host tier are part of iterations",
                "fixed rate work d2 prefix_cache.hit_ratio prefix_cache.host.hit_ratio prompt",
            ),
        ),
        _steady(
            "equilibrium.requests_in_flight",
            "Requests in the batch.",
            "Σλ·n̄·τ*",
            "rate iterations equilibrium.iteration_time_s",
            label="Running requests",
            unit="requests",
        ),
        _steady(
            "equilibrium.decode_tokens_per_s",
            "Tokens generated per second.",
            "Σλ·d̄",
            "rate decode",
            source="WAIT, definition of throughput",
            label="Decode throughput",
        ),
        _steady(
            "equilibrium.prompt_iterations_per_s",
            "Iterations of requests per second; counts a prompt-only iteration where there is one.",
            "Σλ·n̄",
            "rate iterations",
            source="WAIT-s eq. 6",
            label="Prompt iterations",
            unit="iterations/s",
        ),
        class_name("equilibrium"),
        _steady(
            "equilibrium.classes[].per_stage",
            "Requests of the class at each of its stages: its arrivals per iteration.",
            "λ_i·τ*",
            "class_rate equilibrium.iteration_time_s",
            unit="requests",
        ),
        _steady(
            "equilibrium.classes[].in_flight",
            "Requests of the class in the batch.",
            "λ_i·n̄_i·τ*",
            "class_rate class_iterations equilibrium.iteration_time_s",
            unit="requests",
        ),
    ),
)
SATURATION = Block(
    "saturation",
    "The preemption-free state that exactly fills memory.",
    (
        Record(
            "saturation.admissions_per_iteration",
            "Admissions per iteration that keep memory exactly full without preemptions.",
            "n* = M/Σ p_i·S_i = M/S̄",
            "memory footprint",
            source="SIC 2; several classes WAIT-s eq. 3",
            label="Admissions per iteration",
            unit="requests",
            warm=Warm(
                "n* = (M + D)/S̄, D what running requests have in common beyond once", "memory footprint"
            ),
        ),
        Record(
            "saturation.iteration_time_s",
            "Time of an iteration with memory full.",
            "τ(M) = F + n*·c̄",
            "fixed saturation.admissions_per_iteration work",
            source="WAIT-s eq. 1; d2 to d5 new",
            label="Iteration time",
            warm=Warm(WARM_SATURATION, "fixed saturation.admissions_per_iteration work d2"),
        ),
        Record(
            "saturation.throughput_rps",
            "Requests per second with memory full: the sustainable rate where memory is the limit.",
            "n*/τ(M)",
            "saturation.admissions_per_iteration saturation.iteration_time_s",
            source=_FLUID,
            label="Throughput",
        ),
    ),
)
