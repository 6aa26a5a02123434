"""A slow simulator of sessions on a replica with a prefix cache, written from the rules and not from the formulas.

Iteration by iteration, with a token as a page. What a turn leaves is one piece in an order of release; room is made at
the last tokens of the piece that has waited longest. One shared prompt stands before all, and is a piece of its own.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from kvplan.model import Timing

Draw = Callable[[], float]


@dataclass
class Turn:
    """A request: which turn of which session, its prompt, its answer, how many turns follow."""

    session: int
    prompt: int
    decode: int
    further: int


@dataclass
class Averages:
    """Over the time after the start was left out; `kv` and `seconds` a mean over iterations."""

    hit_ratio: float
    shared_ratio: float
    prefill_per_s: float
    seconds: float
    kv: float
    in_flight: float
    requests_per_s: float
    waiting: int


def serve_sessions(
    *,
    sessions_per_s: float,
    first: Draw,
    user: Draw,
    decode: Draw,
    turns: Draw,
    think: Draw,
    arrival: Draw,
    memory: int,
    timing: Timing,
    horizon_s: float,
    skip_s: float,
    shared: int = 0,
) -> Averages:
    """Serve sessions that arrive at random; `arrival` draws exponential gaps of mean 1."""
    now, next_session, sessions = 0.0, arrival() / sessions_per_s, 0
    thinking: list[tuple[float, int, Turn]] = []
    queue: deque[Turn] = deque()
    leaving: dict[int, list[Turn]] = {}
    kept: OrderedDict[int, int] = OrderedDict()  # tokens of each session's last piece, in order of release
    stock = kv = running = iteration = order = 0
    shared_kept = False
    totals = dict.fromkeys(
        ("prompt", "hit", "shared", "computed", "kv", "running", "iterations", "done"), 0.0
    )

    def make_room() -> None:
        nonlocal stock, shared_kept
        while kept and stock + kv > memory:
            oldest = next(iter(kept))
            gone = min(kept[oldest], stock + kv - memory)
            kept[oldest] -= gone
            stock -= gone
            if not kept[oldest]:
                del kept[oldest]
                shared_kept = shared_kept and oldest != -1

    while now < horizon_s:
        while next_session <= now:
            queue.append(Turn(sessions, shared + int(first()), int(decode()), int(turns()) - 1))
            sessions += 1
            next_session += arrival() / sessions_per_s
        while thinking and thinking[0][0] <= now:
            queue.append(heapq.heappop(thinking)[2])
        prefill = 0
        counted = now >= skip_s
        while queue:
            turn = queue[0]
            own = turn.prompt - shared
            if kv + own + (0 if running else shared) > memory:
                break
            queue.popleft()
            found = 0
            if shared:
                if running or shared_kept:
                    found = shared
                    totals["shared"] += counted
                if not running:
                    stock -= kept.pop(-1, 0)
                    kv += shared
                    shared_kept = True
            if not shared or found:
                piece = kept.pop(turn.session, 0)
                stock -= piece
                found += piece
            prefill += turn.prompt - found
            kv += own
            running += 1
            leaving.setdefault(iteration + turn.decode, []).append(turn)
            if counted:
                totals["prompt"] += turn.prompt
                totals["hit"] += found
                totals["done"] += 1
        if not running:
            now = min(next_session, thinking[0][0] if thinking else next_session)
            continue
        kv += running  # the token that each computes or emits
        make_room()
        read = kv + shared * (running - 1)
        seconds = timing(float(read), float(prefill), float(running))
        now += seconds
        iteration += 1
        if counted:
            totals["computed"] += prefill
            totals["kv"] += kv
            totals["running"] += running
            totals["iterations"] += 1
        for turn in leaving.pop(iteration, ()):
            left = turn.prompt - shared + turn.decode
            kv -= left
            running -= 1
            kept[turn.session] = left - 1  # the last token is emitted, never computed
            stock += left - 1
            if shared and not running:
                kv -= shared
                kept[-1] = shared
                stock += shared
            if turn.further:
                order += 1
                longer = turn.prompt + turn.decode + int(user())
                follow = Turn(turn.session, longer, int(decode()), turn.further - 1)
                heapq.heappush(thinking, (now + think(), order, follow))
        make_room()
    span = now - skip_s
    return Averages(
        hit_ratio=totals["hit"] / totals["prompt"],
        shared_ratio=totals["shared"] / totals["done"],
        prefill_per_s=totals["computed"] / span,
        seconds=span / totals["iterations"],
        kv=totals["kv"] / totals["iterations"],
        in_flight=totals["running"] / totals["iterations"],
        requests_per_s=totals["done"] / span,
        waiting=len(queue),
    )
