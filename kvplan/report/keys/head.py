"""Keys of the blocks that say what was judged, and the verdict."""

from kvplan.report.keys.evidence import Evidence
from kvplan.report.keys.record import Block, Kind, Record
from kvplan.report.words import Status


def _status(e: Evidence) -> str:
    offered, sustainable = "load.offered_rps", "load.sustainable_rps"
    match e.document["verdict"]["status"]:
        case Status.OVERLOADED:
            return f"offered {e(offered)} > {e(sustainable)} sustainable"
        case Status.STABLE:
            return (
                f"offered {e(offered)} ≤ {e(sustainable)} sustainable; {radius(e)}; "
                f"worst cycle {e('worst_cycle.throughput_rps')}"
            )
        case _:
            return (
                f"worst cycle {e('worst_cycle.throughput_rps')} < offered {e(offered)} ≤ {e(sustainable)} sustainable; "
                f"{radius(e)}"
            )


def radius(e: Evidence) -> str:
    """The spectral radius and whether it proves anything."""
    return f"ρ = {e('stability.spectral_radius', 12)}, certified {e('stability.certified')}"


SCHEMA_VERSION = Block(
    "schema_version",
    "Version of the report's keys.",
    (Record("schema_version", "Version of the contract; programs should check it.", whole=True),),
    has_source=False,
)
KVPLAN_VERSION = Block(
    "kvplan_version",
    "Version of kvplan.",
    (Record("kvplan_version", "Version of kvplan that wrote the report.", kind=Kind.TEXT),),
    has_source=False,
)
PROFILE = Block(
    "profile",
    "Which profile the report is about.",
    (
        Record("profile.name", "Name that the profile gives itself.", kind=Kind.TEXT, basis="assumption"),
        Record(
            "profile.sha256",
            "SHA-256 of the profile's bytes: the same profile gives the same report.",
            kind=Kind.TEXT,
        ),
    ),
    has_source=False,
)
VERDICT = Block(
    "verdict",
    "The answer in a word, and the limit that binds.",
    (
        Record(
            "verdict.status",
            "Whether the load fits, and whether greedy admission recovers by itself.",
            formula="overloaded: offered > sustainable; stable: otherwise, and ρ < 1 (certified) or offered <= "
            "worst-cycle rate; needs_cap: the rest",
            here=_status,
            source="WAIT Prop. 1, 2; SIC eq. 10; the combination is new",
            kind=Kind.TEXT,
            allowed=tuple(Status),
        ),
        Record(
            "verdict.binding",
            "The limit that is met first as the load grows.",
            formula="the smallest of the limits' rates; memory is called compute where M·Λ > A·d0",
            here=lambda e: e("limits"),
            source="WAIT-s eq. 3-6; engine limits new",
            kind=Kind.TEXT,
            allowed=("kv_memory", "compute", "max_num_seqs", "max_num_batched_tokens"),
        ),
        Record("verdict.summary", "The verdict in one sentence with its numbers.", kind=Kind.TEXT),
    ),
)
