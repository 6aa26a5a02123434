"""The command line: the commands put together, exit codes, and every failure in one line."""

import errno
import gc
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer

from kvplan.cli import check, emit, few, plan, simulate, sweep
from kvplan.cli.common import say
from kvplan.cli.output import ClosedPipeError, abandon_standard_output, write_result
from kvplan.errors import EngineError, ExitCode, UsageError
from kvplan.version import __version__

_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)
_CLOSED_PIPE = 141  # as if the signal had ended the process, which is what shells expect

app = typer.Typer(
    help="Capacity planner for LLM serving: does this traffic fit this replica's KV cache?",
    epilog="Example: kvplan analyze my-service.toml",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        write_result(f"kvplan {__version__}\n")
        raise typer.Exit


@app.callback()
def _kvplan(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass  # its options are those before a command


_EXAMPLES: dict[Callable[..., None], str] = {
    plan.plan: "kvplan plan Llama-3.1-70B --gpu H100 --rate 12 --in 3000 --out 400 --slo ttft-p95=2s",
    plan.measure: "kvplan measure plan.toml --with vllm -o bench.sh",
    few.analyze: "kvplan analyze llama-3.1-8b-rtx4090 --format markdown -o capacity.md",
    check.check: "kvplan check my-service.toml --require 'verdict.status == stable'",
    few.diff: "kvplan diff before.toml after.toml",
    simulate.simulate: "kvplan simulate --policy greedy,vllm --set vllm.watermark=0.05 --seeds 4",
    sweep.sweep: "kvplan sweep my-service.toml --vary 'gpu.memory_tokens=20k:400k:20' -o results.csv",
    emit.emit: "kvplan emit my-service.toml --target keda --name chat -o keda.yaml",
    few.mix: "kvplan mix two-tier-100-125 --replicas 2",
    few.explain: "kvplan explain worst_cycle.loss tool-calls-h100",
    few.reproduce: "kvplan reproduce sic-example-02",
    few.importing: "kvplan import serve.log requests.csv -o service.toml",
    few.init: "kvplan init my-service.toml",
    few.profiles: "kvplan profiles tool-calls-h100 > mine.toml",
    few.models: "kvplan models Llama-3.3",
    few.gpus: "kvplan gpus H100",
    few.schema: "kvplan schema -o kvplan.schema.json",
}
_FAILS = {
    plan.plan: "1 no number of replicas meets the demand",
    check.check: "1 a requirement is not met",
    emit.emit: "1 no rate meets the objectives, or figures differ (--verify)",
}
for _command, _example in _EXAMPLES.items():
    named = "import" if _command is few.importing else None  # a word of Python's own
    _codes = "; ".join(
        filter(
            None,
            ("0 done", _FAILS.get(_command), "2 bad usage or input", "3 kvplan failed", "130 interrupted"),
        )
    )
    app.command(named, epilog=f"Example: {_example}\n\nExit codes: {_codes}.")(_command)


@cache
def _command_line() -> Any:
    """Put all commands together with what their signatures say, once: it takes longer than many an answer."""
    return typer.main.get_command(app)


def _refuse_repeated(words: list[str]) -> None:
    """Refuse an option that has one value and is given several, of which Typer would take the last."""
    command = _command_line().commands.get(words[0]) if words else None
    end = words.index("--") if "--" in words else len(words)
    for option in () if command is None else command.params:
        if option.param_type_name != "option" or option.multiple or option.is_flag:
            continue
        given = [word for word in words[:end] if word.partition("=")[0] in option.opts]
        if len(given) > 1:
            several = f"; several go with commas, {given[0]} A,B" if ",..." in (option.metavar or "") else ""
            raise UsageError(f"{given[0]} is given {len(given)} times, and has one value{several}")


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return the exit code; every failure is one line on standard error.

    `argv` are the arguments after the program's name; those of the process if None.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(main(["analyze", "paper-fc-budgets", "-o", f"{folder}/report.txt"]))
    0
    """
    # Our matrices are small: threads only get in their way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A tenth of what a start takes: the search for plugins that nobody has, and that for garbage where all is new.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.set_threshold(100_000)
    given = sys.argv[1:] if argv is None else argv
    try:
        _refuse_repeated(given)
        result = _command_line().main(args=argv, prog_name="kvplan", standalone_mode=False)
        return result if isinstance(result, int) else ExitCode.DONE  # an int is what typer.Exit carried
    except ClosedPipeError:
        return _CLOSED_PIPE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except typer.Abort as stop:  # Typer's word for an interrupt, and for any file that ends too soon
        cut_off = stop.__cause__
        return _explain(cut_off) if isinstance(cut_off, EOFError) else ExitCode.INTERRUPTED
    except SystemExit as stop:  # Typer's own output: completion, or help into a pipe that closed
        closed = isinstance(stop.__context__, BrokenPipeError)
        return _CLOSED_PIPE if closed else int(stop.code or 0)
    except UsageError as error:
        for problem in (error, *error.others):
            say(f"error: {problem}", given)
        return ExitCode.USAGE
    except EngineError as error:
        say(f"error: {error}")
        return ExitCode.INTERNAL
    except MemoryError as error:
        say(f"error: out of memory: {error or 'no more is to be had'}")
        return ExitCode.USAGE
    except ImportError as error:
        return _explain(error) if (error.name or "").startswith("kvplan") else _lacks_library(error)
    except OSError as error:
        if error.errno is None:
            return _lacks_library(error)
        if error.filename is None and error.errno in _OF_WRITING:  # Typer writes without `write_result`: help
            abandon_standard_output()
            say(f"error: standard output: cannot be written: {error.strerror}")
        else:
            say(f"error: {error.filename or 'kvplan cannot go on'}: {error.strerror}", given)
        return ExitCode.USAGE
    except Exception as error:
        return _explain(error)


def _lacks_library(error: Exception) -> ExitCode:
    what = " ".join(str(error).split())
    say(
        f"error: a library cannot be loaded, for lack of memory or because the installation is damaged: {what}"
    )
    return ExitCode.USAGE


def _explain(error: Exception) -> ExitCode:
    """Say in one line what Typer refuses, or that kvplan has a defect."""
    # Typer's usage errors have a base class of its own or of click, by version; all can describe themselves.
    describe = getattr(error, "format_message", None)
    if describe is not None:
        command = getattr(getattr(error, "ctx", None), "command_path", "kvplan")
        said = " ".join(describe().split()).replace("Value error, ", "")
        say(f"error: {said} See: {command} --help")
        return ExitCode.USAGE
    if os.environ.get("KVPLAN_DEBUG"):
        import traceback

        traceback.print_exc()
    what = f"{type(error).__name__}: {error}"
    say(f"error: kvplan itself failed, please report it ({what}); KVPLAN_DEBUG=1 shows where")
    return ExitCode.INTERNAL
