"""What was measured: a model on GPUs under an engine, with the law that is estimated for it."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from kvplan.engine import EngineName
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import Gpu, find_gpu
from kvplan.ingest.model.roofline import Efficiency, assumed_kv_dtype, estimated_timing
from kvplan.ingest.model.shape import ModelShape
from kvplan.ingest.model.weights import named_storage
from kvplan.ingest.timing.samples import Deployment
from kvplan.model import Parallelism, Timing


class Configuration(NamedTuple):
    """What a sweep is of; versions of engines together."""

    model: str
    gpu: str
    engine: str
    precision: str
    parallelism: str


@dataclass(frozen=True)
class Deployed:
    """A configuration, looked up."""

    configuration: Configuration
    shape: ModelShape
    gpu: Gpu
    ranks: Parallelism
    engine: EngineName
    kv_dtype: str

    def law(self, reached: Efficiency) -> Timing:
        """What is estimated for one of its ranks."""
        return estimated_timing(
            self.shape, self.gpu, reached, parallelism=self.ranks, kv_dtype=self.kv_dtype, engine=self.engine
        )


def deployed(deployment: Deployment) -> Deployed:
    """What was measured, with its weights as the benchmark names them."""
    shape, precision = read_model(deployment.model), deployment.weight_dtype
    if precision != "int4" and (precision, shape.storage.name) != ("fp4", "mxfp4"):  # else as published
        shape = replace(shape, storage=named_storage(precision))
    gpu, engine, ranks = find_gpu(deployment.gpu), EngineName(deployment.engine), deployment.parallelism
    of = Configuration(shape.like or shape.name, gpu.name, engine, precision, str(ranks))
    return Deployed(of, shape, gpu, ranks, engine, assumed_kv_dtype(gpu, engine))
