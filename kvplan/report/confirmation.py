"""Verdicts that whole requests confirm, where they rest on an iterated fluid map."""

from functools import cached_property

from kvplan.analysis.worst_cycle import CycleKind
from kvplan.model import Plan, ServingModel
from kvplan.report.assembly import Analyses
from kvplan.report.words import Status


class Confirmed(Analyses):
    """Analyses whose `stable` is simulated before it is believed, where the worst cycle comes from the fluid map.

    `always` simulates there whatever the formulas say; otherwise only what they call stable.

    Examples
    --------
    >>> from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
    >>> one = RequestClass("a", 7, (2,), (1.0,), 0.1)
    >>> found = Confirmed(ServingModel((one,), Timing(1.0), Replica(9)), Plan())
    >>> found.confirmed_up_to_rps is None  # the cycle of one length is known by a formula
    True
    """

    def __init__(self, model: ServingModel, plan: Plan, *, always: bool = False) -> None:
        super().__init__(model, plan)
        self._always = always

    @cached_property
    def confirmed_up_to_rps(self) -> float | None:
        """Smallest rate that whole requests were served at from collapsed states; None where none were simulated."""
        wanted = (self._always and not self.overloaded) or self.known_status is Status.STABLE
        if not wanted or self.worst_cycle.kind is not CycleKind.SIMULATED:
            return None
        from kvplan.simulation.experiments.collapse import confirmed_rate

        return confirmed_rate(self.cold, self.plan)
