"""Profiles that are refused, from `tools/campaign/bad_profiles.toml`, and how the refusal names what is wrong."""

from pathlib import Path
from typing import Any, NamedTuple

import tomli

_TABLES: dict[str, Any] = tomli.loads(
    (Path(__file__).parents[1] / "tools/campaign/bad_profiles.toml").read_text("utf-8")
)
GOOD, SHARES, DAY = (_TABLES["profiles"][name] for name in ("good", "shares", "day"))


class Bad(NamedTuple):
    """What stands in the file, and where and how it is refused."""

    data: bytes
    line: int | None
    key: str | None
    says: str


def _case(profile: str, case: dict[str, Any]) -> Bad:
    text = case["text"] if "text" in case else _TABLES["profiles"][profile]
    for old, new in case.get("edits", [case["edit"]] if "edit" in case else []):
        assert old in text, old
        text = text.replace(old, new)
    return Bad(text.encode(), case["line"], case.get("key"), case["says"])


def _cases(*profiles: str) -> dict[str, Bad]:
    return {name: _case(profile, case) for profile in profiles for name, case in _TABLES[profile].items()}


def _edited(old: str, new: str, line: int, key: str | None, says: str) -> Bad:
    return Bad(GOOD.replace(old, new).encode(), line, key, says)


_STEPS = DAY.replace("STEPS", ",".join(f"{{ at = {i}, factor = 1 }}" for i in range(1001)))
_NO_DECODE = GOOD.replace("= 211", "= 0")
BAD = {
    **_cases("good", "shares", "day", "text", "engine"),
    "null byte": _edited('"chat"', '"ch\0at"', 13, None, "not valid TOML"),
    "not utf-8": Bad(GOOD.encode().replace(b"chat", b"ch\xe4t"), 13, None, "must be UTF-8, not byte 0xe4"),
    "binary": Bad(bytes(range(256)) * 4, 2, None, "must be UTF-8, not byte 0x80 at offset 128"),
    "deep lists": _edited('"1 h"', "[" * 100_000, 25, None, "nested too deeply"),
    "deep key": _edited("horizon", ".".join("a" * 20_000), 25, None, "nested too deeply"),
    "5,000 digits": _edited("40_000", "9" * 5_000, 5, None, "too many digits"),
    "50,000 hexadecimal digits": _edited(
        "40_000", f"0x{'f' * 50_000}", 5, "gpu.memory_tokens", "too many digits"
    ),
    "long name": _edited('"chat"', f'"{"x" * 201}"', 13, "classes[0].name", "1 to 200 printable"),
    "many unknown keys": _edited(
        "[gpu]\n",
        f"[gpu]\n{''.join(f'k{i} = 1{chr(10)}' for i in range(100_000))}",
        5,
        "gpu.k0",
        "unknown key",
    ),
    "nothing but lines": Bad(GOOD.encode() + b"\n" * 2_000_000, 1_000_001, None, "more than 1,000,000 lines"),
    "1,001 steps": Bad(_STEPS.encode(), 26, "workload.schedule", "must have at most 1,000, not more"),
    "windows line ends": Bad(_NO_DECODE.replace("\n", "\r\n").encode(), 15, "classes[0].decode", "not 0"),
    "byte order mark": Bad(f"\ufeff{_NO_DECODE}".encode(), 15, "classes[0].decode", "not 0"),
}
OF_EXTENSIONS = _cases(
    "drafts", "fleet", "layers", "offload"
)  # which mostly take more than a JSON Schema to tell
