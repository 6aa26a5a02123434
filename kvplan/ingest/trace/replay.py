"""A recorded trace as requests to simulate: its own arrivals and lengths."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.trace.prefixes import block_size
from kvplan.ingest.trace.rows import TraceFile
from kvplan.model import IntArray, Recorded
from kvplan.simulation.requests import Requests, requests_of

if TYPE_CHECKING:
    from kvplan.profile.reading import Profile


@dataclass(frozen=True)
class Trace:
    """Requests of a trace by time of arrival, from the first on; and what was left out."""

    recorded: Recorded
    format: str
    notes: tuple[str, ...]

    @property
    def requests(self) -> Requests:
        """To be simulated as they came, all of class 0."""
        return requests_of(self.recorded)


def read_trace(path: Path) -> Trace:
    """Read a trace of any format of `kvplan.ingest.trace.rows`. Times count to the microsecond.

    Where the blocks of its prompts have hashes, they say which begin alike. Rows that generate nothing are left out and
    counted; an empty prompt is no reason, as in a profile.

    Raises
    ------
    UsageError
        With line and column of the first value that cannot be used; or there are no requests, or no arrival times.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     rows = ("2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,0")
    ...     _ = path.write_text("\\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows, "")))
    ...     trace = read_trace(path)
    >>> trace.requests.input_tokens.tolist(), trace.requests.decode_tokens.tolist(), trace.notes
    ([374], [44], ('1 of 2 rows left out: nothing generated',))
    """
    file = TraceFile(path)
    every = file.read()
    arrival, inputs, decode, _ = every
    if file.are_sums(every):
        raise UsageError(f"{path}: rows are sums of several requests, which a replay needs one by one")
    if file.duration_s is not None:
        raise UsageError(f"{path}: {file.format} without arrival times, which a replay needs")
    rows = file.leave_out(decode == 0, "nothing generated")
    if not decode.any():
        raise UsageError(f"{path}: no request that generates tokens; {rows:,} rows")
    served = decode > 0
    arrival, inputs, decode = arrival[served], inputs[served], decode[served]
    file.refuse_what_is_open(arrival.size, float(np.ptp(arrival)))
    order = np.argsort(arrival, kind="stable")
    hashes, block_tokens = _hashes(file, inputs)
    recorded = Recorded(
        arrival_s=np.round(arrival[order] - arrival[order[0]], 6),
        input_tokens=inputs[order],
        decode_tokens=decode[order],
        block_hashes=None if hashes is None else tuple(hashes[i] for i in order),
        block_tokens=block_tokens,
    )
    return Trace(recorded, file.format, tuple(file.notes(rows, arrival)))


def with_trace(profile: "Profile") -> "Profile":
    """Add the requests of the trace that a profile refers to, if it does, for simulations to replay."""
    if profile.trace is None or profile.known is None:
        return profile
    try:
        recorded = read_trace(profile.trace).recorded.within(profile.model.max_model_len)
    except UsageError as error:
        raise profile.error(str(error), "workload", "trace") from None
    return replaying(profile, recorded)


def replaying(profile: "Profile", recorded: Recorded) -> "Profile":
    """Add requests to replay to a complete profile; refuse them if one never fits, or they have no rate."""
    place = "workload", "trace"
    longest, memory = int((recorded.input_tokens + recorded.decode_tokens).max()), profile.model.replica
    if longest > memory.capacity_tokens:
        seen = f"its longest request holds {longest:,} KV tokens, and memory {memory.capacity_tokens:,}"
        raise profile.error(f"does not fit: {seen}", *place)
    if recorded.rate_rps is None:
        raise profile.error("all its requests arrive at one time, so that they have no rate", *place)
    arrivals = replace(profile.model.arrivals, trace=recorded)
    return replace(profile, known=replace(profile.model, arrivals=arrivals))


def _hashes(file: TraceFile, inputs: IntArray) -> tuple[list[list[int]] | None, int]:
    """Return the hashes of the blocks of each prompt, and the tokens of a block.

    None where it has none, or more than are remembered.
    """
    known = file.identities
    if not known.hashes or known.full:
        return None, 1
    ends = np.cumsum(known.hash_count).tolist()
    block = block_size(np.array(known.input_tokens), np.array(known.hash_count))
    if block is None:
        return None, 1
    remembered = (known.hashes[begin:end].tolist() for begin, end in zip([0, *ends], ends, strict=False))
    return [next(remembered) if tokens else [] for tokens in inputs.tolist()], block
