"""Published configurations of models with layers of several kinds: what a token costs, and how many parameters."""

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from slow_blocks import Allocator

from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.shape import kv_layers
from kvplan.model.kv_layout import KvLayout, least_block_tokens
from kvplan.model.replica import held_by_stage

CONFIGS = Path(__file__).resolve().parents[3] / "shared/data/model-configs"

pytestmark = pytest.mark.skipif(not CONFIGS.exists(), reason="the configurations are not here")

# Theory §10 and engines' own formulas: tokens of a block, groups, bytes of a token more, tokens held besides at most.
MODELS = {
    "gpt-oss-120b": (16, 2, 36_864, 143),
    "gemma-3-27b-it": (16, 7, 81_920, 6_234),
    "Llama-4-Scout": (16, 4, 49_152, 3 * 8_192),
    "Qwen3-Next-80B": (544, 4, 24_576, 1_632),
    "Qwen3.5-27B": (784, 4, 65_536, 2_352),
    "Nemotron-H-8B": (528, 7, 16_384, 3_168),
    "Nemotron-3-Nano-30B": (2_096, 5, 6_144, 8_384),
    "Jamba-v0.1": (80, 8, 16_384, 560),
    "Kimi-K2": (16, 1, 70_272, 0),
}


def layout_of(name: str) -> KvLayout:
    layers = kv_layers(read_model(CONFIGS / f"{name}.json"))
    return KvLayout(layers, max(16, least_block_tokens(layers)))


@pytest.mark.parametrize("name", MODELS)
def test_what_a_token_costs(name: str) -> None:
    layout = layout_of(name)
    groups = sum(group.copies for group in layout.groups)
    found = layout.block_tokens, groups, layout.bytes_per_token, layout.fixed_tokens
    assert found == MODELS[name]


def allocated(layout: KvLayout, computed: list[int]) -> list[int]:
    """Pool tokens of a request in the steps from each of these numbers of computed tokens to the next."""
    kinds = zip(layout.layers, layout.groups, strict=True)
    tables = [(g, None if one.is_state else Allocator(one, g.block_tokens)) for one, g in kinds]
    return [
        layout.block_tokens
        * sum(g.copies * (1 if table is None else table.step(begin, end - begin, 0)) for g, table in tables)
        for begin, end in pairwise(computed)
    ]


@pytest.mark.parametrize("tokens", [1_366, 16_384])
@pytest.mark.parametrize("name", MODELS)
def test_a_request_takes_what_an_allocator_gives_it(name: str, tokens: int) -> None:
    """To the block: a prompt that is computed at once, or in chunks of 2,048, and four tokens more."""
    layout, prompt = layout_of(name), tokens - 4
    decodes = [prompt, prompt + 1, prompt + 2, prompt + 3, tokens]
    assert held_by_stage(layout, prompt, 5).tolist() == allocated(layout, [0, *decodes])
    steps = [*range(0, prompt, 2_048), *decodes]
    found = layout.pool_tokens(np.array(steps[:-1]), np.array(steps[1:]))
    assert found.tolist() == allocated(layout, steps)


def published() -> list[tuple[str, float]]:
    with (CONFIGS / "SOURCES.csv").open(encoding="utf-8") as file:
        return [(row["file"], float(row["parameters_billion"])) for row in csv.DictReader(file)]


def test_parameters_are_the_published_ones_within_3_percent() -> None:
    found = {file: read_model(CONFIGS / file).counts.total / 1e9 for file, _ in published()}
    assert found == pytest.approx(dict(published()), rel=0.03)
    assert len(found) == len(MODELS)


def test_the_documentation_has_these_figures() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/theory.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line[:1] == "|"]
    table = {cells[0]: cells for cells in rows if cells[0] in MODELS}
    assert table.keys() == MODELS.keys()
    with (CONFIGS / "SOURCES.csv").open(encoding="utf-8") as file:
        published = {row["file"].removesuffix(".json"): row for row in csv.DictReader(file)}
    for name, (block, groups, per_token, fixed) in MODELS.items():
        _, _, *figures = table[name]
        counts, source = read_model(CONFIGS / f"{name}.json").counts, published[name]
        assert figures[0] == f"{block:,}"
        assert figures[1].startswith(f"{groups} × ")
        assert figures[2:4] == [f"{per_token:,}", f"{fixed:,}"]
        assert figures[4:6] == [f"{counts.total / 1e9:.1f}", source["parameters_billion"]]
        assert figures[6:8] == [f"{counts.active / 1e9:.1f}", source["active_billion"]]
