"""The JSON Schema accepts what kvplan accepts, and refuses what editors should mark."""

import json
import os
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import tomli
from bad_profiles import BAD, Bad
from every import check_every

import kvplan
from kvplan.errors import ProfileError
from kvplan.profile.reading import parse_profile, shipped_profiles, starter
from kvplan.profile.schema import json_schema
from kvplan.show import schemas
from kvplan.show.view import json_text

COMMITTED = Path(kvplan.__file__).parent / "profile" / "profile.schema.json"
PAGES = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
VALIDATOR = jsonschema.Draft202012Validator(json_schema())


def document(text: str) -> Any:
    """A profile as editors give it to a JSON Schema: dates are text there."""

    def as_json(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: as_json(item) for key, item in value.items()}
        if isinstance(value, list):
            return [as_json(item) for item in value]
        return value.isoformat() if isinstance(value, date) else value

    return as_json(tomli.loads(text))


GOOD = """\
schema = 1
name = "good"

[gpu]
memory_tokens = 40_000
prefill = "inline"

[timing]
d0 = "14.5 ms"
d1 = 2.5e-7

[[classes]]
name = "chat"
input = 1155
decode = { 50 = 0.2, 200 = 0.8 }
rate = 1.5

[plan]
segments = 2
"""
SHARES = GOOD.replace("rate = 1.5", "share = 1") + "[workload]\nrate = 10\n"
STEPS = """\
[workload]
period = "24 h"
schedule = [{ at = "8 h", factor = 2.5 }, { at = 72_000, factors = { chat = 0.5 } }, { at = "23 h", factor = 0 }]
"""
MEASURED = """\
request_overhead = "14 ms"
measured = { kv_tokens = [0, 900_000], prefill_tokens = [0, 8192], sequences = [1, 256.5], band = [0.9, 1.3] }
"""
PROVENANCE = """\
[provenance]
gpu = "measured"
timing = { basis = "assumed", source = "another model's", date = 2026-11-22 }
"""
WAVE = """\
[workload]
period = "24 h"
[[workload.schedule]]
amplitude = 1
peak = "15 h"
"""


def test_the_committed_file_is_what_is_generated() -> None:
    """With ``KVPLAN_REGENERATE=1`` the file is written instead."""
    if os.environ.get("KVPLAN_REGENERATE"):
        COMMITTED.write_text(json_text(json_schema()), encoding="utf-8")
        pytest.skip("written")
    assert json.loads(COMMITTED.read_text("utf-8")) == json_schema()


