"""Keys of the blocks about admission: the rate cap, WAIT, Nested WAIT, and the safety buffer."""

from functools import partial

from kvplan.report.keys.fluid import NO_EQUILIBRIUM
from kvplan.report.keys.record import Block, Kind, Record, class_name, percent, probability

_NO_BUDGETS = "No whole numbers fit: Σ(⌊λ_i·τ*⌋ + 1)·S_i >= M, or there is no equilibrium."
_NO_WAIT = (
    "Arrivals replay a trace or follow the answers of sessions, so that only a simulation knows how long they wait; or "
    "there is no equilibrium."
)
_NO_SEGMENTS = "Λ >= 1: no thresholds keep up with arrivals, so there are no segments."
_NO_QUEUE = "Requests that wait for the first segment hold no KV; where Λ >= 1 there are no segments."

_nested = partial(Record, source="WAIT-s Theorem 5.1", absent=NO_EQUILIBRIUM)
_buffer = partial(Record, source="new", absent=NO_EQUILIBRIUM)

RATE_CAP = Block(
    "rate_cap",
    "Admission limits against preemptions.",
    (
        Record(
            "rate_cap.per_iteration",
            "Admissions per iteration that keep memory full on average: preemptions grow rare, whatever is "
            "offered.",
            "n* = M/Σ p_i·S_i = M/S̄",
            "memory footprint",
            source="SIC 5.1",
            label="Admissions per iteration",
            unit="requests",
        ),
        Record(
            "rate_cap.per_second",
            "The same cap per second, with memory full.",
            "n*/τ(M)",
            "rate_cap.per_iteration saturation.iteration_time_s",
            source="SIC 5.1",
            label="Admissions",
            unit="requests/s",
        ),
        class_name("rate_cap"),
        Record(
            "rate_cap.classes[].per_iteration",
            "The class's part of the cap.",
            "p_i·n*",
            "class_share rate_cap.per_iteration",
            source="SIC 5.1",
            unit="requests",
        ),
        Record(
            "rate_cap.classes[].integer_budget",
            "Whole admissions per iteration that never overflow and keep up with arrivals, for the shortest "
            "queues.",
            "b_i > λ_i·τ* with Σ b_i·S_i < M, minimising Σ E[Q_i]",
            "class_rate equilibrium.iteration_time_s class_footprint memory",
            source="FC Theorem 3.3; the choice among feasible budgets is new",
            unit="requests",
            absent=_NO_BUDGETS,
            whole=True,
        ),
        Record(
            "rate_cap.engine_max_num_seqs",
            "Concurrency at which even the longest requests cannot overflow memory; nor in vLLM, which reserves a "
            "page and computes no KV of a last token.",
            "min(⌊⌊M/b⌋/⌈max(s + d)/b⌉⌋, ⌊(⌊M/b⌋ − 1)/⌈(max(s + d) − 1)/b⌉⌋)",
            "pages longest_pages computed_pages",
            source="new",
            label="Engine max_num_seqs",
            unit="requests",
            whole=True,
        ),
        Record(
            "rate_cap.engine_sustainable_rps",
            "Largest total rate that can be sustained with that concurrency: what it costs to exclude "
            "preemptions.",
            "smaller of α·Σλ and x/(F + x·c̄) for x = engine_max_num_seqs/n̄ admissions an iteration, or for "
            "fewer where those are served faster",
            "load.sustainable_rps rate_cap.engine_max_num_seqs iterations fixed work",
            source="WAIT-s eq. 3-6; the limit new",
            label="Sustainable with it",
        ),
    ),
    beside=(
        "rate_cap.classes[].mean_wait_s",
        "rate_cap.budgets_are_optimal",
    ),
)
WAIT = Block(
    "wait",
    "WAIT: admission thresholds where decode lengths are known.",
    (
        Record(
            "wait.feasible",
            "Whether thresholds exist that keep up with arrivals.",
            "Λ < 1",
            "load.work_rate",
            source="WAIT-s eq. 7, Theorem 4.1",
            kind=Kind.TRUTH,
        ),
        Record(
            "wait.thresholds[]",
            "Smallest whole numbers of requests per stage with which WAIT keeps up, class by class.",
            "least n with n_i = ⌊λ_i·ΔT(n)⌋ + 1, so that ΔT(n) < n_i/λ_i",
            "class_rate wait.iteration_time_s",
            source="WAIT-s eq. 7; the least fixed point is new",
            unit="requests",
            absent=NO_EQUILIBRIUM,
            whole=True,
            by_class=True,
        ),
        Record(
            "wait.iteration_time_s",
            "Time of an iteration with every threshold filled.",
            "ΔT = F + Σ n_i·c_i",
            "fixed wait.classes[].threshold class_work",
            source="WAIT-s eq. 7; d2 to d5 new",
            label="Iteration time",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "wait.kv_tokens",
            "KV tokens held with every threshold filled.",
            "Σ n_i·S_i",
            "wait.classes[].threshold class_footprint",
            source="WAIT-s eq. 7",
            label="Memory",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "wait.fits",
            "Whether the smallest thresholds fit in memory.",
            "Σ n_i·S_i <= M",
            "wait.kv_tokens memory",
            source="WAIT-s eq. 7",
            kind=Kind.TRUTH,
        ),
        class_name("wait"),
        Record(
            "wait.classes[].threshold",
            "Smallest whole number of requests per stage of the class.",
            "n_i = ⌊λ_i·ΔT(n)⌋ + 1",
            "class_rate wait.iteration_time_s",
            source="WAIT-s eq. 7; the least fixed point is new",
            unit="requests",
            absent=NO_EQUILIBRIUM,
            whole=True,
        ),
        Record(
            "wait.classes[].mean_wait_bound_s",
            "Bound on the mean wait before the first iteration; exact for one class.",
            "several classes: (2n + I·a/(2(n − a)))/λ with a = λ·ΔT, I the index of dispersion of arrivals; one "
            "class: (n − 1)/2λ + w, w the wait of a batch for those before it",
            "wait.classes[].threshold class_rate wait.iteration_time_s",
            source="WAIT-s Lemma C.6; the exact queue, and gamma gaps, new",
            absent=_NO_WAIT,
        ),
        Record(
            "wait.classes[].latency_s",
            "That wait, an interval n/λ for every further iteration, an iteration, and the time outside the "
            "engine.",
            "wait + (n̄_i − 1)·n_i/λ_i + ΔT + request_overhead",
            "wait.classes[].mean_wait_bound_s class_iterations wait.classes[].threshold class_rate "
            "wait.iteration_time_s overhead",
            source="WAIT-s Theorem 4.1",
            absent=_NO_WAIT,
        ),
        Record(
            "wait.max_thresholds[]",
            "Largest whole numbers of requests per stage that fit in memory: most throughput, longest wait.",
            "n = ⌊t·λ⌋ + 1 along a common t, with Σ n_i·S_i <= M",
            "class_rate class_footprint memory",
            source="new, from WAIT-s eq. 7",
            unit="requests",
            absent="Not even the smallest thresholds fit, or Λ >= 1.",
            whole=True,
            by_class=True,
        ),
    ),
    beside=(
        "wait.classes[].dispersion",
        "wait.smallest",
        "wait.dial",
        "wait.worst_window",
    ),
)
NESTED_WAIT = Block(
    "nested_wait",
    "Nested WAIT: thresholds and memory where decode lengths are unknown.",
    (
        _nested(
            "nested_wait.feasible",
            "Whether thresholds exist that keep up with arrivals.",
            "Λ < 1",
            "load.work_rate",
            absent="",
            kind=Kind.TRUTH,
        ),
        Record(
            "nested_wait.segments[].upto_decode",
            "Decode length at which the segment ends; chosen for the least memory unless the profile gives a "
            "number.",
            "l'_k",
            source="WAIT 7; the choice is new",
            unit="tokens",
            absent=_NO_SEGMENTS,
            whole=True,
        ),
        _nested(
            "nested_wait.segments[].rate_rps",
            "Requests that reach the segment.",
            "Λ_k = Σ λ_j over the lengths beyond l'_(k−1)",
            "class_rate",
            absent=_NO_SEGMENTS,
        ),
        _nested(
            "nested_wait.segments[].continue_probability",
            "Share of the segment before that goes on to this one.",
            "p_k = Λ_k/Λ_(k−1)",
            "nested_wait.segments[].rate_rps",
            absent="The first segment has none before it; where Λ >= 1 there are no segments.",
            most=1.0,
        ),
        Record(
            "nested_wait.segments[].threshold",
            "Requests kept at every stage of the segment.",
            "Λ_1·ΔT < n_1; n_k > p_k·n_(k−1); larger than the least where that shrinks the buffer more than it "
            "costs",
            "nested_wait.segments[].rate_rps nested_wait.segments[].continue_probability",
            source="WAIT-s Theorem 5.1; the raised thresholds new",
            unit="requests",
            absent=_NO_SEGMENTS,
            whole=True,
        ),
        Record(
            "nested_wait.segments[].theta",
            "Decay rate of the queue at the segment's start: the larger, the smaller the buffer.",
            "θ > 0 with θ·n_k = n_(k−1)·ln(1 − p_k + p_k·e^θ)",
            "nested_wait.segments[].threshold nested_wait.segments[].continue_probability",
            source="WAIT-s eq. 13, Lemma D.2",
            unit="per request",
            absent="θ = ∞: the first segment has no such queue, and with n_k >= n_(k−1) it cannot outgrow n_k. Where Λ "
            ">= 1 there are no segments.",
        ),
        Record(
            "nested_wait.segments[].parked_bound",
            "Requests waiting at the segment's start while a batch runs, exceeded within the horizon with "
            "probability δ at most.",
            "c_k = n_k + ln(h·(m − 1)·N/δ)/θ_k, m segments, N iterations in T, h = 2 where inputs differ, else 1",
            "nested_wait.segments[].threshold nested_wait.segments[].theta delta horizon",
            source="WAIT-s Theorem 5.1; half of δ where inputs differ (new)",
            unit="requests",
            absent=_NO_QUEUE,
        ),
        Record(
            "nested_wait.segments[].queue_bound",
            "The same just before a batch takes n_k of them, while as many fewer run.",
            "c_k + n_k − 1",
            "nested_wait.segments[].parked_bound nested_wait.segments[].threshold",
            source="new",
            unit="requests",
            absent=_NO_QUEUE,
        ),
        _nested(
            "nested_wait.base_kv_tokens",
            "KV tokens with every segment filled.",
            "M^π = Σ n_k·E_k[Σ_t b·⌈(s + t)/b⌉], t = l'_(k−1) + 1 … l'_k, and t = 0 for the prompt-only stage "
            "where prefill is inline; without pages Σ n_k·(l'_k − l'_(k−1))·(s̄_k + (l'_(k−1) + l'_k + 1)/2)",
            "nested_wait.segments[].threshold nested_wait.segments[].upto_decode",
            source="WAIT-s Theorem 5.1; tokens per stage corrected, whole pages (new)",
            label="Filled segments",
        ),
        _nested(
            "nested_wait.boundary_kv_tokens",
            "KV tokens of n_k requests that wait at every boundary.",
            "Σ_(k>=2) n_k·w_k, w_k = E_k[b·⌈(s + l'_(k−1))/b⌉]",
            "nested_wait.segments[].threshold nested_wait.segments[].upto_decode",
            label="Waiting at boundaries",
        ),
        _nested(
            "nested_wait.high_probability_kv_tokens",
            "KV tokens by which queues exceed that, with probability δ at most within the horizon.",
            "Σ_(k>=2) w_k·(c_k − n_k)",
            "nested_wait.segments[].parked_bound nested_wait.segments[].threshold",
            label="Buffer for their queues",
        ),
        _nested(
            "nested_wait.input_spread_kv_tokens",
            "KV tokens by which what requests hold exceeds its mean over inputs, with probability δ at most "
            "within the horizon; 0 where all inputs are equal.",
            "min over θ of [ln(h·N/δ) + Σ R_k·ln E_k e^(θ(w − w̄))]/θ, w in whole pages, over the n_k requests of "
            "each stage and the ⌈c_k⌉ that wait at each boundary; h = 2 with several segments, else 1. At most "
            "what the largest inputs throughout exceed the mean by.",
            "delta horizon",
            source="new",
            label="Buffer for inputs that differ",
        ),
        _nested(
            "nested_wait.required_kv_tokens",
            "Memory that Nested WAIT needs to stay within it with probability 1 − δ over the horizon.",
            "base + boundary + high-probability + spread of inputs",
            "nested_wait.base_kv_tokens nested_wait.boundary_kv_tokens nested_wait.high_probability_kv_tokens "
            "nested_wait.input_spread_kv_tokens",
            source="WAIT-s Theorem 5.1; inputs that differ new",
            label="Required memory",
        ),
        _nested(
            "nested_wait.fits",
            "Whether that is at most what memory holds.",
            "required <= M",
            "nested_wait.required_kv_tokens memory",
            absent="",
            kind=Kind.TRUTH,
        ),
    ),
    beside=(
        "nested_wait.segments[].input_tokens",
        "nested_wait.segments[].kv_tokens",
        "nested_wait.segments[].parked_kv_tokens",
        "nested_wait.iteration_time_s",
        "nested_wait.iterations",
        "nested_wait.smallest_thresholds_kv_tokens",
        "nested_wait.printed",
    ),
)
SAFETY_BUFFER = Block(
    "safety_buffer",
    "How likely KV cache usage exceeds memory, and the buffer against it.",
    (
        _buffer(
            "safety_buffer.kv_std_tokens",
            "Standard deviation of KV cache usage before any preemption, with the feedback of usage on iteration "
            "time and with clusters of arrivals.",
            "σ² = (1/2π)·∫ Σ λ_i·τ*·|W_i + G·V_i/(1 − H)|² dω, H = e^(−iω)·Σ λ_i·V_i, G = e^(−iω)·Σ λ_i·W_i; "
            "where arrivals cluster + (I − 1)·τ*/λ·|Σ λ_i·W_i/(1 − H)|², I the index of dispersion over a stay",
            "class_rate equilibrium.iteration_time_s",
            source="new: Poisson cluster process",
            label="Spread of KV cache usage",
        ),
        _buffer(
            "safety_buffer.overflow_probability_per_iteration",
            "Probability that KV cache usage exceeds memory in an iteration.",
            "P = P(K > M): the larger of saddlepoint, with feedback, and exact law at constant iteration time; "
            "the latter where iteration times hardly vary",
            "memory equilibrium.kv_tokens safety_buffer.kv_std_tokens",
            source="new: Lugannani-Rice on the cluster process; compound Poisson by FFT",
            label="Overflow, per iteration",
            format=probability,
            most=1.0,
        ),
        _buffer(
            "safety_buffer.overflow_probability_horizon",
            "Probability of any overflow within the horizon, estimated: overflowing iterations come in clumps.",
            "1 − (1 − P)·exp(−(max(1, T/τ*) − 1)·rate), rate = min(P, 1.15·(1 − P)/t(u)), t(u) = (1/c)·∫ Φ²/φ dy "
            "to u = Φ⁻¹(1 − P), c = E(K_(t+m) − K_t)²/(2m·σ²), m = 1/(9c)",
            "safety_buffer.overflow_probability_per_iteration horizon equilibrium.iteration_time_s",
            source="new: passage of KV cache usage in normal scores; 0.6 to 3.5 times what simulations have",
            label="Any overflow in the horizon, about",
            format=probability,
            most=1.0,
            basis="estimated",
        ),
        _buffer(
            "safety_buffer.overflow_probability_horizon_bound",
            "Probability of any overflow within the horizon, at most: the sum over its iterations.",
            "min(1, max(1, T/τ*)·P)",
            "safety_buffer.overflow_probability_per_iteration horizon equilibrium.iteration_time_s",
            source="new: union bound over iterations (Boole)",
            label="Any overflow in the horizon, at most",
            format=probability,
            most=1.0,
        ),
        _buffer(
            "safety_buffer.required_kv_tokens",
            "Memory with which an overflow within the horizon has the estimated probability δ at most, in whole "
            "pages.",
            "smallest M >= max(s + d) with P(any in T) <= δ",
            "delta horizon",
            label="Required memory",
            whole=True,
            basis="estimated",
        ),
        _buffer(
            "safety_buffer.watermark_fraction",
            "The buffer above the mean as a fraction of memory, for an engine's watermark.",
            "(required − M*)/M",
            "safety_buffer.required_kv_tokens equilibrium.kv_tokens memory",
            label="Watermark",
            format=percent,
            absent="The buffer would be more than the memory, or there is no equilibrium.",
            basis="estimated",
        ),
        Record(
            "safety_buffer.theorem_bound",
            "The published bound on overflows within the horizon; usually far too large to be of use.",
            "T·exp(−ε²·M²/(2·(A² + A)·C³)), A the largest budget (without budgets, the next whole number above "
            "the arrivals an iteration), C = max(input, decode), ε = 1 − mean/M",
            "memory equilibrium.kv_tokens horizon equilibrium.iteration_time_s rate_cap.classes[].integer_budget",
            source="FC Theorem 3.6",
            absent="The mean fills memory (ε <= 0), or there is no equilibrium.",
            basis="theorem",
        ),
    ),
    beside=(
        "safety_buffer.theorem_bound_is_vacuous",
        "safety_buffer.saddlepoint_probability",
        "safety_buffer.exact_pmf_probability",
    ),
)
