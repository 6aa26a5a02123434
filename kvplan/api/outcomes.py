"""Results of `kvplan.plan`, `check`, `import_files` and `measure`; apart, since their imports take longer."""

from pathlib import Path

from kvplan.api.results import Result
from kvplan.emit.benchmarks import script
from kvplan.errors import UsageError
from kvplan.gate import check as checking
from kvplan.ingest import gathering
from kvplan.options import MeasureOptions
from kvplan.planning import measuring
from kvplan.planning import result as planning
from kvplan.show.view import View


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

    def _view(self) -> View:
        from kvplan.show.plan import view

        return view(self)


class Checked(Result, checking.Checked):
    """A profile, judged. Its columns have a row for each requirement."""

    def _view(self) -> View:
        from kvplan.show.check import view

        return view([self])


class Imported(Result, gathering.Gathered):
    """A profile that files gave, as `profile`. Its columns have a row for each table and what it is from."""

    def save(self, path: "str | Path") -> None:
        """Write the profile to a TOML file."""
        Path(path).write_text(self.profile.text, encoding="utf-8")

    def _view(self) -> View:
        from kvplan.show.gathered import view

        return view(self)


class Measured(Result, measuring.Measuring):
    """Runs that settle a plan. Its columns have a row for each run."""

    asked: MeasureOptions

    @property
    def script(self) -> str:
        """The runs as a script of the load generator."""
        return script(self, self.asked)

    def _view(self) -> View:
        from kvplan.show.measure import view

        return view(self, self.asked)
