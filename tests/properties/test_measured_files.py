"""Whatever a result file holds, it is read or refused in one line: never a traceback."""

import copy
import json
import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from result_files import FORWARD_PASS, INFERENCEMAX, PHASE, SGLANG, VLLM, aiperf, guidellm, report, stage
from sampled import parse_samples
from tiers import examples

from kvplan.errors import UsageError
from kvplan.ingest.timing.samples import Samples

DOCUMENTS = (
    VLLM | {"input_lens": [1000] * 3, "output_lens": [200] * 3},
    SGLANG,
    [INFERENCEMAX],
    report(guidellm({"type_": "concurrent", "streams": 8}), guidellm({"type_": "poisson", "rate": 4.0})),
    aiperf({"loadgen": {"request_rate": 4.0}}),
    aiperf({"phases": [PHASE]}),
    stage(10.0, 10.02, 9.9, 0.73),
    {"event": {"fpm": FORWARD_PASS}},
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.sampled_from(
        ["", "inf", "none", "nan", "1e999", "0", "-1", "tp", [], {}, [[]], [None], {"avg": None}, [{}]]
    ),
    st.text(max_size=5),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All there is in a document, by path."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in parts for place in places(part, (*path, key)))]


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    document = copy.deepcopy(document)
    within = document
    for key in path[:-1]:
        within = within[key]
    within[path[-1]] = value
    return document


def read(text: str) -> None:
    """Read it, or refuse it in one line; samples are finite."""
    refused, found = "", ()
    try:
        found = parse_samples(text.splitlines(keepends=True), "file", capacity_tokens=10_000)
    except UsageError as error:
        refused = str(error)
    assert "\n" not in refused
    for some in found:
        if isinstance(some, Samples):
            for column in (some.kv_tokens, some.prefill_tokens, some.sequences, some.seconds):
                assert np.isfinite(column).all()
                assert (column >= 0).all()
            continue
        for point in some.points:
            assert (point.concurrency is None) != (point.rate_rps is None)
            assert point.concurrency is None or point.concurrency >= 1
            assert point.rate_rps is None or 0 < point.rate_rps < math.inf
            for low, high in (point.inputs, point.outputs):
                assert 0 <= low <= high


@examples(150)
@given(st.sampled_from(DOCUMENTS), st.data())
def test_documents_with_any_values_in_them(document: Any, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        document = changed(document, data.draw(st.sampled_from(places(document))), data.draw(VALUES))
    read(json.dumps(document, indent=data.draw(st.sampled_from([None, 1]))))
