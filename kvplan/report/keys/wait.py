"""Keys of the `wait` block."""

from kvplan.report.keys import law_text
from kvplan.report.keys.equilibrium import NO_EQUILIBRIUM
from kvplan.report.keys.evidence import Evidence
from kvplan.report.keys.record import Block, Kind, Record, class_name

_NO_WAIT = (
    "Arrivals replay a trace or follow the answers of sessions, so that only a simulation knows how long they wait; or "
    "there is no equilibrium."
)


def _threshold(e: Evidence) -> str:
    return f"⌊{e('rate')}·{e('wait.iteration_time_s', 12)}⌋ + 1"


def _mean_wait(e: Evidence) -> str:
    threshold = e.here("threshold")
    if len(e.document["wait"]["classes"]) == 1:
        return f"({threshold} − 1)/(2·{e('rate')}) + {e('batch_wait')}"
    arrivals = f"{e('rate')}·{e('wait.iteration_time_s', 12)}"
    return f"(2·{threshold} + {e('dispersion')}·{arrivals}/(2·({threshold} − {arrivals}))) / {e('rate')}"


def _latency(e: Evidence) -> str:
    between = f"({e('n')} − 1)·{e.here('threshold')}/{e('rate')}"
    outside = f" + {e('overhead')}" if e.figures["overhead"].value else ""
    return f"{e.here('mean_wait_bound_s')} + {between} + {e('wait.iteration_time_s')}{outside}"


WAIT = Block(
    "wait",
    "WAIT: admission thresholds where decode lengths are known.",
    (
        Record(
            "wait.feasible",
            "Whether thresholds exist that keep up with arrivals.",
            formula="Λ < 1",
            here=lambda e: f"Λ = {e('load.work_rate')}",
            source="WAIT-s eq. 7, Theorem 4.1",
            kind=Kind.TRUTH,
            of_worst_window=True,
        ),
        Record(
            "wait.thresholds[]",
            "Smallest whole numbers of requests per stage with which WAIT keeps up, class by class.",
            formula="least n with n_i = ⌊λ_i·ΔT(n)⌋ + 1, so that ΔT(n) < n_i/λ_i",
            here=_threshold,
            source="WAIT-s eq. 7; the least fixed point is new",
            symbol="n_i",
            unit="requests",
            absent=NO_EQUILIBRIUM,
            whole=True,
            by_class=True,
            of_worst_window=True,
        ),
        Record(
            "wait.iteration_time_s",
            "Time of an iteration with every threshold filled.",
            formula=law_text.WAIT,
            here=law_text.wait_here,
            source="WAIT-s eq. 7; d2 to d5 new",
            symbol="ΔT",
            unit="s",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "wait.kv_tokens",
            "KV tokens held with every threshold filled.",
            formula="Σ n_i·S_i",
            here=lambda e: e.total("wait.classes", lambda one: f"{one.here('threshold')}·{one('S_b')}"),
            source="WAIT-s eq. 7",
            unit="tokens",
            absent=NO_EQUILIBRIUM,
        ),
        Record(
            "wait.fits",
            "Whether the smallest thresholds fit in memory.",
            formula="Σ n_i·S_i <= M",
            here=lambda e: f"Σ n_i·S_i = {e('wait.kv_tokens')}, M = {e('M')}",
            source="WAIT-s eq. 7",
            kind=Kind.TRUTH,
        ),
        class_name("wait"),
        Record(
            "wait.classes[].threshold",
            "Smallest whole number of requests per stage of the class.",
            formula="n_i = ⌊λ_i·ΔT(n)⌋ + 1",
            here=_threshold,
            source="WAIT-s eq. 7; the least fixed point is new",
            symbol="n_i",
            unit="requests",
            absent=NO_EQUILIBRIUM,
            whole=True,
            of_worst_window=True,
        ),
        Record(
            "wait.classes[].mean_wait_bound_s",
            "Bound on the mean wait before the first iteration; exact for one class.",
            formula="several classes: (2n + I·a/(2(n − a)))/λ with a = λ·ΔT, I the index of dispersion of "
            "arrivals; one class: (n − 1)/2λ + w, w the wait of a batch for those before it",
            here=_mean_wait,
            source="WAIT-s Lemma C.6; the exact queue, and gamma gaps, new",
            unit="s",
            absent=_NO_WAIT,
            of_worst_window=True,
        ),
        Record(
            "wait.classes[].latency_s",
            "That wait, an interval n/λ for every further iteration, an iteration, and the time outside the engine.",
            formula="wait + (n̄_i − 1)·n_i/λ_i + ΔT + request_overhead",
            here=_latency,
            source="WAIT-s Theorem 4.1",
            unit="s",
            absent=_NO_WAIT,
            of_worst_window=True,
        ),
        Record(
            "wait.max_thresholds[]",
            "Largest whole numbers of requests per stage that fit in memory: most throughput, longest wait.",
            formula="n = ⌊t·λ⌋ + 1 along a common t, with Σ n_i·S_i <= M",
            source="new, from WAIT-s eq. 7",
            unit="requests",
            absent="Not even the smallest thresholds fit, or Λ >= 1.",
            whole=True,
            by_class=True,
            of_worst_window=True,
        ),
        Record(
            "wait.classes[].dispersion",
            "Variance over mean of the arrivals of the class in long times, 1 at least for several classes.",
            absent=_NO_WAIT,
            in_contract=False,
        ),
        Record(
            "wait.smallest",
            "Whether the thresholds are proved the smallest.",
            absent=NO_EQUILIBRIUM,
            kind=Kind.TRUTH,
            in_contract=False,
        ),
        Record(
            "wait.mean_lengths",
            "Whether a class has several decode lengths, and enters with its mean.",
            kind=Kind.TRUTH,
            in_contract=False,
        ),
        Record(
            "wait.dial",
            "Settings between the shortest latency and the largest throughput.",
            kind=Kind.TABLE,
            in_contract=False,
        ),
        Record(
            "wait.worst_window",
            "Whether rates vary, so that thresholds are for the worst window.",
            kind=Kind.TRUTH,
            in_contract=False,
        ),
    ),
)
