"""What is too much to be laid out is known before: bounds at the largest lengths and with the most classes."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from command import ENVIRONMENT, run

from kvplan.analysis import segments
from kvplan.analysis.nested import nested_wait
from kvplan.analysis.segments import lengths_of
from kvplan.analysis.stability import _asymptotic_min_input
from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.model.classes import Prompt
from kvplan.ranges import MAX_DECODE_TOKENS, MAX_TOKENS, MOST_CLASSES


@contextmanager
def at_most(megabytes: int) -> Iterator[None]:
    """More memory than this process has now, by so much and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + megabytes * 10**6, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_laws_that_do_not_fit_in_memory_together_are_refused_at_the_first_too_many() -> None:
    """Twenty laws of a million lengths each are allowed, and the next is not; all 100 would take 1.6 GB."""
    law = f"{{ uniform = [1, {MAX_DECODE_TOKENS}] }}"
    laws = "".join(f'[[classes]]\nname = "{i}"\ninput = 1\ndecode = {law}\nrate = 1\n' for i in range(100))
    head = 'schema = 1\nname = "a"\ngpu = { memory_tokens = 10_000_000 }\ntiming = { d0 = "1 s" }\n'
    with at_most(1000):
        done = run("check", "-", input=head + laws)
    assert done.returncode == 2
    assert "classes[20].decode: laws up to this one have more than 20,000,000 lengths" in done.stderr
    assert "classes[19]" not in done.stderr


@pytest.mark.parametrize("longest", [80_000, 120_000, MAX_DECODE_TOKENS + 1])
def test_phases_of_more_lengths_than_can_be_compared_are_not(longest: int) -> None:
    """About n⁴/4 of n lengths: in 64 bits all of these are negative."""
    stages = np.arange(1, longest + 1)
    with at_most(500):
        share = np.full(longest, 1 / longest)
        assert _asymptotic_min_input(stages, np.full(longest, MAX_TOKENS), share, 1) is None


def many_classes(inputs: int, outputs: int, block: int, most: int = MOST_CLASSES) -> ServingModel:
    """As many classes as there may be, none of whose lengths are those of another."""
    rng = np.random.default_rng(7)
    prompts, answers = (1 + rng.permutation(90_000)[: most * n].reshape(most, n) for n in (inputs, outputs))
    rows = zip(prompts, np.sort(answers, axis=1), strict=True)
    classes = tuple(
        RequestClass(
            *(f"{i}", 1, tuple(d.tolist()), (1.0,) * outputs, 1e-7),
            prompts=tuple(Prompt(s, 1 / inputs) for s in p.tolist()),
        )
        for i, (p, d) in enumerate(rows)
    )
    return ServingModel(classes, Timing(0.01, 1e-9), Replica(10**8, block_tokens=block))


@pytest.mark.parametrize(("inputs", "outputs", "block"), [(14, 1, 99_991), (1, 40, 16)])
def test_nested_wait_of_most_classes_fits_beside_everything_else(
    inputs: int, outputs: int, block: int
) -> None:
    """Decode lengths times inputs, and inputs times places in a page, are gigabytes each."""
    model = many_classes(inputs, outputs, block)
    with at_most(500):
        assert nested_wait(model, delta=0.01, horizon_s=3600.0, segments=None).feasible


@pytest.mark.parametrize(("bound", "most"), [("_MOST_CELLS", 100), ("_MOST_PHASES", 7)])
def test_inputs_that_are_too_many_are_rounded_up(
    bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whom at least so many tokens long there are as many or more; and that all get as far as before."""
    model = many_classes(3, 2, 1000, most=5)
    exact = lengths_of(model)
    monkeypatch.setattr(segments, bound, most)
    fewer = lengths_of(model)
    assert exact.inputs.size == 15
    assert fewer.inputs.size == (10 if bound == "_MOST_CELLS" else 7)
    assert set(fewer.inputs.tolist()) < set(exact.inputs.tolist())
    np.testing.assert_allclose(fewer.rate_from, exact.rate_from, rtol=1e-12)
    for tokens in exact.inputs:
        longer = fewer.share_from[:, fewer.inputs >= tokens].sum(axis=1)
        assert (longer >= exact.share_from[:, exact.inputs >= tokens].sum(axis=1) - 1e-12).all()


def written(
    path: Path, rows: Sequence[tuple[object, object, float]], memory: int = 10**8, more: str = ""
) -> Path:
    """A profile with a class of each input, decode and rate."""
    table = "[[classes]]\nname = '{}'\ninput = {}\ndecode = {}\nrate = {}\n"
    head = f"schema = 1\nname = 'long'\ngpu = {{ memory_tokens = {memory} }}\ntiming = {{ d0 = 0.01, d2 = 3e-5 }}\n"
    path.write_text(head + more + "".join(table.format(i, *row) for i, row in enumerate(rows)))
    return path


LONGEST = [(1, MAX_DECODE_TOKENS - i, 1e-7) for i in range(MOST_CLASSES)]


def test_classes_of_longest_requests_are_too_many_to_simulate_each_with_its_threshold(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "profile.toml", LONGEST[:17])
    with at_most(500):
        done = run("simulate", path, "--policy", "wait", "--requests", "20")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "17 groups of requests of up to 1,000,000 iterations" in done.stderr


LAW = "{{ lognormal = {{ mean = {}, cv = 0.95 }} }}"
HOSTILE = {
    "a model that reasons": ([(LAW.format(1000), LAW.format(6000), 0.4)], 900_000),
    "bursts of short and longest": (
        [(1000, MAX_DECODE_TOKENS, 1e-4), (1000, 999, 1)],
        10**8,
        "workload = { cv = 20 }\n",
    ),
    "most classes": (LONGEST,),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", HOSTILE)
def test_no_report_takes_a_gigabyte(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "profile.toml", *HOSTILE[name])
    started = subprocess.Popen(
        [sys.executable, "-P", "-m", "kvplan", "analyze", str(path)],
        stdout=subprocess.DEVNULL,
        env=ENVIRONMENT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 * 10**9, 3 * 10**9)),
    )
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    assert (started.returncode, used.ru_maxrss * 1024 < 10**9) == (0, True)
