"""`kvplan analyze` and what all commands have in common: exit codes, help, completion."""

import json
import os
from pathlib import Path

import pytest
from command import Done, process, run
from every import every
from tiers import at_night

import kvplan
from kvplan.cli import app as cli
from kvplan.profile.reading import DEFAULT_PROFILE, shipped_profiles
from kvplan.report import assembly as report

ROOT = Path(__file__).parents[2]
SHELLS = ("bash", "zsh", "fish")
QUICK = "paper-fc-budgets"  # a profile whose report takes a fraction of the default's time


def refused(result: Done) -> str:
    """The one line on standard error of a refusal."""
    assert result.returncode == 2
    assert result.stdout == ""
    line, rest = result.stderr.split("\n", 1)
    assert line.startswith("error: ")
    assert rest == ""
    return line


def test_without_a_profile_the_default_is_used_and_named() -> None:
    result = run("analyze")
    assert result.returncode == 0
    assert result.stderr == f"note: no profile given; using the shipped {DEFAULT_PROFILE}\n"
    named = run("analyze", DEFAULT_PROFILE)
    assert (named.stdout, named.stderr) == (result.stdout, "")


def test_a_profile_is_read_from_a_path_and_from_standard_input() -> None:
    path = shipped_profiles()[QUICK]
    shipped = run("analyze", QUICK, "--format", "json").stdout
    assert run("analyze", str(path), "--format", "json").stdout == shipped
    assert run("analyze", "-", "--format", "json", input=path.read_text("utf-8")).stdout == shipped


