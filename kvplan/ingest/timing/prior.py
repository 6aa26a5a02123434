"""What is believed of a timing before anything is measured: another profile's, or an estimate from model and GPU."""

from collections.abc import Iterable
from typing import NamedTuple

from kvplan.errors import UsageError
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import find_gpu
from kvplan.ingest.model.roofline import Efficiency, roofline
from kvplan.ingest.timing.samples import Deployment, Measured, Sweep
from kvplan.model import Timing


class Prior(NamedTuple):
    """A law whose ratios count where measurements leave them open, and what it is of."""

    timing: Timing
    source: str


NOTHING = Prior(Timing(1.0), "")  # an iteration takes time; what of it is proportional to what, nobody knows


def of_deployment(deployment: Deployment, reached: Efficiency | None = None) -> Prior | None:
    """The estimate for what a file says was measured; None where the catalogue does not know it.

    `reached` is what the estimate takes engines to reach of the peaks, instead of what is shipped.

    Examples
    --------
    >>> found = of_deployment(Deployment(model="Llama-3.1-8B", gpu="RTX 4090", engine="vllm"))
    >>> found.source if found else None
    'the estimate for meta-llama/Llama-3.1-8B on RTX 4090'
    >>> of_deployment(Deployment(model="unheard-of", gpu="RTX 4090"))
    """
    if not (deployment.model and deployment.gpu):
        return None
    try:
        shape, gpu = read_model(deployment.model), find_gpu(deployment.gpu)
        found = roofline(
            shape,
            gpu,
            tensor_parallel=deployment.tensor_parallel,
            weight_dtype=deployment.weight_dtype or None,
            reached=reached,
        )
    except UsageError:
        return None
    return Prior(found.timing, f"the estimate for {shape.name} on {gpu.name}")


def of_measured(measured: Iterable[Measured]) -> Prior | None:
    """The estimate for what files say was measured; None where they do not say it."""
    found = (of_deployment(some.deployment) for some in measured if isinstance(some, Sweep))
    return next(filter(None, found), None)
