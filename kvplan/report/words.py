"""Words of the report that other programs branch on."""

from enum import StrEnum


class Status(StrEnum):
    """The verdict on a profile."""

    STABLE = "stable"
    NEEDS_CAP = "needs_cap"
    OVERLOADED = "overloaded"


class Basis(StrEnum):
    """Grounds on which a number rests."""

    THEOREM = "theorem"
    COMPUTED = "computed"
    SIMULATED = "simulated"
    ESTIMATED = "estimated"
    ASSUMPTION = "assumption"


PAPERS = {  # by the keys that sources cite them with
    "SIC": "Service-Induced Congestion in Memory-Constrained LLM Serving",
    "WAIT": "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints; WAIT-s, its short form",
    "FC": "Flow-Controlled Scheduling for LLM Inference with Provable Stability Guarantees",
}