# budgets; one each of: segments, several lengths, many lengths, a cycle that is simulated
@pytest.mark.parametrize(
    "name", [QUICK, *at_night("paper-wait-nested", DEFAULT_PROFILE, "reasoning-h100", "two-tier-99-125")]
)
def test_json_has_the_same_bytes_whatever_the_hash_seed(name: str) -> None:
    first, second = (
        process("analyze", name, "--format", "json", env={"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    )
    assert first == second
    assert json.loads(first)["schema_version"] == 2


def test_output_to_a_file_is_what_standard_output_shows(tmp_path: Path) -> None:
    for form in ("text", "json"):
        result = run("analyze", QUICK, "--format", form, "-o", str(tmp_path / form))
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        assert (tmp_path / form).read_text("utf-8") == run("analyze", QUICK, "--format", form).stdout


def test_the_width_follows_the_terminal() -> None:
    narrow, wide = (run("analyze", QUICK, env={"COLUMNS": columns}).stdout for columns in ("60", "100"))
    assert narrow != wide


@pytest.mark.parametrize(("columns", "there"), [("99", False), ("100", True), ("300", True)])
def test_a_plot_is_shown_where_the_width_allows(columns: str, there: bool) -> None:
    text = run("analyze", "tool-calls-h100", "--full", env={"COLUMNS": columns}).stdout
    assert ("═ danger zone" in text) == there
    assert ("Throughput against offered rate, requests/s  computed\n" in text) == there
    assert max(map(len, text.splitlines())) <= 100


# ------------------------------------------------------------------------------------------------ refusals


@every(
    ("arguments", "says"),
    [
        ((), "Missing command"),
        (("analyse",), "analyse"),
        (("analyze", "--fromat", "json"), "--fromat"),
        (("analyze", "--format", "yaml"), "'text', 'markdown', 'json', 'html'"),
        (("analyze", "-o"), "'-o'"),
        (("analyze", "one", "two"), "two"),
        (("analyze", "no-such-profile"), "no-such-profile"),
        (("analyze", "/"), "/"),
        (("analyze", ""), ""),
    ],
)
def test_bad_usage_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(run(*arguments))


@pytest.mark.parametrize("place", ["missing/report.txt", "."])
def test_an_impossible_output_is_named(place: str, tmp_path: Path) -> None:
    target = str(tmp_path / place)
    assert target in refused(run("analyze", QUICK, "-o", target))
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("analyze", QUICK), ("--version",), ("--help",)])
def test_a_full_disk_behind_standard_output_is_an_error(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        result = process(*arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 2
    assert re.fullmatch(r"error: .*No space left on device\n", result.stderr)


def test_closed_streams_are_no_defect() -> None:
    command = f"{sys.executable} -m kvplan analyze"
    # without a profile there is a note to say
    for streams, code in ((f"{QUICK} <&-", 0), ("2>&-", 0), (f"{QUICK} >&-", 2), ("- <&-", 2)):
        result = subprocess.run(["sh", "-c", f"{command} {streams}"], env=ENVIRONMENT, capture_output=True)
        assert (streams, result.returncode) == (streams, code)
        assert b"Traceback" not in result.stderr


# ------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("arguments", [("analyze", QUICK), ("--version",), ("--help",)])
def test_a_reader_that_has_gone_ends_the_command_quietly(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = process(*arguments, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")


def test_an_interrupt_while_reading_ends_the_command_quietly(tmp_path: Path) -> None:
    fifo = tmp_path / "profile.toml"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "kvplan", "analyze", str(fifo)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process, fifo.open("w"):  # opens once the command has opened the other end
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130


INTERRUPTED = """
import atexit, os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
when = sys.argv.pop()


class Finder:
    def find_spec(self, name, path, target=None):
        if name == when:
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Finder())
from kvplan.__main__ import main

if when == "exit":
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.exit(main())
"""


@pytest.mark.parametrize("when", ["typer", "numpy", "kvplan.analysis", "exit"])
def test_an_interrupt_while_starting_or_ending_is_quiet(when: str) -> None:
    """While it imports what all commands need, and what this one does; and when all is said."""
    command = [sys.executable, "-c", INTERRUPTED, "analyze", DEFAULT_PROFILE, "-o", os.devnull, when]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode in (130, -signal.SIGINT)


def test_the_output_of_a_descriptor_is_appended_not_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    with log.open("a") as out:
        result = process("analyze", QUICK, "-o", "/dev/stdout", capture_output=False, stdout=out)
    assert result.returncode == 0
    assert log.read_text("utf-8") == "before\n" + run("analyze", QUICK).stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_the_locale_changes_no_byte_outside_a_terminal(encoding: str) -> None:
    plain = run("analyze", QUICK)
    assert process("analyze", QUICK, env={"PYTHONIOENCODING": encoding}).stdout == plain.stdout


def on_terminal(*arguments: str, **environment: str) -> str:
    """What the command writes to a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kvplan", *arguments],
        stdout=follower,
        env=ENVIRONMENT | {"TERM": "xterm"} | environment,
    )
    os.close(follower)
    received = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:  # how Linux says that nobody holds the other end
            break
        if not data:
            break
        received += data
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return received.decode(environment.get("PYTHONIOENCODING", "utf-8"))


def test_colour_is_for_terminals_that_want_it(tmp_path: Path) -> None:
    arguments = ("analyze", QUICK)
    assert "\x1b[1;32mSTABLE\x1b[0m" in on_terminal(*arguments)
    assert "\x1b" not in on_terminal(*arguments, NO_COLOR="1")
    assert "\x1b" not in on_terminal(*arguments, TERM="dumb")
    assert "\x1b" not in run(*arguments).stdout
    on_terminal(*arguments, "-o", str(tmp_path / "report.txt"))
    assert "\x1b" not in (tmp_path / "report.txt").read_text("utf-8")


def test_a_terminal_draws_with_what_its_encoding_has() -> None:
    """A plot of what there is; and in ASCII a replacement of all else, instead of a crash."""
    for encoding, legend in (
        ("utf-8", "░ only with a cap"),
        ("cp437", "░ only with a cap"),
        ("ascii", ". only"),
    ):
        received = on_terminal(
            "analyze", "tool-calls-h100", "--full", COLUMNS="120", PYTHONIOENCODING=encoding, NO_COLOR="1"
        )
        assert legend in received, encoding
        assert received.isascii() == (encoding == "ascii")
        assert "Smallest stable input" in received


# ------------------------------------------------------------------------------------------------ defects


def test_a_defect_of_kvplan_is_one_line_and_exit_code_three(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def defect(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(report, "analyze", defect)
    monkeypatch.delenv("KVPLAN_DEBUG", raising=False)
    assert cli.main(["analyze", QUICK]) == 3
    out, error = capfd.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert "report it (ZeroDivisionError: division by zero)" in error

    monkeypatch.setenv("KVPLAN_DEBUG", "1")
    assert cli.main(["analyze", QUICK]) == 3
    assert "Traceback" in capfd.readouterr().err


def test_a_file_of_its_own_that_ends_too_soon_is_no_interrupt(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As Python's cached bytecode does after a full disk; Typer takes the error for Ctrl-D."""

    def cut_off(*_: object, **__: object) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr(report, "analyze", cut_off)
    assert cli.main(["analyze", QUICK]) == 3
    assert "report it (EOFError: marshal data too short)" in capfd.readouterr().err


# ------------------------------------------------------------------------------------------------ start-up


def test_the_version_is_one_line() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"kvplan {kvplan.__version__}\n", "")


@every(
    "command", [info.name or info.callback.__name__ for info in cli.app.registered_commands if info.callback]
)
def test_help_is_plain_and_has_an_example(command: str) -> None:
    result = run(command, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()
    assert f"Example: kvplan {command}" in result.stdout
    if command == "analyze":
        assert f"Default: the shipped {DEFAULT_PROFILE}." in " ".join(result.stdout.split())


# ---------------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_scripts_are_those_of_the_command(shell: str) -> None:
    """With ``KVPLAN_REGENERATE=1`` the scripts are written instead."""
    script = run(env={"_KVPLAN_COMPLETE": f"source_{shell}"}).stdout.strip() + "\n"
    path = ROOT / "completions" / f"kvplan.{shell}"
    if os.environ.get("KVPLAN_REGENERATE"):
        path.write_text(script, encoding="utf-8")
        pytest.skip("written")
    assert path.read_text("utf-8") == script


@every(
    ("typed", "completions"),
    [
        ("kvplan an", ["analyze"]),
        ("kvplan analyze tool", ["tool-calls-h100"]),
        ("kvplan analyze --o", ["--output"]),
        ("kvplan analyze --section neste", ["nested_wait"]),
        ("kvplan simulate --policy sara", ["sarathi"]),
        ("kvplan simulate --policy greedy,nested", ["greedy,nested-wait"]),
        ("kvplan sweep --policy vllm,greed", ["vllm,greedy"]),
        ("kvplan sweep --columns load.headroom,saturation.it", ["load.headroom,saturation.iteration_time_s"]),
        ("kvplan size --policy trtllm", ["trtllm-max-utilization", "trtllm-no-evict"]),
        ("kvplan size agents", ["agents-collapse"]),
        ("kvplan import model Llama-3.1-8", ["Llama-3.1-8B"]),
        ("kvplan import model x --gpu H100-S", ["H100-SXM"]),
        ("kvplan calibrate --gpu RTX-40", ["RTX-4090"]),
        ("kvplan calibrate --base tool", ["tool-calls-h100"]),
        ("kvplan explain load.head", ["load.headroom"]),
        ("kvplan check --require wait.classes[0].thr", ["wait.classes[0].threshold"]),
        (
            "kvplan check --tolerance load.sustainable_r",
            ["load.sustainable_rps", "load.sustainable_rps_range[0]"],
        ),
        ("kvplan check --accept w", ["workload"]),
    ],
)
def test_what_is_half_typed_is_completed(typed: str, completions: list[str]) -> None:
    environment = {"_KVPLAN_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    result = run(env=environment | {"COMP_CWORD": str(typed.count(" "))})
    assert result.stdout.split() == completions
