"""Who arrives when, and how long they are: Poisson, renewal, burst, saturated, closed loop, and traces."""

from dataclasses import dataclass

from kvplan.model import FloatArray, IntArray


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival.

    Attributes
    ----------
    arrival_s : ndarray, shape (n_requests,)
        Seconds from the start, ascending. All 0 in a closed loop, where the run decides.
    input_tokens, decode_tokens : ndarray of int64, shape (n_requests,), tokens
    class_index : ndarray of int64, shape (n_requests,)
        Position of the class in the profile; 0 for requests of a trace.
    clients : int or None
        Closed loop: so many requests are there at first, and each completion brings the next. None: open.
    """

    arrival_s: FloatArray
    input_tokens: IntArray
    decode_tokens: IntArray
    class_index: IntArray
    clients: int | None = None
