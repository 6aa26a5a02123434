"""What `kvplan.plan`, `kvplan.check` and `kvplan.import_files` return."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvplan.api.results import Result
from kvplan.errors import UsageError
from kvplan.gate import check as checking
from kvplan.ingest import gathering
from kvplan.planning import result as planning
from kvplan.show import check as check_screen
from kvplan.show import gathered
from kvplan.show import json as documents
from kvplan.show import plan as plan_screen
from kvplan.show.chart import Chart
from kvplan.show.charts import of_plan
from kvplan.show.elements import Section

_OF_A_KIND = ("name", "replicas", "gpus", "gpu", "parallelism", "weights", "engine", "cost")


class Plan(Result, planning.Plan):
    """A plan. Its columns have a row for the kind of replica that was chosen, and for each alternative."""

    def save(self, path: "str | Path") -> None:
        """Write the planned profile to a TOML file.

        Raises
        ------
        UsageError
            There is none: the demand is impossible.
        """
        if self.profile is None:
            raise UsageError(f"nothing to save: {self.status}")
        Path(path).write_text(self.profile.text, encoding="utf-8")

    def _document(self) -> dict[str, Any]:
        return documents.plan(self)

    def _records(self, document: dict[str, Any]) -> Iterable[Mapping[str, Any]]:
        plan = document["plan"]
        if self.status is planning.Status.IMPOSSIBLE:
            refused: list[dict[str, Any]] = plan["refused"]
            return refused
        return [{key: one[key] for key in _OF_A_KIND} for one in (plan, *plan.get("alternatives", ()))]

    def _sections(self, *, full: bool) -> Sequence[Section]:
        return [plan_screen.build(self)]

    def _charts(self) -> Sequence[Chart]:
        return of_plan(self)


@dataclass(frozen=True, slots=True)
class Checked(Result, checking.Checked):
    """A profile, judged. Its columns have a row for each requirement."""

    def _document(self) -> dict[str, Any]:
        return documents.check([self])

    def _records(self, document: dict[str, Any]) -> Iterable[Mapping[str, Any]]:
        requirements: list[dict[str, Any]] = document["profiles"][0]["requirements"]
        return requirements

    def _sections(self, *, full: bool) -> Sequence[Section]:
        return check_screen.build([self], full=full)


class Imported(Result, gathering.Gathered):
    """A profile that files gave, as `profile`. Its columns have a row for each table and what it is from."""

    def save(self, path: "str | Path") -> None:
        """Write the profile to a TOML file."""
        Path(path).write_text(self.profile.text, encoding="utf-8")

    def _document(self) -> dict[str, Any]:
        return {
            "profile": {"name": self.profile.name, "sha256": self.profile.sha256},
            "given": [one._asdict() for one in self.given],
            "missing": list(self.profile.missing),
            "notes": list(self.notes),
        }

    def _records(self, document: dict[str, Any]) -> Iterable[Mapping[str, Any]]:
        given: list[dict[str, Any]] = document["given"]
        return given

    def _sections(self, *, full: bool) -> Sequence[Section]:
        return [gathered.build(self)]


def of_check(found: checking.Checked) -> Checked:
    """Return what a check says as a result."""
    return Checked(**{field.name: getattr(found, field.name) for field in fields(found)})
