"""The command: `PYTHONPATH=tools:tests python -m scoreboard [NAME]...`, the errors of all real runs or of some."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from scoreboard.catalogue import RUNS, folder_beside_checkout
from scoreboard.score import Scoreboard, foretell


def main() -> int:
    """Predict real runs, compare, and return 1 where an error is larger than on record."""
    parser = argparse.ArgumentParser(prog="scoreboard", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*RUNS, []], metavar="NAME", help=", ".join(RUNS))
    parser.add_argument("--data", type=Path, default=folder_beside_checkout(), help="where the data is")
    parser.add_argument("--json", action="store_true", help="every figure, predicted and measured")
    options = parser.parse_args()
    boards = [foretell(RUNS[name], options.data) for name in options.names or RUNS]
    if options.json:
        print(json.dumps([document(board) for board in boards], indent=2))
    else:
        print("\n\n".join(map(text, boards)))
    return int(not all(board.as_recorded for board in boards))


def text(board: Scoreboard) -> str:
    """A run with a line for each of its errors: what it is, what it must be and what it has been."""
    run = board.run
    lines = [f"{run.name}: {run.title}", f"  {run.source} ({run.licence})", f"  {run.protocol}"]
    for one in board.scored:
        bound = one.bound
        of = " ".join(filter(None, (bound.quantity, bound.kind)))
        must = "" if bound.must is None else f", must be {bound.must:g}{'' if one.holds else ' (MISSED)'}"
        grown = "" if one.as_recorded else " (LARGER)"
        lines.append(
            f"  {of:28} {bound.off} {bound.over} {one.value:.3g}{must}, on record {bound.recorded:g}{grown}"
        )
    return "\n".join(lines if board.rows else [lines[0], "  data not here"])


def document(board: Scoreboard) -> dict[str, Any]:
    """A run with its errors and rows, as JSON has them."""
    run, rows = board.run, board.rows
    return {
        **{name: getattr(run, name) for name in ("name", "title", "source", "licence", "protocol")},
        "errors": [
            {"quantity": one.bound.quantity, "kind": one.bound.kind, "value": one.value, "worst": one.worst}
            for one in board.scored
        ],
        "rows": [
            {**row.configuration._asdict(), **{name: getattr(row, name) for name in row._fields[1:]}}
            for row in rows
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
