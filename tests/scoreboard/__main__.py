"""The command: `PYTHONPATH=tests python -m scoreboard [NAME]...`, an overview of all runs or the figures of some."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kvplan.show import page, terminal
from scoreboard import screen
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
        sections = screen.build(boards) if options.names else screen.overview(boards)
        print(terminal.render(page.document(sections), width=100), end="")
    return int(not all(board.as_recorded for board in boards))


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
