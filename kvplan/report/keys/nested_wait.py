"""Keys of the `nested_wait` block."""

from kvplan.report.keys.equilibrium import NO_EQUILIBRIUM
from kvplan.report.keys.evidence import Evidence, at
from kvplan.report.keys.record import Block, Kind, Record

_SEGMENTS = "nested_wait.segments"
_PARTS = ("base", "boundary", "high_probability", "input_spread")
_NO_SEGMENTS = "Λ >= 1: no thresholds keep up with arrivals, so there are no segments."


def _threshold(e: Evidence) -> str:
    if e.k == 0:
        return f"Λ_1·ΔT = {e.here('rate_rps')}·{e('dt_nested')} < {e.here('threshold')}"
    passed_on = f"{e.here('continue_probability')}·{e.before('threshold')}"
    return f"p_k·n_(k−1) = {passed_on} < {e.here('threshold')}"


def _theta(e: Evidence) -> str:
    p = e.here("continue_probability", 12)
    return f"{e.before('threshold')}·ln(1 − {p} + {p}·exp({e.here('theta', 12)}))/{e.here('threshold')}"


def _parked_bound(e: Evidence) -> str:
    if e.k == 0:
        return ""
    if e.entry["theta"] is None:
        return e.here("threshold")
    events = f"{e('halves')}·{e('boundaries')}·{e('N')}/{e('delta')}"
    return f"{e.here('threshold')} + ln({events})/{e.here('theta')}"


def _queue_bound(e: Evidence) -> str:
    return f"{e.here('parked_bound')} + {e.here('threshold')} − 1" if e.k else ""


def _input_spread(e: Evidence) -> str:
    if at(e.document, "nested_wait.input_spread_kv_tokens") == 0:
        return "0"
    if not e.figures["theta_inputs"].value:
        return ""
    return f"(ln({e('halves')}·{e('N')}/{e('delta')}) + {e('log_transform')})/{e('theta_inputs')}"


def _required(e: Evidence) -> str:
    return " + ".join(e(f"nested_wait.{part}_kv_tokens") for part in _PARTS)


