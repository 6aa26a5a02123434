"""Small random cases of a prefix cache, for fast and slow simulators."""

from dataclasses import replace

from hypothesis import strategies as st
from session_shapes import SHAPES, Shape
from small_runs import TIMINGS, Case

from kvplan.model import Replica, Timing

LIMITS_S = st.sampled_from([0.0, 1.0, 5.0, 20.0])
REPLICAS = st.builds(
    Replica,
    memory_tokens=st.integers(1, 8) | st.integers(1, 60),  # beside the longest request
    block_tokens=st.integers(1, 5),
    max_num_seqs=st.none() | st.integers(1, 6),
    max_num_batched_tokens=st.none() | st.integers(6, 30),
)


def case_of(
    shape: Shape,
    timing: Timing,
    replica: Replica,
    watermark: float,
    admission: float,
    shed_after: float | None,
    horizon_s: float | None,
) -> Case:
    requests = shape.requests()
    longest = int((requests.input_tokens + requests.decode_tokens - 1).max())
    block = replica.block_tokens
    memory = (-(-longest // block) + 1) * block + replica.memory_tokens
    parameters = {"prefix_caching": (1.0,), "watermark": (watermark,), "admission": (admission,)}
    if shed_after is not None:
        parameters["shed_after"] = (shed_after,)
    return Case(requests, timing, replace(replica, memory_tokens=memory), parameters, horizon_s)


CASES = st.builds(
    case_of,
    SHAPES,
    TIMINGS,
    REPLICAS,
    st.sampled_from([0.0, 0.05, 0.3]),
    st.sampled_from([0.0, 1.0]),
    st.none() | st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    st.none() | st.floats(0.0, 60.0),
)
