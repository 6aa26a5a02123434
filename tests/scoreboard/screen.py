"""Real runs as foretold and as measured, for people."""

import math
from collections.abc import Iterator, Sequence

from kvplan.show.page import Block, Column, Paragraph, Section, Table, number, table, words
from kvplan.units import ABSENT, format_number, format_percent, format_seconds
from scoreboard.record import Off, Over, Row
from scoreboard.score import Scoreboard, Scored, Standing, Worst, standings, worst

NO_DATA = "data not here"
_FEW = 30  # rows that are shown each
_OVER = {Over.MEDIAN: "median", Over.MEAN: "mean", Over.WORST: "worst"}


def overview(boards: Sequence[Scoreboard]) -> list[Section]:
    """A line a run."""
    rows = [(board.run.name, board.run.title, tally(board)) for board in boards]
    columns = (Column("Real run"), words("What is foretold"), words("Errors"))
    caption = "What was measured against what kvplan foretells; `python -m scoreboard NAME` shows how, and the worst."
    return [Section("real_runs", "Real runs", (Paragraph(caption), table(columns, rows)))]


def tally(board: Scoreboard) -> str:
    """How many errors are as small as they must be, and whether any is larger than on record."""
    if not board.rows:
        return NO_DATA
    asked = [one for one in board.scored if one.holds is not None]
    held = sum(one.holds is True for one in asked)
    said = f"{held} of {len(asked)} within what is asked for" if asked else "nothing asked for"
    grown = sum(not one.as_recorded for one in board.scored)
    return f"{said}; {grown} larger than on record" if grown else said


def build(boards: Sequence[Scoreboard]) -> list[Section]:
    """All errors of each run."""
    return [_section(board) for board in boards]


def _section(board: Scoreboard) -> Section:
    run = board.run
    blocks: list[Block] = [Paragraph(f"{run.source} ({run.licence})."), Paragraph(run.protocol)]
    if not board.rows:
        blocks.append(
            Paragraph(f"Not compared: {NO_DATA}. Give the folder that has {run.files[0]} with --data.")
        )
    else:
        blocks += _tables(board)
    return Section(run.name, f"{run.title} ({run.name})", tuple(blocks))


def _tables(board: Scoreboard) -> Iterator[Table]:
    yield table(
        (
            words("Error of"),
            Column("Kind"),
            Column("Over"),
            number("Configurations"),
            number("Error"),
            number("Worst"),
            number("Must"),
            Column("Outcome", outcome=True),
        ),
        map(_error, board.scored),
    )
    if len(board.rows) <= _FEW:
        columns = (
            words("Configuration"),
            words("Load"),
            Column("Figure"),
            number("Measured"),
            number("Foretold"),
        )
        yield table(columns, map(_row, board.rows))
        return
    yield table(
        (
            Column("Kind"),
            words("Model"),
            Column("Engine"),
            Column("Error of"),
            number("Configurations"),
            number("Median"),
            number("Worst"),
        ),
        map(_standing, standings(board)),
    )
    yield table(
        (
            words("Fares worst"),
            Column("Kind"),
            Column("Error of"),
            number("Error"),
            number("Foretold / measured"),
        ),
        map(_worst, worst(board)),
    )


def _error(one: Scored) -> tuple[str, ...]:
    bound = one.bound
    outcome = ABSENT if one.holds is None else "PASS" if one.holds else "FAIL"
    if not one.as_recorded:
        outcome += f" (on record: {_off(bound.off, bound.recorded)})"
    must = ABSENT if bound.must is None else _off(bound.off, bound.must)
    return (
        bound.quantity,
        bound.kind or "all",
        _OVER[bound.over],
        str(one.configurations),
        _off(bound.off, one.value),
        _off(bound.off, one.worst),
        must,
        outcome,
    )


def _row(row: Row) -> tuple[str, ...]:
    return (
        row.configuration.name,
        row.load or "all of it",
        row.quantity,
        _figure(row.unit, row.measured),
        _figure(row.unit, row.foretold),
    )


def _standing(one: Standing) -> tuple[str, ...]:
    engine = one.engine or ABSENT
    errors = (_off(one.off, one.middle), _off(one.off, one.worst))
    return one.kind, one.model, engine, one.quantity, str(one.configurations), *errors


def _worst(one: Worst) -> tuple[str, ...]:
    of = one.configuration
    return of.name, of.kind, one.quantity, _off(one.off, one.error), format_number(one.ratio, 3)


def _off(off: Off, value: float) -> str:
    if not math.isfinite(value):
        return "endless"
    match off:
        case Off.RELATIVE | Off.POINTS:
            return format_percent(value, 2)
        case Off.FACTOR:
            return format_number(value, 3)
        case Off.SECONDS:
            return format_seconds(value, 2)


def _figure(unit: str, value: float) -> str:
    if unit == "s":
        return format_seconds(value)
    return format_percent(value, 2) if unit == "%" else format_number(value)
