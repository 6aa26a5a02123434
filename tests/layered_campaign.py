"""Random profiles with layers of several kinds, or drafts, whose verdicts whole requests judge under greedy admission.

    PYTHONPATH=tests python tests/layered_campaign.py --profiles 100 --of layers

The judge holds for each request, at each of its stages, what an allocator of blocks that is kept block by block says,
and reads the tokens that each kind of layer attends to. With drafts,
what each request emits in each iteration is drawn. As in `recovery_campaign`, a profile follows from its number.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numba
import numpy as np
import recovery_campaign
from saturated_greedy import EMPTY, Residents, Server, draw, starts
from slow_blocks import Allocator

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.model import FloatArray, Plan, Prefill, Replica, ServingModel
from kvplan.model.drafts import Drafts
from kvplan.model.kv_layout import Attention, KvLayout, Layers, least_block_tokens
from kvplan.report.assembly import Analyses
from kvplan.report.words import Status

FIRST = 1_000_000
RESOLUTION = 1e-3
_AGAIN = 8
_BATCHES = 20


@dataclass(frozen=True)
class LayeredServer(Server):
    """A server whose requests hold and read what layers of several kinds do."""

    layout: KvLayout | None = None
    drafts: Drafts | None = None

    @cached_property
    def held(self) -> FloatArray:
        """Blocks at each stage, one request at a time, block by block; with drafts, by tokens emitted before."""
        if self.drafts is not None and self.layout is None:
            emitted = np.arange(self.stages.max())
            ends = self.first[:, None] + emitted + np.where(emitted > 0, self.drafts.slots, 0)
            blocks = -(-ends // self.block_tokens)
            return np.where(emitted < self.stages[:, None], blocks, 0).astype(float)
        table = np.zeros((self.stages.size, int(self.stages.max())))
        assert self.layout is not None
        for first in np.unique(self.first):
            rows = np.flatnonzero(self.first == first)
            whole = np.zeros(table.shape[1])
            for one, group in zip(self.layout.layers, self.layout.groups, strict=True):
                if one.is_state:
                    whole += group.copies * (1 if self.drafts is None else 1 + self.drafts.tokens)
                    continue
                whole[0] += group.copies * Allocator(one, group.block_tokens).step(0, int(first), 0)
                for k, held in enumerate(self._later(one, group.block_tokens, int(first), whole.size), 1):
                    whole[k] += group.copies * held
            for row in rows:
                table[row, : self.stages[row]] = whole[: self.stages[row]]
        return table

    def _later(self, layers: Layers, block_tokens: int, first: int, most: int) -> Iterator[int]:
        """Blocks in one group after the prompt; with drafts whoever has emitted so many came there in any way."""
        allocator = Allocator(layers, block_tokens)
        allocator.step(0, first, 0)
        for k in range(1, most):
            if self.drafts is not None:
                yield Allocator(layers, block_tokens).step(first + k - 1, 1, self.drafts.slots)
            else:
                yield allocator.step(first + k - 1, 1, 0)

    @cached_property
    def read(self) -> FloatArray:
        """Tokens attended to at each stage, in tokens of the layers with full attention."""
        tokens = self.first[:, None] + np.arange(self.stages.max())
        if self.layout is None:
            return np.where(np.arange(self.stages.max()) < self.stages[:, None], tokens, 0.0)
        full = sum(one.count * one.bytes for one in self.layout.layers if one.kind is Attention.FULL)
        kept = [one for one in self.layout.layers if one.window]
        unit = full or max((one.count * one.bytes for one in kept), default=1)
        total = tokens * (full / unit)
        for one in kept:
            seen = tokens if one.kind is Attention.WINDOW else (tokens - 1) % one.window + 1
            total = total + np.minimum(seen, one.window) * (one.count * one.bytes / unit)
        return np.where(np.arange(self.stages.max()) < self.stages[:, None], total, 0.0)

    @property
    def sustainable_rps(self) -> float:
        """Requests/s where the mean state fills memory, or max_num_seqs."""
        admitted = min(self.in_memory, self.max_num_seqs) / self.mean_stages
        prompts = 0.0 if self.ready_made else float(self.share @ self.input_tokens)
        d0, d1, d2, d3 = self.timing
        read = float(self.share @ self.read.sum(axis=1))
        return admitted / (d0 + admitted * (d1 * read + d2 * prompts + d3 * self.mean_stages))


@numba.njit(cache=True)
def serve(
    held,
    read,
    stages,
    prompt,
    ready_made,
    pages,
    seats,
    timing,
    start_row,
    start_age,
    fresh,
    marks,
    upto,
    verify,
    seed,
):
    """Serve `fresh` in order, all there from the beginning; clock and work when so many are done as marks say.

    A request emits a token in an iteration, or as many as are drawn: one, and one more for each of the running sums
    `upto` of the law that the draw exceeds. An age is in tokens, and work in footprints.
    """
    np.random.seed(seed)
    most = fresh.size + start_row.size
    row, age = np.empty(most, np.int64), np.empty(most, np.int64)
    pool = np.empty(most, np.int64)
    count = start_row.size
    row[:count], age[:count] = start_row, start_age
    evicted, used, done, mark = 0, 0, 0, 0
    clock, work = 0.0, 0.0
    table = np.zeros((marks.size, 2))
    while mark < marks.size:
        kept, tokens, context = 0, 0.0, 0.0
        for i in range(count):
            more = 1
            if age[i] > 0 and upto.size > 0:
                drawn = np.random.random()
                while more <= upto.size and drawn >= upto[more - 1]:
                    more += 1
            if age[i] + more >= stages[row[i]]:
                done += 1
                work += held[row[i]].sum()
                continue
            row[kept], age[kept] = row[i], age[i] + more
            tokens += held[row[i], age[kept]]
            context += read[row[i], age[kept]]
            kept += 1
        count = kept
        while mark < marks.size and done >= marks[mark]:
            table[mark, 0], table[mark, 1] = clock, work
            mark += 1
        while tokens > pages:
            count -= 1
            tokens -= held[row[count], age[count]]
            context -= read[row[count], age[count]]
            pool[evicted] = row[count]
            evicted += 1
        computed, drafting = 0, count
        while count < seats and (evicted > 0 or used < fresh.size):
            again = evicted > 0
            new = pool[evicted - 1] if again else fresh[used]
            if tokens + held[new, 0] > pages:
                break
            if again:
                evicted -= 1
            else:
                used += 1
            if again or not ready_made:
                computed += prompt[new]
            row[count], age[count] = new, 0
            tokens += held[new, 0]
            context += read[new, 0]
            count += 1
        clock += (
            timing[0] + timing[1] * context + timing[2] * computed + timing[3] * count + verify * drafting
        )
    return table


def rate_rps(server: LayeredServer, start: Residents, seed: int, completions: int) -> float:
    """Completions a second after a warm-up, each counted by its footprint."""
    per_iteration = server.in_memory / server.mean_stages
    settling = max(20 * server.in_memory, 10 * int(server.stages.max()) * per_iteration)
    warm = max(completions // 2, math.ceil(settling))
    marks = warm + np.linspace(0, max(completions, 2 * warm), _BATCHES + 1).astype(np.int64)
    drafts = server.drafts
    verify = 0.0 if drafts is None else drafts.tokens * drafts.verify_s
    d0, d1, d2, d3 = server.timing
    table = serve(
        server.held,
        server.read,
        server.stages,
        server.input_tokens,
        server.ready_made,
        server.pages,
        server.max_num_seqs,
        np.array((d0, d1, d2, d3 - verify)),
        start.row,
        start.age,
        draw(server, int(marks[-1]), seed),
        marks,
        np.zeros(0) if drafts is None else 1 - np.array(drafts.accepted[: drafts.tokens]),
        verify,
        seed,
    )
    spent, work = table[-1] - table[0]
    return float(work / server.mean_footprint / spent)


def profile(number: int) -> ServingModel:
    """The profile of a number: traffic of the other campaign, smaller, on layers of two or three kinds."""
    rng = np.random.default_rng([number, 7])
    while True:
        base = recovery_campaign.profile(int(rng.integers(1 << 40)))
        classes = tuple(
            replace(
                c, input_tokens=max(1, c.input_tokens // 4), **_shorter(c.decode_tokens, c.decode_weights)
            )
            for c in base.classes[:3]
        )
        layers = _layers(rng)
        block = max(int(rng.choice([1, 4, 16])), least_block_tokens(layers))
        replica = Replica(block, block, base.replica.prefill, layout=KvLayout(layers, block))
        server = server_of(ServingModel(classes, base.timing, replica))
        pages = round(
            math.exp(rng.uniform(math.log(8), math.log(400))) * server.mean_footprint / server.mean_stages
        )
        if pages >= server.held.max():
            break
    replica = replace(replica, memory_tokens=pages * block)
    model = ServingModel(classes, base.timing, replica)
    factor = rng.uniform(0.3, 0.99) * server_of(model).sustainable_rps / model.total_rate_rps
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in classes))


def _shorter(lengths: Sequence[int], weights: Sequence[float]) -> dict[str, tuple[float, ...]]:
    merged: dict[int, float] = {}
    for length, weight in zip(lengths, weights, strict=True):
        tokens = max(1, length // 4)
        merged[tokens] = merged.get(tokens, 0.0) + weight
    return {"decode_tokens": tuple(merged), "decode_weights": tuple(merged.values())}


def _layers(rng: np.random.Generator) -> tuple[Layers, ...]:
    kinds = rng.permutation([Attention.WINDOW, Attention.CHUNK, Attention.STATE])[: rng.integers(1, 3)]
    full = int(rng.integers(1, 9))
    found = [Layers(Attention.FULL, full, 64)] if rng.random() < 0.85 else []
    for kind in kinds:
        count, window = full * int(rng.integers(1, 6)), int(rng.integers(4, 400))
        if kind == Attention.STATE:
            found.append(Layers(Attention.STATE, count, int(rng.integers(1, 20_000))))
        else:
            found.append(Layers(Attention(kind), count, 64, window))
    return tuple(found)


def drafted(number: int) -> ServingModel:
    """The profile of a number with drafts: traffic of the other campaign, and what is accepted at random."""
    rng = np.random.default_rng([number, 8])
    while True:
        base = recovery_campaign.profile(int(rng.integers(1 << 40)))
        tokens, chance = int(rng.integers(1, 8)), rng.uniform(0.2, 0.95)
        accepted = tuple(np.cumprod(np.full(tokens, chance)).tolist())
        d0 = base.timing.d0
        drafts = Drafts(
            tokens, accepted, 0.1 * d0 * rng.random(), base.timing.d3 * rng.random(), 0.0, rng.random() < 0.7
        )
        block = base.replica.block_tokens
        classes = tuple(
            replace(c, input_tokens=max(1, c.input_tokens), **_shorter(c.decode_tokens, c.decode_weights))
            for c in base.classes[:3]
        )
        replica = Replica(block, block)
        model = ServingModel(classes, drafts.slowed(base.timing), replica, drafts=drafts)
        server = server_of(model)
        in_memory = math.exp(rng.uniform(math.log(8), math.log(400)))
        pages = round(
            in_memory * model.mix.mean(model.mix.held.footprint) / block / model.mix.mean(model.mix.stages)
        )
        if pages >= server.held.max():
            break
    model = replace(model, replica=Replica(pages * block, block))
    factor = rng.uniform(0.3, 0.99) * sustainable_rate(model)[1] / model.total_rate_rps
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in classes))


def drafted_layers(number: int) -> ServingModel:
    """The profile of a number with layers of several kinds, and the drafts of one with drafts."""
    drafts = drafted(number).drafts
    assert drafts is not None
    model = profile(number)
    block = model.replica.block_tokens
    shape = replace(model.replica.with_states(drafts.tokens), prefill=Prefill.FUSED)
    classes = tuple(replace(c, input_tokens=max(1, c.input_tokens)) for c in model.classes)
    model = replace(model, classes=classes, timing=drafts.slowed(model.timing), replica=shape, drafts=drafts)
    least = max(shape.largest_held(c.input_tokens + 1, c.max_tokens, drafts.slots) for c in classes)
    memory = max(least, shape.memory_tokens)
    model = replace(model, replica=replace(shape, memory_tokens=memory // block * block))
    part = np.random.default_rng([number, 9]).uniform(0.3, 0.99)
    factor = part * sustainable_rate(model)[1] / model.total_rate_rps
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in model.classes))


PROFILES = {"layers": profile, "drafts": drafted, "both": drafted_layers}


def server_of(model: ServingModel) -> LayeredServer:
    """The judge's view of a model."""
    plain = Server.of(model)
    return LayeredServer(**vars(plain), layout=model.replica.layout, drafts=model.drafts)


