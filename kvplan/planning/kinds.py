"""Kinds of replicas: a model on so many GPUs, with weights of a type, as the tables of a profile that is estimated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvplan.engine import EngineName
from kvplan.errors import UsageError
from kvplan.ingest.facts import nested
from kvplan.ingest.model.estimate import ReplicaEstimate, default_limits, estimate_replica
from kvplan.ingest.model.hardware import Gpu
from kvplan.ingest.model.roofline import Roofline, roofline
from kvplan.ingest.model.shape import ModelShape
from kvplan.ingest.model.text import estimate_part, roofline_part
from kvplan.ingest.model.weights import named_storage
from kvplan.model import Parallelism, Replica

TENSOR_PARALLEL = 1, 2, 4, 8  # that are tried where nobody says
_TWO_SERVERS = Parallelism(16), Parallelism(8, pipeline=2)  # and where weights do not fit on those
_NO_ROOM = "weights do not fit"
_FEW_SEQUENCES = 256  # vLLM's default on small GPUs; more have no effect but on large memories


@dataclass(frozen=True)
class Kind:
    """A model on GPUs of a kind; `weights` are those of the model's configuration where `own_weights`."""

    shape: ModelShape
    gpu: Gpu
    parallelism: Parallelism
    weights: str
    own_weights: bool
    kv_dtype: str = "auto"
    engine: EngineName = EngineName.VLLM
    version: str = ""
    max_num_seqs: int = _FEW_SEQUENCES
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    about: tuple[tuple[str, Any], ...] = ()  # what [model] of a profile says beside weights and GPU

    @property
    def name(self) -> str:
        """Short, as tables have it."""
        return f"{self.gpu.name} {self.parallelism} {self.weights}"

    @cached_property
    def memory(self) -> ReplicaEstimate:
        """Memory of a replica; a UsageError where weights do not fit, or heads cannot be shared out."""
        return estimate_replica(
            self.shape,
            self.gpu,
            engine=self.engine,
            version=self.version,
            limits={"max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.batched_tokens},
            parallelism=self.parallelism,
            kv_dtype=self.kv_dtype,
            weight_dtype=None if self.own_weights else self.weights,
        )

    @cached_property
    def speed(self) -> Roofline:
        """Iteration times, estimated."""
        return roofline(
            self.shape,
            self.gpu,
            parallelism=self.parallelism,
            kv_dtype=self.kv_dtype,
            weight_dtype=None if self.own_weights else self.weights,
            engine=self.engine,
        )

    @property
    def batched_tokens(self) -> int:
        """The budget of an iteration that is given, or vLLM's own."""
        own = default_limits(EngineName.VLLM, self.gpu, self.version)["max_num_batched_tokens"]
        return self.max_num_batched_tokens or own

    @property
    def model_table(self) -> dict[str, Any]:
        """The table [model] of a profile."""
        named = {"name": self.shape.name, "weights": self.weights, "gpu": self.gpu.name}
        return named | ({} if self.kv_dtype == "auto" else {"kv_dtype": self.kv_dtype}) | dict(self.about)

    @cached_property
    def longest(self) -> int | None:
        """Most tokens of a request: as given or the model's own, and at most what memory holds."""
        limit, memory = self.max_model_len or self.shape.max_model_len, self.memory
        if limit is None:
            return None
        layout = memory.layout if memory.is_mixed else None
        room = Replica(
            memory.memory_tokens,
            memory.block_tokens,
            max_num_batched_tokens=self.batched_tokens,
            layout=layout,
        )
        longest = room.longest(limit)
        if self.max_model_len is not None and longest < limit:
            raise UsageError(f"no room for a request of max_model_len, {limit:,} tokens: {longest:,} fit")
        return longest

    def not_cached(self, *, talks: bool) -> str | None:
        """Say why a plan has no prefix cache, for conversations if `talks`; None: it has one."""
        if not self.memory.is_mixed:
            return None
        if self.engine is not EngineName.VLLM:
            return "not modelled beside layers of several kinds but in vLLM"
        if (states := self.memory.layout.not_cached) is not None:
            return f"not modelled beside {states}"
        return "no formula has conversations beside layers of several kinds" if talks else None

    def tables(self) -> dict[str, Any]:
        """Make tables [model], [gpu], [timing], [provenance] of a profile."""
        limits = {"max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.batched_tokens}
        memory = estimate_part(self.memory, self.shape, self.gpu, None, limits=limits)
        times = roofline_part(self.speed, self.shape, self.gpu, self.parallelism, self.engine)
        origin = {"basis": "estimated", "source": f"{self.shape.name} on {self.name}"}
        known = {"provenance": {"gpu": origin, "timing": origin}}
        return {**known, "model": self.model_table, **nested(memory.facts), **nested(times.facts)}


def kinds(
    shape: ModelShape,
    gpus: Sequence[Gpu],
    *,
    parallelism: Sequence[Parallelism] = (),
    weights: Sequence[str] = (),
    **how: Any,
) -> Iterator[Kind]:
    """List the kinds to try; without `weights` the model's own, and fp8 where the GPU computes with it."""
    own = shape.weights
    for gpu in gpus:
        types = weights or (own, *(["fp8"] if gpu.flops_fp8 is not None and shape.storage.bits > 8 else []))
        for name in types:
            is_own = name == own or named_storage(name) == shape.storage
            tried = [
                Kind(shape, gpu, ranks, name, is_own, **how)
                for ranks in parallelism or map(Parallelism, TENSOR_PARALLEL)
            ]
            yield from tried
            if not parallelism and all(fits(kind) == _NO_ROOM for kind in tried):
                yield from (Kind(shape, gpu, ranks, name, is_own, **how) for ranks in _TWO_SERVERS)


def fits(kind: Kind) -> str | None:
    """Say why a kind cannot serve its model at all; None where it can."""
    try:
        kind.memory, kind.speed, kind.longest  # noqa: B018
    except UsageError as error:
        text = str(error)
        return _NO_ROOM if "leaves no room" in text else text
    return None
