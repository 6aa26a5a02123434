"""How the GPUs of a replica share a model: tensor, data, expert, pipeline and context parallelism."""

from dataclasses import asdict, dataclass


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

    @property
    def untested(self) -> bool:
        """Tell whether times of such a layout were never compared with a measurement."""
        return self.pipeline > 1 or self.context > 1

    @property
    def keys(self) -> dict[str, int]:
        """Keys of a profile's [gpu]: the GPUs alone where all are tensor-parallel."""
        if self == Parallelism(self.tensor):
            return {"gpus": self.tensor} if self.tensor > 1 else {}
        return {f"{kind}_parallel": number for kind, number in asdict(self).items() if number > 1}

    def __str__(self) -> str:
        """Short, as tables have it: TP1 DP8 EP8."""
        names = {"tensor": "TP", "data": "DP", "expert": "EP", "pipeline": "PP", "context": "DCP"}
        kinds = ((kind, number) for kind, number in asdict(self).items() if number > 1 or kind == "tensor")
        return " ".join(f"{names[kind]}{number}" for kind, number in kinds)

    @property
    def misfit(self) -> tuple[str, str] | None:
        """The kind that does not go with the others, and what it must be; None where all go together."""
        if self.group % self.expert:
            return "expert", f"must divide tensor x data parallelism, {self.group}, not {self.expert}"
        if self.tensor % self.context:
            return (
                "context",
                f"must divide tensor parallelism, {self.tensor}, whose GPUs it uses, not {self.context}",
            )
        return None


ALONE = Parallelism()  # a GPU