@dataclass(frozen=True)
class Verdict:
    """What kvplan says of a profile, and the least that whole requests serve from any start."""

    number: int
    stable: bool
    offered_rps: float
    recovers_up_to_rps: float
    worst_rps: float

    @property
    def wrongly_stable(self) -> bool:
        """`stable`, and whole requests stay below the offered rate."""
        return self.stable and self.worst_rps < (1 - RESOLUTION) * self.offered_rps

    @property
    def wrong_rate(self) -> bool:
        """Whole requests stay below the rate up to which they are said to recover."""
        return self.worst_rps < (1 - RESOLUTION) * self.recovers_up_to_rps


def judged(number: int, completions: int = 20_000, of: str = "layers") -> Verdict:
    """Ask kvplan about a profile, and judge the answer."""
    model = PROFILES[of](number)
    server, said = server_of(model), Analyses(model, Plan())
    if model.drafts is None:
        assert math.isclose(said.load.sustainable_rps, server.sustainable_rps, rel_tol=1e-9)
    stable, recovers = said.verdict.status is Status.STABLE, said.verdict.recovers_up_to_rps or 0.0
    claimed = max(model.total_rate_rps if stable else 0.0, recovers)
    worst = math.inf
    for i, (_, start) in enumerate([("empty", EMPTY), *starts(server, np.random.default_rng([number, 0]))]):
        rate = rate_rps(server, start, number + i, completions)
        if rate < claimed:
            rate = rate_rps(server, start, number + i + 1, _AGAIN * completions)
        worst = min(worst, rate)
    return Verdict(number, stable, model.total_rate_rps, recovers, worst)


def campaign(numbers: Iterable[int], completions: int = 20_000, of: str = "layers") -> list[Verdict]:
    """Judge the profiles of some numbers."""
    return [judged(number, completions, of) for number in numbers]


def table(found: Sequence[Verdict]) -> str:
    """As text."""
    wrong = [row for row in found if row.wrongly_stable or row.wrong_rate]
    lines = [
        f"{len(found)} profiles: {sum(r.stable for r in found)} stable, wrongly "
        f"{sum(r.wrongly_stable for r in found)}; "
        f"below the rate that recovers: {sum(r.wrong_rate for r in found)}",
        *(
            f"{r.number}: {r.worst_rps / r.offered_rps:.4f} of the offered rate, "
            f"{r.worst_rps / r.recovers_up_to_rps:.4f} of the one that recovers"
            for r in wrong
        ),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=FIRST)
    parser.add_argument("--profiles", type=int, default=100)
    parser.add_argument("--of", choices=PROFILES, default="layers")
    options = parser.parse_args(arguments)
    print(table(campaign(range(options.first, options.first + options.profiles), of=options.of)))


if __name__ == "__main__":
    main(sys.argv[1:])
