"""What is four times as long takes about four times as long to read, or to refuse, and not sixteen times."""

import contextlib
import math
import time
from collections.abc import Callable

from every import every

from kvplan.errors import UsageError
from kvplan.gate.requirement import parse, parse_key
from kvplan.ingest.reader import Beginning
from kvplan.ingest.trace import servegen
from kvplan.model.slo import parse_slo
from kvplan.profile.reading import parse_profile
from kvplan.report.ledger import named


def profile(text: str) -> None:
    parse_profile(text.encode(), "p.toml")


def client(text: str) -> bool:
    return servegen.DESCRIPTIONS[0].recognises(Beginning("", False, (), None, text=text))


@every(
    ("read", "begins", "repeated", "ends"),
    [
        (parse_key, "load[", " ", ""),
        (parse_key, "load[", '\\"', '"'),
        (parse, "load.headroom", " ", "0.2 >"),
        (named, "", " ", '"'),
        (parse_slo, "ttft_s.p95 <= 2", " ", "s\n"),
        (profile, "schema = 1\n", "\r", "name"),
        (client, "1,1,1,,", "1", ""),
        (client, "", " ", "{"),
    ],
)
def test_matching_is_linear(read: Callable[[str], object], begins: str, repeated: str, ends: str) -> None:
    def seconds(times: int) -> float:
        text = begins + repeated * times + ends
        best = math.inf
        for _ in range(5):
            start = time.process_time()
            with contextlib.suppress(UsageError):
                read(text)
            best = min(best, time.process_time() - start)
        return best

    # where twice the text takes four times as long, this much takes seconds: sooner or later it shows; caches that
    # overflow make linear time a little more than that
    times = 250
    while (once := seconds(times)) < 0.005 and times < 100_000:
        times *= 2
    assert seconds(4 * times) < 10 * once + 0.002
