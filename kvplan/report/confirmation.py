"""Verdicts that whole requests confirm, where they rest on an iterated fluid map."""

from functools import cached_property

from kvplan.analysis.worst_cycle import CycleKind
from kvplan.report.assembly import Analyses
from kvplan.report.words import Status


class Confirmed(Analyses):
    """Analyses whose `stable` is simulated before it is believed, where the worst cycle comes from the fluid map.

    Examples
    --------
    >>> from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
    >>> one = RequestClass("a", 7, (2,), (1.0,), 0.1)
    >>> found = Confirmed(ServingModel((one,), Timing(1.0), Replica(9)), Plan())
    >>> found.confirmed_up_to_rps is None  # the cycle of one length is known by a formula
    True
    """

    @cached_property
    def confirmed_up_to_rps(self) -> float | None:
        """Smallest rate that whole requests were served at from collapsed states; None where none were simulated."""
        if self.overloaded or self.worst_cycle.kind is not CycleKind.SIMULATED:
            return None
        from kvplan.simulation.experiments.collapse import confirmed_rate

        return confirmed_rate(self.model, self.plan)

    @cached_property
    def status(self) -> Status:
        """The answer in a word; a simulation is asked only about what the formulas call stable."""
        known = super().status
        if known is Status.STABLE and (rate := self.confirmed_up_to_rps) is not None:
            return known if self.load.offered_rps <= rate else Status.NEEDS_CAP
        return known
