"""Constants of a law are found again in files that it made, in every format with times, or called undetermined."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples
from timed_files import (
    CAPACITY,
    ITERATIONS,
    LOADS,
    Load,
    Row,
    inference_max,
    iterations,
    loads,
    request_log,
    splitwise,
)

from kvplan.ingest.timing.fit import TimingFit, fit_measured
from kvplan.ingest.timing.reading import read_groups
from kvplan.model import Timing


def decades(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(np.log(low), np.log(high)).map(lambda x: float(np.exp(x)))


LAWS = st.builds(
    Timing, d0=decades(5e-3, 5e-2), d1=decades(3e-8, 1e-6), d2=decades(2e-5, 3e-4), d3=decades(1e-5, 3e-4)
)
SEEDS, NOISE = st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1])


def checked(folder: Path, texts: Iterable[str], law: Timing, noise: float) -> TimingFit:
    """The fit to some files; what it takes for measured is what the law has."""
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"measured{number}")
        paths[-1].write_text(text)
    (measured,) = read_groups(paths, capacity_tokens=CAPACITY)
    fit = fit_measured(measured, None)
    for name in ("d0", "d1", "d2", "d3"):
        if name not in fit.undetermined:
            assert getattr(fit.timing, name) == pytest.approx(getattr(law, name), rel=0.05 if noise else 0.02)
    return fit


def whole(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("written", ITERATIONS, ids=lambda written: written.__name__)
@examples(1)
@given(law=LAWS, seed=SEEDS, noise=NOISE, prompts=st.booleans())
def test_every_constant_is_found_in_iterations_or_called_undetermined(
    written: Callable[[list[Row]], Iterator[str]],
    tmp_path_factory: pytest.TempPathFactory,
    law: Timing,
    seed: int,
    noise: float,
    prompts: bool,
) -> None:
    rows = iterations(law, np.random.default_rng(seed), noise, prompts=prompts)
    fit = checked(tmp_path_factory.mktemp("log"), [whole(written(rows))], law, noise)
    assert ("d2" in fit.undetermined) >= (not prompts)
    assert "d0" not in fit.undetermined or law.d0 < 0.3 * np.mean([tau for *_, tau in rows])


@pytest.mark.parametrize("written", [splitwise, request_log], ids=lambda written: written.__name__)
@examples(1)
@given(law=LAWS, seed=SEEDS, noise=NOISE)
def test_every_constant_is_found_in_means_or_called_undetermined(
    written: Callable[[Timing, np.random.Generator, float], Iterator[str]],
    tmp_path_factory: pytest.TempPathFactory,
    law: Timing,
    seed: int,
    noise: float,
) -> None:
    lines = written(law, np.random.default_rng(seed), noise)
    checked(tmp_path_factory.mktemp("means"), [whole(lines)], law, noise)


@pytest.mark.parametrize("written", LOADS, ids=lambda written: written.__name__)
@examples(1)
@given(law=LAWS, seed=SEEDS, noise=NOISE)
def test_every_constant_is_found_in_loads_or_called_undetermined(
    written: Callable[[Sequence[Load]], list[str]],
    tmp_path_factory: pytest.TempPathFactory,
    law: Timing,
    seed: int,
    noise: float,
) -> None:
    shortest = 0.8 if written is inference_max else 1.0
    some = loads(law, 0.01, np.random.default_rng(seed), noise, shortest)
    fit = checked(tmp_path_factory.mktemp("loads"), written(some), law, noise)
    assert noise or "d0" not in fit.undetermined