def tables(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    yield from schema["$defs"].values()


def test_every_table_is_closed_and_every_key_described() -> None:
    definitions = json_schema()["$defs"]
    for table in tables(json_schema()):
        if "enum" in table:
            continue
        assert table["title"]
        assert table["description"]
        assert table["additionalProperties"] is False
        for key, described in table["properties"].items():
            reference = described.get("$ref", "").removeprefix("#/$defs/")
            assert described.get("description") or definitions[reference]["description"], key
            assert described.get("default", 0) is not None, key


TOML_BLOCKS = {
    f"{page.name} {i}": block
    for page in PAGES
    for i, block in enumerate(
        re.findall(r"^```toml\n(.*?)^```$", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    )
}
PROFILES = {
    **{name: path.read_text("utf-8") for name, path in shipped_profiles().items()},
    **TOML_BLOCKS,
    "starter": starter(),
    "good": GOOD,
    "shares": SHARES,
    "bytes": GOOD.replace(
        "memory_tokens = 40_000", 'memory = "5.05 GiB"\nkv_bytes_per_token = 131_072\nblock_tokens = 16'
    ),
    "a fleet": GOOD.replace("[plan]", "[fleet]\nreplicas = 8\n[plan]"),
    "bytes that are moved": GOOD.replace("40_000", "40_000\nkv_bytes_per_token = 8").replace(
        "[plan]", '[fleet]\nprefill = 1\ndecode = 2\ntransfer = "20 GB/s"\n[plan]'
    ),
    "numbers with units": GOOD.replace('"14.5 ms"', '" +1.45e1 ms "').replace("2.5e-7", '"0 s"'),
    "plain seconds": GOOD.replace('"14.5 ms"', "0.5"),
    "whole seconds": GOOD.replace('"14.5 ms"', '"1 s"'),
    "automatic segments": GOOD.replace("segments = 2", 'segments = "auto"\nhorizon = 60'),
    "steps": GOOD.replace("[plan]", f"{STEPS}[plan]"),
    "steps of a share": SHARES + STEPS.removeprefix("[workload]\n"),
    "sinusoid": GOOD.replace("[plan]", f"{WAVE}[plan]"),
    "measured range": GOOD.replace("[[classes]]", f"{MEASURED}[[classes]]"),
    "provenance": GOOD.replace("[plan]", f"{PROVENANCE}[plan]"),
    "an engine": GOOD.replace("inline", "fused").replace(
        "[plan]", '[engine]\nname = "trtllm"\nadmission = "first-chunk"\n[plan]'
    ),
    "laws of lengths": GOOD.replace("1155", "{ lognormal = { mean = 900, cv = 0.5 } }").replace(
        "{ 50 = 0.2, 200 = 0.8 }", "{ lognormal = { median = 90.5, sigma = 0.8 } }"
    ),
    "other laws": GOOD.replace("1155", "{ geometric = 90.5 }").replace(
        "{ 50 = 0.2, 200 = 0.8 }", "{ uniform = [9, 400] }"
    ),
    "weights of inputs": GOOD.replace("1155", "{ 50 = 1, 900 = 0.5 }"),
    "no prompt": GOOD.replace("1155", "0").replace('"inline"', '"fused"'),
    "one length": GOOD.replace("{ 50 = 0.2, 200 = 0.8 }", "211").replace("= 2\n", "= 1\n"),
}


def test_profiles_that_kvplan_accepts_are_accepted() -> None:
    def check(text: str) -> None:
        parse_profile(text.encode(), "good.toml")
        VALIDATOR.validate(document(text))

    check_every(PROFILES, check)


# a whole number as a float, sizes that take a unit to read, text that TOML has types for, and relations
BEYOND_JSON_SCHEMA = {
    *("schema as a float", "tokens as a float", "nan", "nan as a weight", "nothing but lines"),
    *("source of two lines", "escape sequence in a name", "date as text", "date with a time"),
    *("iteration of hours", "memory for less than a token", "horizon 0"),
    *(
        "range backwards",
        "more power when idle",
        "blocks larger than memory",
        "shares below 1",
        "shares above 1 by little",
    ),
    *(
        "class twice",
        "longer than max_model_len",
        "no prompt inline",
        "class larger than memory",
        "class larger than memory in blocks",
        "fan-out to nobody",
        "interval of a version that has none",
    ),
    *("uniform backwards", "lognormal too long for anything", "lognormal too long for the memory"),
    *("lognormal mean of no number", "shared beyond the shortest input", "reuse of inputs that vary"),
    *("more segments than lengths", "steps out of order", "two steps at once", "step after the period"),
    *("factor of no class", "class that never arrives", "peak after the period", "rates 0"),
    *(
        "taken for a class that is not there",
        "taken for its own class",
        "more taken for others than there are",
    ),
}


def test_profiles_that_are_refused_are_refused_by_the_schema_but_for_what_it_cannot_say() -> None:
    def check(name: str) -> None:
        assert VALIDATOR.is_valid(document(BAD[name].data.decode("utf-8-sig"))) == (
            name in BEYOND_JSON_SCHEMA
        )

    check_every([name for name, bad in BAD.items() if _is_toml(bad) and "digits" not in name], check)


def _is_toml(bad: Bad) -> bool:
    try:
        tomli.loads(bad.data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return False
    return True


MORE = {
    "bytes that nothing moves": ("40_000", "40_000\nkv_bytes_per_token = 8"),
    "replicas of no kind": ("[plan]", '[fleet]\nrouting = "random"\n[plan]'),
    "half a split": ("[plan]", "[fleet]\nprefill = 1\n[plan]"),
    "replicas of all kinds": ("[plan]", "[fleet]\nprefill = 1\ndecode = 1\nreplicas = 2\n[plan]"),
    "no GPU": ("40_000", "40_000\ngpus = 0"),
    "half a GPU": ("40_000", "40_000\ngpus = 1.5"),
    "schedule and a share": ("rate = 1.5", f"share = 1\n{STEPS}"),
    "negative factor of a class": ("[plan]", STEPS.replace("0.5", "-0.5") + "[plan]"),
    "an engine and inline prompts": ("[plan]", "[engine]\n[plan]"),
}


def test_kvplan_and_the_schema_refuse_the_same() -> None:
    def check(change: tuple[str, str]) -> None:
        assert GOOD.count(change[0]) == 1
        text = GOOD.replace(*change)
        with pytest.raises(ProfileError):
            parse_profile(text.encode(), "bad.toml")
        assert not VALIDATOR.is_valid(document(text))

    check_every(MORE, check)


@pytest.mark.parametrize("command", schemas.documents())
def test_documents_of_commands_have_schemas(command: str) -> None:
    """Each is a schema, and so describes what `tests/documents.py` reads with it."""
    described = schemas.json_schema(command)
    jsonschema.Draft202012Validator.check_schema(described)
    assert described["required"][:2] == ["schema_version", "kvplan_version"]
    assert not jsonschema.Draft202012Validator(described).is_valid({"schema_version": 1})
