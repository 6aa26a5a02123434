"""Random serving models for hypothesis, and short ways to write one down."""

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import strategies as st
from oracles import stage_weights

from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing


def one_class(
    input_tokens: int, decode: int | Sequence[int], rate: float = 1.0, *, name: str = "a"
) -> RequestClass:
    """A class with one decode length, or several that are equally likely."""
    lengths = (decode,) if isinstance(decode, int) else tuple(decode)
    return RequestClass(name, input_tokens, lengths, (1.0,) * len(lengths), rate)


def mix_model(
    *rows: tuple[int, int | Sequence[int], float],
    memory: int = 10**6,
    prefill: str = "disaggregated",
    timing: Timing = Timing(1.0),  # noqa: B008
    **limits: int | None,
) -> ServingModel:
    """A model from (input, decode, rate) rows."""
    classes = tuple(one_class(s, d, rate, name=f"class {i}") for i, (s, d, rate) in enumerate(rows))
    replica = Replica(memory, prefill=Prefill(prefill), **limits)  # type: ignore[arg-type]
    return ServingModel(classes, timing, replica)


def request_rows(model: ServingModel) -> list[tuple[RequestClass, int, list[int], Fraction]]:
    """Per class and decode length: the class, d, the stage weights of the papers, and the exact share of the rate."""
    rows = []
    total = sum(Fraction(repr(c.rate_rps)) for c in model.classes)
    for c in model.classes:
        weights = [Fraction(repr(w)) for w in c.decode_weights]
        for d, w in zip(c.decode_tokens, weights, strict=True):
            share = Fraction(repr(c.rate_rps)) * w / sum(weights) / total
            rows.append((c, d, stage_weights(model.replica.prefill, c.input_tokens, d), share))
    return rows


@st.composite
def models(
    draw: st.DrawFn,
    *,
    max_classes: int = 4,
    max_input: int = 2000,
    max_decode: int = 500,
    blocks: bool = True,
    limits: bool = False,
    timing: bool = True,
    min_memory: float = 1.0,
    more_pages: int = 50_000,
) -> ServingModel:
    """Any model in which every request fits in memory."""
    prefill = draw(st.sampled_from(Prefill))
    classes = []
    for i in range(draw(st.integers(1, max_classes))):
        lengths = draw(st.lists(st.integers(1, max_decode), min_size=1, max_size=4, unique=True))
        weights = [draw(st.sampled_from([0.1, 0.25, 1.0, 3.0])) for _ in lengths]
        classes.append(
            RequestClass(
                name=f"class {i}",
                input_tokens=draw(st.integers(int(prefill is Prefill.INLINE), max_input)),
                decode_tokens=tuple(sorted(lengths)),
                decode_weights=tuple(weights),
                rate_rps=draw(st.floats(1e-3, 50.0)),
            )
        )
    block = draw(st.sampled_from([1, 8, 16])) if blocks else 1
    longest = max(c.input_tokens + c.decode_tokens[-1] for c in classes)
    pages = -(-longest // block) + draw(st.integers(0, more_pages))
    costs = (
        Timing(
            d0=draw(st.floats(1e-4, 2.0)),
            d1=draw(st.sampled_from([0.0, 1e-7, 2.5e-7, 1e-5])),
            d2=draw(st.sampled_from([0.0, 1e-5, 1e-4])),
            d3=draw(st.sampled_from([0.0, 1e-5, 1e-3])),
        )
        if timing
        else Timing(1.0)
    )
    limit = st.none() | st.integers(1, 5000)
    return ServingModel(
        tuple(classes),
        costs,
        Replica(
            memory_tokens=max(pages * block, int(min_memory * longest)),
            block_tokens=block,
            prefill=prefill,
            max_num_seqs=draw(limit) if limits else None,
            max_num_batched_tokens=draw(limit) if limits else None,
        ),
    )
