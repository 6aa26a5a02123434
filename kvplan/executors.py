"""Places where the work of a sweep or a plan is done, each behind `concurrent.futures.Executor`.

- ``serial``: this process.
- ``cores``: processes of this machine; those that die are replaced.
- ``dask``: a Dask cluster of this machine, for as long as the work takes.
- ``tcp://HOST:PORT``: a Dask scheduler that is running; also ``tls://``; its workers need the same kvplan.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from kvplan.errors import EngineError, UsageError

HOW_TO_INSTALL = "is the extra dask: pip install '.[dask]' in the checkout"
_ADDRESSES = ("tcp://", "tls://", "ucx://", "ws://", "wss://")
_CONNECT_S = 10.0  # until there are a scheduler and a worker
_LOST_S = 5.0  # without the scheduler, after which it is gone
_AHEAD = 4  # pieces for each worker, so that none waits for the first one to be done
_LOOK_S = 0.2  # between two looks at work elsewhere
MAX_WORKERS = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Engine:
    """Something that does work, and is given so many pieces of it `ahead` of the first that is back.

    `failure` says why what was given will never be done, None as long as it will, or raises `BrokenProcessPool`;
    `cancelled` what it means when the executor cancels work by itself.
    """

    executor: Executor
    ahead: int
    failure: Callable[[], str | None]
    cancelled: str = "the work was cancelled"


class Serial(Executor):
    """Work done at once, in this process.

    >>> Serial().submit(max, 3, 5).result()
    5
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it now."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


SERIAL = Engine(Serial(), 1, lambda: None)


def check(kind: str, workers: int | None) -> None:
    """Refuse what is no executor, or cannot be had, before work begins."""
    remote = kind.startswith(_ADDRESSES)
    if not remote and kind not in ("serial", "cores", "dask"):
        raise UsageError(
            f"--executor {kind[:60]!r}: serial, cores, dask or the address of a scheduler, tcp://HOST:PORT"
        )
    if remote and not _is_address(kind):
        raise UsageError(
            f"--executor {kind[:60]!r}: a scheduler's address is tcp://HOST:PORT, port 1 to 65535"
        )
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise UsageError(f"--workers {workers}: 1 to {MAX_WORKERS:,}")
    if workers is not None and (remote or kind == "serial"):
        why = "the scheduler has its own" if remote else "is one process"
        raise UsageError(f"--workers does not go with --executor {kind}: {why}")
    if remote or kind == "dask":
        from importlib.util import find_spec

        if find_spec("distributed") is None:
            raise UsageError(f"--executor {kind}: Dask {HOW_TO_INSTALL}")


def _is_address(text: str) -> bool:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        return bool(parts.hostname and parts.port)
    except ValueError:  # a port that is none
        return False


@contextmanager
def started(kind: str, workers: int | None) -> Iterator[Engine]:
    """Start an executor of a kind that `check` has let pass; an EngineError where no scheduler answers."""
    if kind == "serial" or (kind == "cores" and (workers or cores()) == 1):
        yield SERIAL
    elif kind == "cores":
        with _processes(workers or cores()) as engine:
            yield engine
    else:
        with _dask(kind, workers or cores()) as engine:
            yield engine


def results(engine: Engine, done: Callable[..., T], *arguments: Iterable[Any]) -> Iterator[T]:
    """Yield what is done with each of the arguments, in their order; an EngineError where that will never be."""
    futures = [engine.executor.submit(done, *each) for each in zip(*arguments, strict=True)]
    for future in futures:
        while not future.done():
            wait([future], timeout=_LOOK_S)
            if (why := engine.failure()) is not None:
                raise EngineError(why)
        yield future.result()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ----------------------------------------------------------------------------------------------- processes


_server_started: list[bool] = []  # of this process, once and for all its sweeps


