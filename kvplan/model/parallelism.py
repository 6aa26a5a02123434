"""How the GPUs of a replica share a model: tensor, data, expert, pipeline and context parallelism."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Ranks of each kind; experts and contexts use GPUs that the others count.

    `data` ranks of attention are engines of their own, each with `tensor` GPUs in each of `pipeline` stages, and with
    memory, limits and a queue of its own; all of them step together, at the pace of the slowest.

    Examples
    --------
    >>> Parallelism(tensor=1, data=8, expert=8).gpus
    8
    """

    tensor: int = 1  # of one attention rank
    data: int = 1
    expert: int = 1  # divides tensor · data
    pipeline: int = 1
    context: int = 1  # divides tensor

    @property
    def gpus(self) -> int:
        return self.tensor * self.data * self.pipeline

    @property
    def group(self) -> int:
        """GPUs of one pipeline stage, over which experts and tables are spread."""
        return self.tensor * self.data


ALONE = Parallelism()  # a GPU
