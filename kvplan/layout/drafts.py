"""Fitted costs of drafts for people: times between tokens, measured, fitted, and foretold from the other runs."""

from kvplan.ingest.timing.drafts import DraftsFit, mean_error
from kvplan.layout.elements import Paragraph, Section, number, table
from kvplan.units import ABSENT, format_number, format_percent, format_seconds


def build(found: DraftsFit) -> Section:
    """A row for each number of drafts and requests; emitted are tokens of an iteration."""
    runs = [run for run in found.measured.runs if run.drafts]
    rows = (
        (
            str(run.drafts),
            format_number(run.sequences),
            format_number(run.emitted),
            format_seconds(run.between_s),
            format_seconds(fitted),
            ABSENT if held_out is None else format_seconds(held_out),
        )
        for run, fitted, held_out in zip(runs, found.fitted_s, found.held_out_s, strict=True)
    )
    columns = ("Drafts", "Requests", "Emitted", "Between tokens", "Fitted", "Held out")
    costs = found.drafts
    overhead, draft, verify = map(format_seconds, (costs.overhead_s, costs.draft_s, costs.verify_s))
    errors = (format_percent(mean_error(found, foretold)) for foretold in (found.fitted_s, found.held_out_s))
    said = (
        f"Drafting takes {overhead} of an iteration, {draft} a draft and {verify} to verify one for each request. Mean "
        f"error {', of runs not fitted to '.join(errors)}."
    )
    return Section("speculative", "Drafts", (table(map(number, columns), rows), Paragraph(said)), "computed")
