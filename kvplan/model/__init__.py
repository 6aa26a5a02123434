"""Model: classes of requests, a replica, its iteration time, and what requests weigh. Frozen data, pure functions.

`classes` classes, and the traffic as arrays, one row a prompt and decode length; `weights`, `kv_layout`, `partial` what
a request reads and holds at its stages, with layers of several kinds, and before its prompt is computed whole;
`timing`, `prompts` how long an iteration takes, and prefill tokens in it; `replica`, `engine`, `fleet` memory, limits
and the plan, whose scheduler, several replicas; `serving` all of it, one model or many side by side; `arrivals`,
`schedule` gaps between arrivals, and rates that vary; `gaps`, `lengths`, `sessions`, `streams` what a prefix cache
lives on, in exact moments; `drafts` speculative decoding; `parallelism` how GPUs of a replica share a model;
`provenance` how all this is known
"""

from kvplan.engine import Admission, Engine, EngineName, Scheduling
from kvplan.model.arrays import FloatArray, IntArray, as_written, sum_by, survival
from kvplan.model.arrivals import ArrivalProcess, Recorded
from kvplan.model.classes import Mix, Prompt, RequestClass
from kvplan.model.parallelism import Parallelism
from kvplan.model.prompts import Prompts
from kvplan.model.provenance import Knowledge, MeasuredRange, Origin, Provenance
from kvplan.model.replica import Plan, Replica
from kvplan.model.serving import ServingModel, SideBySide, side_by_side
from kvplan.model.timing import Tangent, Timing, attention_pairs, iteration_time
from kvplan.model.weights import Prefill, StageWeights, TabledWeights, Weights

__all__ = [
    "Admission",
    "ArrivalProcess",
    "Engine",
    "EngineName",
    "FloatArray",
    "IntArray",
    "Knowledge",
    "MeasuredRange",
    "Mix",
    "Origin",
    "Parallelism",
    "Plan",
    "Prefill",
    "Prompt",
    "Prompts",
    "Provenance",
    "Recorded",
    "Replica",
    "RequestClass",
    "Scheduling",
    "ServingModel",
    "SideBySide",
    "StageWeights",
    "TabledWeights",
    "Tangent",
    "Timing",
    "Weights",
    "as_written",
    "attention_pairs",
    "iteration_time",
    "side_by_side",
    "sum_by",
    "survival",
]
