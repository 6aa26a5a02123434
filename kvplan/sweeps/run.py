"""Run a sweep: batches to an executor, lines to a file, in order and each once."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from time import sleep
from typing import NamedTuple

from kvplan import executors
from kvplan.errors import EngineError
from kvplan.sweeps import store
from kvplan.sweeps.definition import Sweep
from kvplan.sweeps.store import Format, Store

_GO_ON = "--resume goes on from what is there"
_LOOK_S = 0.5
_DEATHS = 5  # of pools one after the other without a batch done between them
_PAUSE_S = 0.2  # after each of those: who dies is there for a moment more

Progress = Callable[[int, int], None]


class Outcome(NamedTuple):
    """Points, those that were there already, and whether a cut line was dropped."""

    points: int
    resumed: int
    dropped: bool


def sweep(
    definition: Sweep,
    path: Path,
    *,
    executor: str = "cores",
    workers: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Compute every point and write it to a .csv or .jsonl file.

    The file has the same bytes whatever the executor, the number of workers, and however often it was resumed. Progress
    is how many points are done, and how many of them by this call; told after every batch. An EngineError where the
    executor has failed; the file can then be gone on with.

    Examples
    --------
    >>> from io import BytesIO
    >>> from tempfile import TemporaryDirectory
    >>> from kvplan.profile.reading import load_profile
    >>> from kvplan.sweeps.definition import define
    >>> profile = load_profile("tool-calls-h100", stdin=BytesIO())
    >>> wanted = define(profile, ["gpu.max_num_seqs=10,1k"], columns=["verdict.binding"])
    >>> with TemporaryDirectory() as folder:
    ...     outcome = sweep(wanted, Path(folder, "out.csv"), executor="serial")
    ...     print(Path(folder, "out.csv").read_text().partition("\\n")[2], end="")
    point,gpu.max_num_seqs,verdict.binding,error
    0,10,max_num_seqs,
    1,1000,compute,
    """
    executors.check(executor, workers)
    with store.opened(definition, path, resume=resume) as results:
        resumed = results.done
        if resumed < definition.points:
            few = definition.points - resumed <= definition.batch  # not worth starting processes for
            kind = "serial" if few and executor == "cores" else executor
            try:
                _work(definition, results, lambda: executors.started(kind, workers), progress)
            except EngineError:
                if results.done == 0:  # nothing to go on with, and the name is wanted again
                    results.path.unlink()
                raise
    return Outcome(definition.points, resumed, results.dropped)


def lines(definition: Sweep, start: int, stop: int, format: Format) -> list[bytes]:
    """Compute the lines of some points, in a worker."""
    return store.lines(definition, format, start, stop)


def _work(
    definition: Sweep,
    results: Store,
    start: Callable[[], AbstractContextManager[executors.Engine]],
    progress: Progress | None,
) -> None:
    """Compute the file's missing points; replace a pool that breaks."""
    begun, deaths = results.done, 0
    while results.done < definition.points:
        before = results.done
        try:
            with start() as engine:
                _give_out(definition, results, engine, begun, progress)
        except BrokenProcessPool:
            deaths = 0 if results.done > before else deaths + 1
            if deaths >= _DEATHS:
                raise EngineError(
                    f"worker processes die again and again, now at point {results.done:,}; out of memory?"
                ) from None
            sleep(_PAUSE_S * deaths)


def _give_out(
    definition: Sweep, results: Store, engine: executors.Engine, begun: int, progress: Progress | None
) -> None:
    size, points = definition.batch, definition.points
    format = store.format_of(results.path)
    waiting: deque[Future[list[bytes]]] = deque()
    # batches begin where they always do, so that a resumed sweep computes them alike
    next_start = results.done - results.done % size
    while results.done < points:
        while next_start < points and len(waiting) < engine.ahead:
            stop = min(next_start + size, points)
            waiting.append(engine.executor.submit(lines, definition, next_start, stop, format))
            next_start = stop
        results.add(_result(waiting.popleft(), engine)[results.done % size :])
        if progress is not None:
            progress(results.done, results.done - begun)


def _result(future: Future[list[bytes]], engine: executors.Engine) -> list[bytes]:
    while True:
        try:
            return future.result(timeout=_LOOK_S)
        except FutureTimeoutError:
            why = engine.failure()
        except CancelledError:
            why = engine.cancelled
        except OSError as error:  # a connection that broke
            why = f"{engine.cancelled} ({' '.join(str(error).split())})"
        except ImportError as error:
            why = f"a worker has not what it needs: {error}"
        except Exception as error:
            if type(error).__name__ != "KilledWorker":  # Dask's, which may not be here
                raise
            why = "workers die again and again over the same points; out of memory?"
        if why is not None:
            raise EngineError(f"{why}; {_GO_ON}")
