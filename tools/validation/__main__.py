"""The command: judge one promise on profiles, and print what breaks it."""

import argparse
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from tempfile import gettempdir
from time import monotonic
from typing import Any

from kvplan.engine import Admission, Engine
from validation.plans import Search, Size
from validation.profiles import Case, in_directory, of_engine, random_cases
from validation.promises import Advice, Goodput, Lasting, Latency, Verdict
from validation.truths import Truths

PROMISES = {
    **{"verdict": Verdict, "latency": Latency, "goodput": Goodput, "lasting": Lasting, "advice": Advice},
    **{"plan": Size, "search": Search},
}


def main() -> int:
    """Judge until the profiles or the time are used up; 1 where a promise is broken."""
    parser = argparse.ArgumentParser(prog="validation", description=__doc__)
    parser.add_argument("promise", choices=PROMISES)
    parser.add_argument("--profiles", type=Path, help="a directory of profiles")
    parser.add_argument("--random", type=int, default=0, help="how many random ones")
    parser.add_argument("--first", type=int, default=0, help="the number of the first random one")
    parser.add_argument(
        "--first-chunk", action="store_true", help="on an engine that admits by the first chunk"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long")
    parser.add_argument(
        "--truths", type=Path, default=Path(gettempdir()) / "kvplan-truths.json", help="where truths are kept"
    )
    options = parser.parse_args()
    cases: Iterable[Case] = chain(
        in_directory(options.profiles) if options.profiles else (),
        random_cases(options.first, options.random),
    )
    if options.first_chunk:
        cases = of_engine(cases, Engine(admission=Admission.FIRST_CHUNK))
    promise, started = PROMISES[options.promise], monotonic()
    judged: list[Any] = []
    for row in promise.rows(cases, Truths(options.truths)):
        judged.append(row)
        if row.is_off:
            print("OFF", row, flush=True)
        if monotonic() - started > options.seconds:
            break
    print(*(f"{name}: {value}" for name, value in promise.summary(judged).items()), sep="\n")
    return int(promise.broken(judged))


if __name__ == "__main__":
    sys.exit(main())
