"""Theory §8 on a real trace: what a prefix cache finds of Mooncake's conversations, by curve and by gaps."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cached_runs import run_cached

from kvplan.analysis.cache_states import CachedReplica
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.model import Replica, Timing
from kvplan.model.gaps import Quantiles
from kvplan.model.streams import PromptKind, Stream
from kvplan.simulation.requests import Requests, prefixes_of_hashes

FILE = (
    Path(__file__).resolve().parents[3]
    / "shared/data/mooncake-conversation/conversation_trace.first8000.jsonl"
)
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="Mooncake's trace is not here")

LAW = Timing(0.012, d1=1e-8, d2=2e-6, d3=1e-6)
HASHED, PAGE = 512, 16
SIZES = (500_000, 1_000_000, 2_000_000, 4_000_000, 10_000_000, 30_000_000)


class Recorded(NamedTuple):
    """Requests, and the hashes of whole blocks of each prompt."""

    requests: Requests
    chains: list[list[int]]

    @property
    def left(self) -> np.ndarray:
        """Tokens that each leaves in whole pages."""
        tokens = self.requests.input_tokens + self.requests.decode_tokens - 1
        return tokens // PAGE * PAGE


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    rows: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
    arrival, inputs, outputs = (
        np.array([row[name] for row in rows]) for name in ("timestamp", "input_length", "output_length")
    )
    hashes = [row["hash_ids"] for row in rows]
    prefixes = prefixes_of_hashes(hashes, inputs, HASHED)
    requests = Requests(
        arrival / 1e3, inputs, outputs, np.zeros(len(rows), dtype=np.int64), prefixes=prefixes
    )
    return Recorded(
        requests, [chain[: tokens // HASHED] for chain, tokens in zip(hashes, inputs.tolist(), strict=True)]
    )


@pytest.fixture(scope="module")
def simulated(recorded: Recorded) -> dict[int, float]:
    """Hit ratios by memory, block by block."""
    asked = recorded.requests.input_tokens.sum()
    found = (run_cached(recorded.requests, LAW, Replica(size, PAGE))[1] for size in SIZES)
    return {size: float(one.hit_tokens.sum() / asked) for size, one in zip(SIZES, found, strict=True)}


def least_recently_used(recorded: Recorded, memory: int) -> float:
    """A point of the curve: request by request and without time, leading blocks the most recent."""
    kept: OrderedDict[Any, int] = OrderedDict()
    stock = hits = 0
    chains = zip(
        recorded.chains, recorded.left.tolist(), recorded.requests.input_tokens.tolist(), strict=True
    )
    for number, (chain, left, prompt) in enumerate(chains):
        there = next((at for at, block in enumerate(chain) if block not in kept), len(chain))
        hits += min(there * HASHED, (prompt - 1) // PAGE * PAGE)
        own = left - len(chain) * HASHED
        for piece, tokens in ((f"after {number}", own), *((block, HASHED) for block in reversed(chain))):
            stock += tokens - kept.pop(piece, 0)
            kept[piece] = tokens
        while stock > memory:
            stock -= kept.popitem(last=False)[1]
    return hits / float(recorded.requests.input_tokens.sum())


def gaps(recorded: Recorded) -> tuple[np.ndarray, np.ndarray]:
    """From one request that has a block to the next that finds it, seconds; and its tokens."""
    last: dict[int, float] = {}
    found = []
    some = recorded.requests
    for arrival, chain, prompt in zip(
        some.arrival_s.tolist(), recorded.chains, some.input_tokens.tolist(), strict=True
    ):
        most = (prompt - 1) // PAGE * PAGE
        for at, block in enumerate(chain):
            if block not in last:
                break
            found.append((arrival - last[block], min(HASHED, most - at * HASHED)))
        last.update(dict.fromkeys(chain, arrival))
    gap, tokens = np.array(found).T
    return gap, tokens


def stream(recorded: Recorded, quantiles: int) -> Stream:
    """All requests as one kind; equally likely values of the gaps, by tokens."""
    some, (gap, tokens) = recorded.requests, gaps(recorded)
    order = np.argsort(gap, kind="stable")
    places = np.searchsorted(
        np.cumsum(tokens[order]) / tokens.sum(), (np.arange(quantiles) + 0.5) / quantiles
    )
    s, n, left = (
        some.input_tokens.astype(float),
        some.decode_tokens.astype(float),
        recorded.left.astype(float),
    )
    read = s * n + n * (n + 1) / 2
    reused = float(tokens.sum() / s.size)
    return Stream(
        rate_rps=s.size / float(some.arrival_s[-1]),
        stages=float(n.mean()),
        read=float(read.mean()),
        held=float((read + PAGE / 2 * n).mean()),
        held_squares=float((n * (s + n / 2) ** 2).mean()),
        prompt=float(s.mean()),
        prompt_squares=float((s**2).mean()),
        prefill=float(s.mean()),
        prefill_pairs=float((s**2 + s).mean()) / 2,
        computed=float((s + n - 1).mean()),
        decode=float(n.mean()),
        left=float(left.mean()),
        left_squares=float((left**2).mean()),
        reused=reused,
        reused_squares=reused * float((left**2).mean() / left.mean()),
        gap=Quantiles(tuple(np.maximum(gap[order][places], 1e-9).tolist())),
        from_arrival=True,
        prompts=(PromptKind(1.0, float(s.mean()), reused),),
    )


def hit_ratio(cached: CachedReplica) -> float:
    warm = prefix_cache(cached).warm
    assert warm is not None
    return warm.hit_ratio


def test_the_curve_of_the_trace_says_what_is_found(recorded: Recorded, simulated: dict[int, float]) -> None:
    """Ten points for each factor of ten; what is asked for lies between them."""
    points = [int(size) for size in 10 ** np.arange(5.55, 7.8, 0.1)]
    curve = tuple((float(size), least_recently_used(recorded, size)) for size in points)
    traffic = stream(recorded, 20)
    for size, measured in simulated.items():
        found = hit_ratio(CachedReplica((traffic,), LAW, Replica(size, PAGE), curve))
        assert found == pytest.approx(measured, abs=0.01), size


@pytest.mark.parametrize(("quantiles", "within"), [(1000, 0.01), (20, 0.015)])
def test_the_gaps_of_the_trace_say_what_is_found(
    recorded: Recorded, simulated: dict[int, float], quantiles: int, within: float
) -> None:
    traffic = stream(recorded, quantiles)
    for size, measured in simulated.items():
        found = hit_ratio(CachedReplica((traffic,), LAW, Replica(size, PAGE)))
        assert found == pytest.approx(measured, abs=within), size


def test_memory_matters(simulated: dict[int, float]) -> None:
    """What is found grows sevenfold from the smallest to the largest, so that theory can be wrong."""
    assert simulated[SIZES[-1]] > 7 * simulated[SIZES[0]]
