"""The model: classes of requests, a replica, its iteration time, and what requests weigh. Frozen data, pure functions.

===============  ======================================================================
`classes`        a class of requests; the traffic as arrays, one row a prompt and decode length
`weights`        what a request reads and holds at each of its stages
`kv_layout`      what it holds where layers keep KV of several kinds
`partial`        prompts longer than the token budget of an iteration
`timing`         how long an iteration takes
`prompts`        how many prefill tokens an iteration computes
`replica`        memory, pages, limits; what a plan should guarantee
`engine`         whose scheduler serves, and how it admits
`fleet`          several replicas, together or prefill and decode apart
`provenance`     how all this is known, and in what range it was measured
`serving`        all of it together, one model or many side by side
`arrivals`       gaps between arrivals, or recorded ones
`schedule`       rates that vary over time
`gaps`           how long until what a request leaves in the prefix cache is asked for again
`lengths`        laws of lengths, and exact moments of sums of them in whole pages
`reuse`          what requests of a class share, and ask for again
`sessions`       conversations, whose turns are requests
`streams`        what requests cost and leave in the prefix cache, in exact moments
===============  ======================================================================
"""

from kvplan.engine import Admission, Engine, EngineName
from kvplan.model.arrays import FloatArray, IntArray, as_written, sum_by, survival
from kvplan.model.arrivals import ArrivalProcess, Recorded
from kvplan.model.classes import Mix, Prompt, RequestClass
from kvplan.model.prompts import Prompts
from kvplan.model.provenance import Knowledge, MeasuredRange, Origin, Provenance
from kvplan.model.replica import Plan, Replica
from kvplan.model.serving import ServingModel, SideBySide, side_by_side
from kvplan.model.timing import Tangent, Timing, iteration_time
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
    "Plan",
    "Prefill",
    "Prompt",
    "Prompts",
    "Provenance",
    "Recorded",
    "Replica",
    "RequestClass",
    "ServingModel",
    "SideBySide",
    "StageWeights",
    "TabledWeights",
    "Tangent",
    "Timing",
    "Weights",
    "as_written",
    "iteration_time",
    "side_by_side",
    "sum_by",
    "survival",
]
