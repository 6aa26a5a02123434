"""A malformed profile is refused with one message that names file, line and key; never a traceback."""

import io
import json
from pathlib import Path

import pytest
from bad_profiles import BAD, DAY, GOOD, OF_EXTENSIONS, SHARES, Bad
from command import Run
from every import check_every

from kvplan.cli.app import main
from kvplan.errors import ProfileError
from kvplan.profile.reading import load_profile, parse_profile


def test_the_profiles_that_the_cases_spoil_are_good() -> None:
    assert parse_profile(GOOD.encode(), "good.toml").name == "bad on purpose"
    assert parse_profile(SHARES.encode(), "good.toml").model.total_rate_rps == 10.0
    varying = DAY.replace("STEPS", "{ at = 0, factor = 0.5 }, { at = 9, factor = 2, factors = { chat = 1 } }")
    assert parse_profile(varying.encode(), "good.toml").model.total_rate_rps == 2.0


def test_command_exits_with_2_and_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.toml"

    def check(bad: Bad) -> None:
        path.write_bytes(bad.data)
        code = main(["analyze", str(path)])
        out, err = capsys.readouterr()
        key = f"{bad.key}: " if bad.key else ""
        assert (code, out) == (2, "")
        lines = err.splitlines()
        assert any(one.startswith(f"error: {path}:{bad.line}: {key}") and bad.says in one for one in lines)
        assert len(lines) == len(set(lines)) <= 20
        for line in lines:
            assert line.startswith(f"error: {path}:")
            assert len(line) < 400 + len(str(path))
            assert line.isprintable()

    check_every(BAD | OF_EXTENSIONS, check)


MANY = """schema = 1
name = "many"
[gpu]
memory_tokens = 5000
block_tokns = 16
[timing]
d0 = "10"
[[classes]]
name = "a"
input = 4900
decode = 200
rate = 1
[[classes]]
name = "a"
input = 10
decode = 200
rate = 1
[workload]
trace = "nowhere.csv"
"""


def test_all_problems_are_told_at_once(tmp_path: Path, run: Run) -> None:
    """Values, tables that do not go together where their values are right, and files that are not there."""
    path = tmp_path / "many.toml"
    unknown, time = "5: gpu.block_tokns: unknown key; did you mean", "7: timing.d0: '10' is not a time"
    fits, twice = "8: classes[0]: class 'a' does not fit", "14: classes[1].name: must be unique"
    trace = "19: workload.trace: 'nowhere.csv' is not there"
    for old, new, wanted in (
        ("", "", [unknown, time, trace]),
        ("block_tokns", "block_tokens", [time, fits, twice, trace]),
    ):
        path.write_text(MANY.replace(old, new) if old else MANY)
        for command in (["analyze"], ["check"], ["plan"], ["simulate"], ["emit"], ["explain", "load"]):
            code, _, err = run(*command, str(path))
            assert code == 2
            for line, told in zip(wanted, err.splitlines(), strict=True):
                assert told.startswith(f"error: {path}:{line}")


SENDS = """[[sessions]]
name = "a"
rate = 1
first = 9
user = 9
decode = 9
turns = 2
think = { law = "fixed", value = 1 }
fan_out = { KIND = 2 }
[[sessions]]
name = "b"
first = 9
user = 9
decode = 9
turns = 2
think = { law = "fixed", value = 1 }
"""


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('[cost]\nidle_power = "70 W"\n', "cost.power"),
        (SENDS.replace("KIND", "a"), "sessions[0].fan_out.a"),
        (SENDS.replace("KIND", "c"), "sessions[0].fan_out.c"),
    ],
)
def test_one_mistake_is_told_in_one_line(table: str, key: str) -> None:
    """Whatever else is then not as it must be."""
    with pytest.raises(ProfileError) as refusal:
        parse_profile(f"{GOOD}{table}".encode(), "bad.toml")
    assert refusal.value.key == key
    assert refusal.value.others == ()


def test_a_class_without_load_is_left_out(tmp_path: Path, run: Run) -> None:
    """And named, where another has load; in sweeps from and to a rate of 0 too."""
    idle, alone, results = tmp_path / "idle.toml", tmp_path / "alone.toml", tmp_path / "results.csv"
    head, chat, code = GOOD.partition("[[classes]]")[0], *GOOD.split("[[classes]]")[1:]
    code, _, tail = code.partition("[plan]")
    idle.write_text(
        "[[classes]]".join((head, chat, code.replace("rate = 0.5", "rate = 0"))) + f"[plan]{tail}"
    )
    alone.write_text(f"{head}[[classes]]{chat}[plan]{tail}")
    of_idle, of_alone = (json.loads(run("analyze", str(one), "--format", "json")[1]) for one in (idle, alone))
    assert "code has a rate of 0 and is left out." in of_idle.pop("notes")
    del of_idle["profile"], of_alone["profile"], of_alone["notes"]
    assert of_idle == of_alone
    vary = ["--vary", "classes.code.rate=0,0.5", "--columns", "rate_cap.classes[code].per_iteration"]
    assert run("sweep", str(idle), *vary, "-o", str(results), "--executor", "serial")[0] == 0
    assert [line.split(",")[2] != "" for line in results.read_text().splitlines()[2:]] == [False, True]


def refused(reference: str, stdin: bytes = b"") -> ProfileError:
    with pytest.raises(ProfileError) as refusal:
        load_profile(reference, stdin=io.BytesIO(stdin))
    return refusal.value


def test_what_is_no_profile_is_refused_by_its_name(tmp_path: Path) -> None:
    link, file, junk = tmp_path / "link.toml", tmp_path / "file", tmp_path / "junk.toml"
    link.symlink_to("nowhere")
    file.touch()
    junk.write_bytes(b"x" * 10_000_001)
    for reference, message in (
        (tmp_path, f"{tmp_path}: cannot be read: Is a directory"),
        (link, f"{link}: cannot be read: No such file or directory"),
        (junk, f"{junk}: larger than 10 MB, the limit for a profile"),
        ("/dev/zero", "/dev/zero: larger than 10 MB, the limit for a profile"),
    ):
        assert str(refused(str(reference))) == message
    assert str(refused("llama-3.1-8b-rtx409")).endswith("did you mean llama-3.1-8b-rtx4090?")
    for reference in (
        file / "a.toml",
        "no/such.toml",
        "",
        "a\0b",
        "\x1b[31m.toml",
        "x" * 10_000,
        "\udcff.toml",
    ):
        said = str(refused(str(reference)))
        assert "neither a file nor a shipped profile; shipped profiles: " in said
        assert said.isprintable()
        assert len(said) < 400 + len(str(tmp_path))


def test_standard_input_is_refused_in_the_same_words() -> None:
    assert str(refused("-", BAD["misspelt key"].data)).startswith(
        "<stdin>:15: classes[0].decodes: unknown key"
    )
    assert str(refused("-", b"")) == "<stdin>:1: empty; a profile starts with schema = 1"
    assert "larger than 10 MB" in str(refused("-", b"#" * 10_000_001))
