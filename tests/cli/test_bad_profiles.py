"""A malformed profile is refused with one message that names file, line and key; never a traceback."""

import io
from pathlib import Path

import pytest
from bad_profiles import BAD, GOOD, NIGHT, SHARES, WORKLOAD, Bad, day
from every import check_every

from kvplan.cli.app import main
from kvplan.errors import ProfileError
from kvplan.profile.reading import load_profile, parse_profile


def test_the_profile_that_the_cases_spoil_is_good() -> None:
    assert parse_profile(GOOD.encode(), "good.toml").name == "bad on purpose"
    assert parse_profile((SHARES + WORKLOAD).encode(), "good.toml").model.total_rate_rps == 10.0
    varying = GOOD.replace("[plan]", day(NIGHT, "at = 9, factor = 2, factors = { chat = 1 }"))
    assert parse_profile(varying.encode(), "good.toml").model.total_rate_rps == 2.0


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
        assert len(err) < 400 + len(str(path))
        assert err.removesuffix("\n").isprintable()

    check_every(BAD, check)


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


def test_a_hundred_thousand_unknown_keys_are_refused_at_the_first() -> None:
    data = GOOD.replace("[gpu]\n", "[gpu]\n" + "".join(f"k{i} = 1\n" for i in range(100_000))).encode()
    with pytest.raises(ProfileError) as refusal:
        parse_profile(data, "bad.toml")
    assert (refusal.value.line, refusal.value.key) == (5, "gpu.k0")
