"""Words of the report that other programs branch on."""

from enum import StrEnum


class Status(StrEnum):
    """The verdict on a profile."""

    STABLE = "stable"
    NEEDS_CAP = "needs_cap"
    OVERLOADED = "overloaded"


class Basis(StrEnum):
    """How a number is known."""

    THEOREM = "theorem"
    COMPUTED = "computed"
    SIMULATED = "simulated"
    ESTIMATED = "estimated"
    ASSUMPTION = "assumption"