NESTED_WAIT = Block(
    "nested_wait",
    "Nested WAIT: thresholds and memory where decode lengths are unknown.",
    (
        Record(
            "nested_wait.feasible",
            "Whether thresholds exist that keep up with arrivals.",
            formula="Λ < 1",
            here=lambda e: f"Λ = {e('load.work_rate')}",
            source="WAIT-s Theorem 5.1",
            kind=Kind.TRUTH,
            of_worst_window=True,
        ),
        Record(
            "nested_wait.segments[].upto_decode",
            "Decode length at which the segment ends; chosen for the least memory unless the profile gives a number.",
            formula="l'_k",
            source="WAIT 7; the choice is new",
            symbol="l'_k",
            unit="tokens",
            absent=_NO_SEGMENTS,
            whole=True,
        ),
        Record(
            "nested_wait.segments[].rate_rps",
            "Requests that reach the segment.",
            formula="Λ_k = Σ λ_j over the lengths beyond l'_(k−1)",
            source="WAIT-s Theorem 5.1",
            symbol="Λ_k",
            unit="requests/s",
            absent=_NO_SEGMENTS,
            of_worst_window=True,
        ),
        Record(
            "nested_wait.segments[].continue_probability",
            "Share of the segment before that goes on to this one.",
            formula="p_k = Λ_k/Λ_(k−1)",
            here=lambda e: f"{e.here('rate_rps')} / {e.before('rate_rps')}",
            source="WAIT-s Theorem 5.1",
            symbol="p_k",
            most=1.0,
            absent="The first segment has none before it; where Λ >= 1 there are no segments.",
            of_worst_window=True,
        ),
        Record(
            "nested_wait.segments[].threshold",
            "Requests kept at every stage of the segment.",
            formula="Λ_1·ΔT < n_1; n_k > p_k·n_(k−1); larger than the least where that shrinks the buffer more than "
            "it costs",
            here=_threshold,
            source="WAIT-s Theorem 5.1; the raised thresholds new",
            symbol="n_k",
            unit="requests",
            absent=_NO_SEGMENTS,
            whole=True,
            of_worst_window=True,
        ),
        Record(
            "nested_wait.segments[].theta",
            "Decay rate of the queue at the segment's start: the larger, the smaller the buffer.",
            formula="θ > 0 with θ·n_k = n_(k−1)·ln(1 − p_k + p_k·e^θ)",
            here=_theta,
            source="WAIT-s eq. 13, Lemma D.2",
            symbol="θ_k",
            unit="per request",
            absent="θ = ∞: the first segment has no such queue, and with n_k >= n_(k−1) it cannot outgrow n_k. "
            "Where Λ >= 1 there are no segments.",
        ),
        Record(
            "nested_wait.segments[].parked_bound",
            "Requests waiting at the segment's start while a batch runs, exceeded within the horizon with "
            "probability δ at most.",
            formula="c_k = n_k + ln(h·(m − 1)·N/δ)/θ_k, h = 2 where inputs differ, else 1",
            here=_parked_bound,
            source="WAIT-s Theorem 5.1; half of δ where inputs differ (new)",
            symbol="c_k",
            unit="requests",
            absent="Requests that wait for the first segment hold no KV; where Λ >= 1 there are no segments.",
        ),
        Record(
            "nested_wait.segments[].queue_bound",
            "The same just before a batch takes n_k of them, while as many fewer run.",
            formula="c_k + n_k − 1",
            here=_queue_bound,
            source="new",
            unit="requests",
            absent="Requests that wait for the first segment hold no KV; where Λ >= 1 there are no segments.",
        ),
        Record(
            "nested_wait.base_kv_tokens",
            "KV tokens with every segment filled.",
            formula="M^π = Σ n_k·E_k[Σ_t b·⌈(s + t)/b⌉], t = l'_(k−1) + 1 … l'_k, and t = 0 for the prompt-only stage "
            "where prefill is inline; without pages Σ n_k·(l'_k − l'_(k−1))·(s̄_k + (l'_(k−1) + l'_k + 1)/2)",
            here=lambda e: e.total(_SEGMENTS, lambda one: f"{one.here('threshold')}·{one('tokens')}"),
            source="WAIT-s Theorem 5.1; tokens per stage corrected, whole pages (new)",
            symbol="M^π",
            unit="tokens",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "nested_wait.boundary_kv_tokens",
            "KV tokens of n_k requests that wait at every boundary.",
            formula="Σ_(k>=2) n_k·w_k, w_k = E_k[b·⌈(s + l'_(k−1))/b⌉]",
            here=lambda e: e.total(_SEGMENTS, lambda one: f"{one.here('threshold')}·{one('w')}"),
            source="WAIT-s Theorem 5.1",
            unit="tokens",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "nested_wait.high_probability_kv_tokens",
            "KV tokens by which queues exceed that, with probability δ at most within the horizon.",
            formula="Σ_(k>=2) w_k·(c_k − n_k)",
            here=lambda e: e.total(_SEGMENTS, lambda one: f"{one('w')}·{one('excess')}"),
            source="WAIT-s Theorem 5.1",
            unit="tokens",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "nested_wait.input_spread_kv_tokens",
            "KV tokens by which what requests hold exceeds its mean over inputs, with probability δ at most within the "
            "horizon; 0 where all inputs are equal.",
            formula="min over θ of [ln(h·N/δ) + Σ R_k·ln E_k e^(θ(w − w̄))]/θ, w in whole pages, over the n_k requests "
            "of each stage and the ⌈c_k⌉ that wait at each boundary; h = 2 with several segments, else 1. At most what "
            "the largest inputs throughout exceed the mean by.",
            here=_input_spread,
            source="new",
            symbol="c",
            unit="tokens",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "nested_wait.required_kv_tokens",
            "Memory that Nested WAIT needs to stay within it with probability 1 − δ over the horizon.",
            formula="base + boundary + high-probability + spread of inputs",
            here=_required,
            source="WAIT-s Theorem 5.1; inputs that differ new",
            unit="tokens",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "nested_wait.fits",
            "Whether that is at most what memory holds.",
            formula="required <= M",
            here=lambda e: f"required = {e('nested_wait.required_kv_tokens')}, M = {e('M')}",
            source="WAIT-s Theorem 5.1",
            kind=Kind.TRUTH,
        ),
        Record(
            "nested_wait.segments[].input_tokens",
            "Mean input of the requests that reach the segment.",
            unit="tokens",
            absent=_NO_SEGMENTS,
            in_contract=False,
        ),
        Record(
            "nested_wait.segments[].kv_tokens",
            "KV tokens of the segment's stages when filled, mean over inputs.",
            unit="tokens",
            absent=_NO_SEGMENTS,
            in_contract=False,
        ),
        Record(
            "nested_wait.segments[].parked_kv_tokens",
            "KV tokens of a request that waits at the segment's start, mean over inputs.",
            unit="tokens",
            absent=_NO_SEGMENTS,
            in_contract=False,
        ),
        Record(
            "nested_wait.iteration_time_s",
            "Mean time of an iteration with every segment filled.",
            unit="s",
            absent=NO_EQUILIBRIUM,
            in_contract=False,
        ),
        Record(
            "nested_wait.iterations",
            "Iterations within the horizon.",
            unit="iterations",
            absent=NO_EQUILIBRIUM,
            whole=True,
            in_contract=False,
        ),
        Record(
            "nested_wait.smallest_thresholds_kv_tokens",
            "Memory that the same segments need with the smallest thresholds.",
            unit="tokens",
            absent=NO_EQUILIBRIUM,
            in_contract=False,
        ),
        Record(
            "nested_wait.input_bound",
            "At which θ the bound for inputs that differ is least, and the logarithm of their transform there.",
            absent="All inputs are equal, or there is no equilibrium.",
            kind=Kind.TABLE,
            in_contract=False,
        ),
        Record(
            "nested_wait.printed",
            "What the formulas that the papers print give for the same thresholds.",
            absent=NO_EQUILIBRIUM,
            kind=Kind.TABLE,
            in_contract=False,
        ),
    ),
)
