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
            return f"offered {e(offered)} ≤ {e(recovers)}, up to which backlogs drain"
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
            "Whether the load fits, and whether the replica recovers by itself from any backlog in random order.",
            formula="overloaded: offered > sustainable; stable: otherwise, and offered ≤ verdict.recovers_up_to_rps; "
            "needs_cap: the rest",
            here=_status,
            source="WAIT Prop. 1, 2; finite memory new",
            kind=Kind.TEXT,
            allowed=tuple(Status),
            warm=Warm(
                "overloaded: offered > the good rate; needs_cap: otherwise, and the cache can collapse or offered > "
                "verdict.recovers_up_to_rps; stable: the rest",
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
            "Largest offered rate at which any backlog in random order drains, from the worst of several collapsed "
            "states: a flood, requests of all ages, pulses. For the profile's engine and its admission.",
            formula="smallest of the sustainable rate and X − max(3·SE, 0.5 %·X), X the rate that a saturated replica "
            "was seen to serve; the sustainable rate where nothing is ever preempted",
            here=lambda e: "",
            source="new",
            unit="requests/s",
            basis="simulated",
            absent="The engine does not run what the profile has.",
            warm=Warm(
                "smallest of the guaranteed rate and X − max(3·SE, 0.5 %·X) of a cache that finds only what is always "
                "in use; of users, the same part of what they ask",
                absent="The engine does not run what the profile has.",
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
                basis="simulated",
                absent="It is not gone within what was run, a day at most: verdict.drain.reason says why.",
            )
            for key, words in (("seconds", "Median over runs"), ("low", "Least"), ("high", "Most"))
        ),
        Record("verdict.drain.reason", "Why there is no time; empty where there is one.", kind=Kind.TEXT),
        Record(
            "verdict.drain.preempted",
            "Preemptions from its begin on until it is gone, the median over runs.",
            source="new",
            basis="simulated",
            whole=True,
            absent="It is not gone within what was run.",
        ),
    ),
)