def get_ready() -> None:
    """Let a process import in the background what simulated points need; those who work are forked from it later.

    It has no threads of its own, so forks of it are safe; it ends with this process.
    """
    from multiprocessing import forkserver, get_all_start_methods, set_forkserver_preload

    if not _server_started and "forkserver" in get_all_start_methods():
        set_forkserver_preload(["kvplan.sweeps.worker"])
        forkserver.ensure_running()
        _server_started.append(True)


@contextmanager
def _processes(workers: int) -> Iterator[Engine]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    others = set(active_children())
    context = get_context("forkserver" if _server_started else "spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker)
    inside: Any = pool

    def nobody_died() -> None:
        """The pool itself does not notice who dies while sending a result."""
        if any(worker.exitcode is not None for worker in (inside._processes or {}).values()):
            raise BrokenProcessPool("a worker died")

    try:
        yield Engine(pool, _AHEAD * workers, nobody_died)
    except BaseException as error:
        for worker in set(active_children()) - others:  # what they are at is of no use any more
            worker.kill()
        # The pool waits for the rest of a result as long as anybody could send it, and could itself.
        inside._result_queue._writer.close()
        if isinstance(error, EOFError | ConnectionError):
            raise BrokenProcessPool("the process that forks workers died") from error
        raise
    finally:
        try:
            pool.shutdown(wait=True, cancel_futures=True)
        except ConnectionError as error:  # who was to be told to end has died
            raise BrokenProcessPool("a worker died") from error


def _prepare_worker() -> None:
    """Leave Ctrl-C to the parent, and never outlive it: it may be killed without a word."""
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# ---------------------------------------------------------------------------------------------------- Dask


@contextmanager
def _dask(kind: str, workers: int) -> Iterator[Engine]:
    """Connect to a scheduler; with one's own cluster, start that too."""
    import logging

    import dask
    from distributed import Client, LocalCluster

    # it reports lost workers at length; what matters of it is said by the sweep
    talkers, silent = ("distributed", "tornado", "asyncio"), logging.CRITICAL + 1
    for name in [*talkers, *(n for n in logging.root.manager.loggerDict if n.startswith(talkers))]:
        logging.getLogger(name).setLevel(silent)
    settings = {
        "distributed.comm.timeouts.connect": f"{_CONNECT_S:g}s",
        "distributed.admin.tick.limit": "1h",
    }
    with dask.config.set(settings):
        cluster = None
        try:
            if kind == "dask":
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    # it has a server for it all the same, for all to see and at a port that can be taken
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                    silence_logs=silent,
                )
            if cluster is None:
                _greet(kind)
            client = Client(cluster or kind, timeout=_CONNECT_S, set_as_default=False)
            client.wait_for_workers(1, timeout=_CONNECT_S)
        except Exception as error:  # what listens there may say anything
            why = " ".join(str(error).split()) or type(error).__name__
            raise EngineError(f"{kind}: no Dask scheduler with workers answers ({why})") from None
        try:
            gone = f"{kind}: the Dask scheduler is gone"
            threads = sum(client.ncores().values())
            yield Engine(client.get_executor(pure=False), _AHEAD * threads, _watched(client, gone), gone)
        finally:
            client.close(timeout=2)
            if cluster is not None:
                cluster.close(timeout=5)


def _greet(address: str) -> None:
    """Ask a scheduler who it is: a client of anything else waits for it without end."""
    import asyncio

    from distributed import rpc

    async def who() -> object:
        async with rpc(address) as scheduler:
            return (await scheduler.identity())["type"]

    if (found := asyncio.run(asyncio.wait_for(who(), _CONNECT_S))) != "Scheduler":
        raise ValueError(f"it is a {found}")


def _watched(client: Any, gone: str) -> Callable[[], str | None]:
    from time import monotonic

    answered = monotonic()

    def failure() -> str | None:
        nonlocal answered
        if client.status == "running":
            answered = monotonic()
        if client.status in ("closed", "closing") or monotonic() - answered > _LOST_S:
            return gone
        return None

    return failure
