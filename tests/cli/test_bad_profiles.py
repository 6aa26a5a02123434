"""A malformed profile is refused with one message that names file, line and key; never a traceback."""

import io
from pathlib import Path

import pytest
from bad_profiles import BAD, GOOD, NIGHT, SHARES, WORKLOAD, Bad, day
from command import process
from every import check_every, every

from kvplan.cli.app import main
from kvplan.errors import ProfileError
from kvplan.profile.reading import load_profile, parse_profile


def test_the_profile_that_the_cases_spoil_is_good() -> None:
    assert parse_profile(GOOD.encode(), "good.toml").name == "bad on purpose"
    assert parse_profile((SHARES + WORKLOAD).encode(), "good.toml").model.total_rate_rps == 10.0
    varying = GOOD.replace("[plan]", day(NIGHT, "at = 9, factor = 2, factors = { chat = 1 }"))
    assert parse_profile(varying.encode(), "good.toml").model.total_rate_rps == 2.0


def test_names_line_and_key_and_what_is_allowed() -> None:
    def check(bad: Bad) -> None:
        with pytest.raises(ProfileError) as refusal:
            parse_profile(bad.data, "bad.toml")
        error = refusal.value
        assert (error.line, error.key) == (bad.line, bad.key)
        assert bad.says in error.message
        assert len(str(error)) < 400
        assert str(error).isprintable()

    check_every(BAD, check)


def test_command_exits_with_2_and_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.toml"

    def check(bad: Bad) -> None:
        path.write_bytes(bad.data)
        code = main(["analyze", str(path)])
        out, err = capsys.readouterr()
        key = f"{bad.key}: " if bad.key else ""
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"error: {path}:{bad.line}: {key}")
        assert bad.says in err

    check_every(BAD, check)


@pytest.mark.parametrize("name", ["not utf-8", "misspelt key", "deep lists", "class larger than memory"])
def test_installed_command_exits_with_2_and_one_message(name: str, tmp_path: Path) -> None:
    bad = BAD[name]
    path = tmp_path / "bad.toml"
    path.write_bytes(bad.data)
    run = process("analyze", path, timeout=60)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"error: {path}:{bad.line}: ")
    assert bad.says in run.stderr
    assert "Traceback" not in run.stderr


def refused(reference: str, stdin: bytes = b"") -> ProfileError:
    with pytest.raises(ProfileError) as refusal:
        load_profile(reference, stdin=io.BytesIO(stdin))
    return refusal.value


def test_a_missing_file_is_refused() -> None:
    message = str(refused("no/such/file.toml"))
    assert message.startswith("no/such/file.toml: neither a file nor a shipped profile; shipped profiles: ")


def test_a_misspelt_shipped_profile_is_refused_with_the_nearest() -> None:
    message = str(refused("llama-3.1-8b-rtx409"))
    assert message.endswith("did you mean llama-3.1-8b-rtx4090?")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert str(refused(str(tmp_path))) == f"{tmp_path}: cannot be read: Is a directory"


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to("nowhere")
    assert str(refused(str(link))) == f"{link}: cannot be read: No such file or directory"


def test_a_file_as_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "neither a file nor a shipped profile" in str(refused(str(tmp_path / "file" / "profile.toml")))


@every("reference", ["", "a\0b", "\x1b[31m.toml", "x" * 10_000, "\udcff.toml"])
def test_a_name_that_no_file_can_have_is_refused(reference: str) -> None:
    message = str(refused(reference))
    assert "neither a file nor a shipped profile" in message
    assert message.isprintable()
    assert len(message) < 400


def test_50_mb_of_junk_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "junk.toml"
    path.write_bytes(b"x" * 50_000_000)
    assert str(refused(str(path))) == f"{path}: larger than 10 MB, the limit for a profile"


def test_a_file_without_end_is_refused_by_its_size() -> None:
    assert "larger than 10 MB" in str(refused("/dev/zero"))


def test_standard_input_is_refused_in_the_same_words() -> None:
    assert str(refused("-", BAD["misspelt key"].data)).startswith(
        "<stdin>:15: classes[0].decodes: unknown key"
    )
    assert str(refused("-", b"")) == "<stdin>:1: empty; a profile starts with schema = 1"
    assert "larger than 10 MB" in str(refused("-", b"#" * 10_000_001))


def test_a_million_unknown_keys_are_refused_at_the_first() -> None:
    data = GOOD.replace("[gpu]\n", "[gpu]\n" + "".join(f"k{i} = 1\n" for i in range(100_000))).encode()
    with pytest.raises(ProfileError) as refusal:
        parse_profile(data, "bad.toml")
    assert (refusal.value.line, refusal.value.key) == (5, "gpu.k0")
