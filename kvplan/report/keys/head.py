"""Keys of the blocks that say what was judged, and the verdict."""

from kvplan.report.keys.evidence import Evidence
from kvplan.report.keys.record import Block, Kind, Record, Warm
from kvplan.report.words import Status


def _status(e: Evidence) -> str:
    offered, sustainable, recovers = "load.offered_rps", "load.sustainable_rps", "verdict.recovers_up_to_rps"
    match e.document["verdict"]["status"]:
        case Status.OVERLOADED:
            return f"offered {e(offered)} > {e(sustainable)} sustainable"
        case Status.STABLE:
            return f"offered {e(offered)} ≤ {e(recovers)}, up to which greedy admission recovers"
        case _:
            known = "unknown" if e.document["verdict"]["recovers_up_to_rps"] is None else e(recovers)
            return f"recovers up to {known} < offered {e(offered)} ≤ {e(sustainable)} sustainable"


def _warm_status(e: Evidence) -> str:
    offered, guaranteed = e("load.offered_rps"), "prefix_cache.sustainable_rps.guaranteed"
    if e.document["verdict"]["status"] == Status.OVERLOADED:
        return f"offered {offered} > {e('most')}"
    if e.document["prefix_cache"]["collapse_possible"]:
        return f"offered {offered} ≤ {e('most')}, guaranteed {e(guaranteed)}, and a collapse is possible"
    return _status(e)


def _recovers(e: Evidence) -> str:
    return f"smallest of {e('load.sustainable_rps')} and 0.985·{e('x_low')}/{e('tau_low')}"


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
            formula="overloaded: offered > sustainable; stable: otherwise, and greedy admission recovers from any "
            "backlog at the offered rate (verdict.recovers_up_to_rps); needs_cap: the rest",
            here=_status,
            source="WAIT Prop. 1, 2; finite memory new",
            kind=Kind.TEXT,
            allowed=tuple(Status),
            warm=Warm(
                "overloaded: offered > the good rate, or with fewer than 50 streams in memory > the guaranteed one; "
                "needs_cap: otherwise, and the cache can collapse or greedy admission is not known to recover "
                "(verdict.recovers_up_to_rps); stable: the rest",
                _warm_status,
            ),
        ),
        Record(
            "verdict.binding",
            "The limit that is met first as the load grows.",
            formula="the smallest of the limits' rates; memory is called compute where M·Λ > A·d0",
            here=lambda e: e("limits"),
            source="WAIT-s eq. 3-6; engine limits new",
            kind=Kind.TEXT,
            allowed=("kv_memory", "compute", "max_num_seqs", "max_num_batched_tokens"),
            warm=Warm(
                "the smallest of the limits' guaranteed rates; memory is called compute where requests add more than "
                "half of τ(M)",
                lambda e: e("limits"),
            ),
        ),
        Record("verdict.summary", "The verdict in one sentence with its numbers.", kind=Kind.TEXT),
        Record(
            "verdict.recovers_up_to_rps",
            "Largest offered rate at which greedy admission recovers from any backlog; 0 if none is known. Estimated: "
            "its factors 0.985, 1.15 and 1.5 are fitted to simulations of whole requests.",
            formula="smallest of α·Σλ and 0.985·x_low/τ_low, x_low = n*·(r − 1.15·(G + D)/M): what the worst cycle "
            "keeps, less the gap that the next request does not fit into and what fluctuations preempt; α·Σλ where "
            "nothing can be evicted",
            here=_recovers,
            source="new",
            unit="requests/s",
            basis="estimated",
            absent="The lengths are too many and too long for the fluid map's budget.",
            warm=Warm(
                "smallest of the guaranteed rate and 0.985·x_low/τ_low of a cache that finds only what is always in "
                "use; of users, the same part of what they ask",
                lambda e: "" if e.figures["users"].value else _recovers(e),
                "The lengths are too many and too long for the fluid map's budget.",
            ),
        ),
        Record(
            "verdict.confirmed_up_to_rps",
            "Smallest rate that whole requests were served at in simulations from collapsed states.",
            formula="the smallest over the starts",
            source="new: greedy admission of whole requests",
            unit="requests/s",
            absent="Nothing was simulated: check and analyze --simulate do where the worst cycle comes from the map.",
            basis="simulated",
        ),
    ),
)
