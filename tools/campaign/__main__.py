"""The command: cases for some time, a table of counts, and how to see each failure again."""

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from campaign.runner import KINDS, Case, Counts, Failure, campaign, judged


def main() -> int:
    """Run cases; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="which cases")
    parser.add_argument("--processes", type=int, default=1, help="how many at once")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which kinds, with commas between them")
    parser.add_argument("--case", help="only this one, as KIND/SEED/NUMBER, in the folder --keep")
    parser.add_argument("--keep", type=Path, default=Path("campaign-case"), help="the folder of --case")
    options = parser.parse_args()
    if options.case:
        kind, seed, number = options.case.split("/")
        options.keep.mkdir(parents=True, exist_ok=True)
        failure = judged(Case(kind, int(seed), int(number)), options.keep)
        print(_said(failure) if failure else "nothing broke")
        return int(failure is not None)
    shown, counts = 0, Counts()
    with suppress(KeyboardInterrupt):
        for counts in campaign(
            options.seconds, options.seed, options.processes, tuple(options.kinds.split(","))
        ):
            for failure in counts.failures[shown:]:
                print(_said(failure), flush=True)
            shown = len(counts.failures)
    print(f"{'kind':12} {'cases':>8} {'failed':>7} {'seconds':>8}")
    for kind, cases in counts.cases.items():
        failed = sum(failure.case.kind == kind for failure in counts.failures)
        print(f"{kind:12} {cases:8,} {failed:7,} {counts.seconds[kind]:8.0f}")
    return int(bool(counts.failures))


def _said(failure: Failure) -> str:
    promises = "\n  ".join(failure.promises)
    again = f"PYTHONPATH=tools:tests python -m campaign --case {failure.case}"
    return f"{failure.case}: {failure.call}\n  {promises}\n  again: {again}\n"


if __name__ == "__main__":
    sys.exit(main())
