"""Many models at once have the figures that each has alone, to the last bit."""

from dataclasses import replace

import numpy as np
from every import every
from hypothesis import given
from hypothesis import strategies as st
from strategies import mix_model, models

from kvplan.analysis.equilibrium import Blocks, blocks, equilibrium, load, saturation
from kvplan.model import RequestClass, ServingModel, Timing


def alone(model: ServingModel) -> Blocks:
    return Blocks(load(model), equilibrium(model), saturation(model))


@st.composite
def variations(draw: st.DrawFn) -> list[ServingModel]:
    """Models that differ in every number a sweep can vary."""
    first = draw(models(limits=True))
    found = [first]
    for _ in range(draw(st.integers(0, 6))):
        factor = st.floats(0.3, 3.0)
        costs = Timing(*(x * draw(factor) for x in (first.timing.d0, first.timing.d1, first.timing.d2, 1e-5)))
        classes = tuple(
            replace(
                c,
                input_tokens=c.input_tokens + draw(st.integers(0, 99)),
                rate_rps=c.rate_rps * draw(st.floats(1e-3, 1e3)),
                decode_tokens=tuple(d + draw(st.integers(0, 1)) * 1000 for d in c.decode_tokens[:1])
                + c.decode_tokens[1:],
            )
            for c in first.classes
        )
        replica = replace(
            first.replica,
            memory_tokens=first.replica.memory_tokens + draw(st.integers(0, 10**6)),
            max_num_seqs=draw(st.none() | st.integers(1, 500)),
        )
        found.append(ServingModel(classes, costs, replica))
    return found


@given(variations())
def test_each_of_many_is_as_it_is_alone(many: list[ServingModel]) -> None:
    assert blocks(many) == [alone(model) for model in many]


@every("size", [1, 2, 7, 300])
@every("lengths", [1, 3, 8, 9, 130])
def test_sums_do_not_depend_on_how_many_there_are(size: int, lengths: int) -> None:
    """Long sums are added up in pairs, in an order that must not change with the shape."""
    rng = np.random.default_rng(7)
    decode = tuple(range(1, lengths + 1))

    def one() -> ServingModel:
        weights = tuple(rng.random(lengths).tolist())
        c = RequestClass("a", int(rng.integers(0, 5000)), decode, weights, float(rng.random()))
        return replace(mix_model((1, 1, 1.0), memory=10**5, timing=Timing(0.01, 1e-7, 1e-5)), classes=(c,))

    many = [one() for _ in range(size)]
    assert blocks(many) == [alone(model) for model in many]
