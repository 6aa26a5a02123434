"""Load sweeps: what clients measured of an engine at several concurrencies or rates, a point each."""

from dataclasses import dataclass

from kvplan.ingest.timing.samples import LeftOut

Range = tuple[int, int]  # whole numbers, evenly from the first to the second


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run at one load, as a client saw it; means over its requests, None for what was not measured.

    Attributes
    ----------
    line
        Where in the file, counted from 1.
    inputs, outputs
        Prompt and generated tokens of a request.
    cached_tokens
        Of a prompt, found in the prefix cache: they are read and not computed.
    concurrency
        Requests in flight; None where they arrived at a rate.
    rate_rps
        Requests offered per second; None in a closed loop.
    in_midst
        Whether the first requests of a closed loop are at random places of their answers, and do not begin together.
    evenly
        Whether they came at equal gaps, and not at random.
    requests
        How many were measured.
    tpot_s
        (E2E - TTFT) / (generated tokens - 1).
    throughput_rps
        Requests completed per second.
    """

    line: int
    inputs: Range
    outputs: Range
    cached_tokens: int = 0
    concurrency: int | None = None
    rate_rps: float | None = None
    evenly: bool = False
    in_midst: bool = False
    requests: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    throughput_rps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a file says was measured, in its own words; empty where it does not say.

    `engine` is "vllm", "sglang" or "trtllm".
    """

    model: str = ""
    gpu: str = ""
    engine: str = ""
    tensor_parallel: int = 1
    weight_dtype: str = ""
    other: str = ""  # what else tells those of a file apart

    @property
    def name(self) -> str:
        """All that is known; empty where nothing is."""
        shared = f"TP{self.tensor_parallel}" if self.model and self.gpu else ""
        known = (self.model, self.gpu, self.engine, shared, self.weight_dtype, self.other)
        return ", ".join(part for part in known if part)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Points of one deployment.

    Attributes
    ----------
    format
        What the format of the file is called.
    notes
        What the reader of the points should know of how they were measured.
    sha256
        Of the bytes of the file, as stored; empty for lines that are no file's.
    """

    source: str
    format: str
    deployment: Deployment
    points: tuple[Point, ...]
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    sha256: str = ""

    @property
    def group(self) -> str:
        """What the deployment is called; empty where the file does not say."""
        return self.deployment.name
