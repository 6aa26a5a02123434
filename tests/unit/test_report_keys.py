"""The registry of the report's keys: records and fields match, and the schema has them all."""

import copy
import re
import types
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import jsonschema  # type: ignore[import-untyped]
from every import check_every, every
from shipped import LOOKED_AT, report

from kvplan.report.assembly import Report, ledger_of, to_document
from kvplan.report.keys import (
    BESIDE_CONTRACT,
    BLOCKS,
    CONTRACT,
    RECORDS,
    SOURCE_KEYS,
    Kind,
    Record,
    gateable,
    json_schema,
)


def fields(of: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a result as the registry writes it, with the type of its field; tables are not entered."""
    record = CONTRACT.get(path)
    parts = [part for part in get_args(of) if part is not types.NoneType]
    if path in BESIDE_CONTRACT or (record is not None and record.kind is Kind.TABLE):
        yield path, of
    elif len(parts) == 1 and hasattr(parts[0], "_fields"):  # or null as a whole
        for key, hint in fields(parts[0], path):
            yield key, hint | None if "." in path else hint  # of a block all have the same reason
    elif hasattr(of, "_fields"):
        for name, hint in get_type_hints(of).items():
            yield from fields(hint, f"{path}.{name}" if path else name)
    elif get_origin(of) is tuple and parts[1:] == [Ellipsis]:
        yield from fields(parts[0], f"{path}[]")
    elif (
        get_origin(of) is types.UnionType
        and get_origin(parts[0]) is tuple
        and parts[0].__args__[1] is Ellipsis
    ):
        yield f"{path}[]", parts[0].__args__[0] | None
    else:
        yield path, of


FIELDS = dict(fields(Report))
MAYBE_EMPTY = ("nested_wait.segments", "wait.dial")


def test_every_field_of_the_report_has_a_record_and_every_record_a_field() -> None:
    assert [key for key in FIELDS if key not in BESIDE_CONTRACT] == [*CONTRACT]
    only_shown = {key for key, record in RECORDS.items() if record.beside}
    assert set(FIELDS) >= BESIDE_CONTRACT - only_shown
    assert {record.block for record in CONTRACT.values()} == set(BLOCKS)


def test_every_figure_that_is_only_shown_is_there() -> None:
    ledgers = [ledger_of(report(name)) for name in LOOKED_AT]
    shown = [key.replace("[]", "[0]", 1) for key, record in RECORDS.items() if record.beside]
    never = [key for key in shown if all(ledger.value(key) is None for ledger in ledgers)]
    assert never == ["prefix_cache.trial.summary"]  # of runs that somebody asks for


NAMED = """load.headroom recovers_up_to_rps ttft_s.p95 goodput_rps kv_utilization spectral_radius kv_tokens_mean
watermark_fraction"""


@every("key", NAMED.split())
def test_a_figure_is_named_where_it_is_computed_and_in_its_record(key: str) -> None:
    """And in little else: what shows, judges or explains figures takes them from there."""
    named, kinds = re.compile(rf"(?<!\w){re.escape(key)}(?!\w)"), (".py", ".toml", ".j2", ".json")
    package = (
        Path(__file__).resolve().parents[2] / "kvplan"
    )  # an installed one has profiles and experiments, too
    paths = (p for p in package.rglob("*") if p.suffix in kinds and p.name != "documents.toml")  # of all keys
    assert len([path.name for path in paths if named.search(path.read_text("utf-8"))]) <= 4


def numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a report under their keys, entries of lists and pairs as ``[]``."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from numbers(part, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for part in value:
            yield from numbers(part, f"{key}[]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value


def test_every_number_of_a_report_lies_in_the_range_of_its_key() -> None:
    def check(name: str) -> None:
        ranged = [(key, x) for key, x in numbers(to_document(report(name))) if key in gateable()]
        assert len(ranged) > 50
        assert [(key, x) for key, x in ranged if not gateable()[key].least <= x <= gateable()[key].most] == []

    check_every(LOOKED_AT, check)


def test_every_record_says_what_its_field_holds() -> None:
    """Kind, words and whether it can be null are those of the annotation."""
    check_every(CONTRACT, _check_field)


def _check_field(record: Record) -> None:
    hint = FIELDS[record.key]
    kinds = [kind for kind in get_args(hint) or [hint] if kind is not types.NoneType]
    if record.kind is not Kind.TABLE:
        nullable = types.NoneType in get_args(hint)
        assert not nullable or record.absent
        assert nullable or not record.absent or record.list_key in MAYBE_EMPTY
    if record.kind is Kind.NUMBER:
        assert kinds == [int if record.whole else float]
    elif record.kind is Kind.TRUTH:
        assert kinds == [bool]
    elif record.kind is Kind.PAIR:
        assert hint == tuple[float, float] | None
    elif record.kind is Kind.TEXT:
        (kind,) = kinds
        if issubclass(kind, StrEnum):
            assert record.allowed == tuple(kind)
        else:
            assert kind is str


def schema_at(key: str) -> dict[str, Any]:
    """What the schema says of a key."""
    found = json_schema()
    for part in key.split("."):
        found = found["properties"][part.removesuffix("[]")]
        found = found["items"] if part.endswith("[]") and part != key.split(".")[-1] else found
    return found


def test_every_key_of_the_contract_is_in_the_schema() -> None:
    def check(record: Record) -> None:
        assert schema_at(record.key)["description"].startswith(record.meaning)

    check_every({**CONTRACT, **SOURCE_KEYS}, check)


def test_the_schema_accepts_the_reports_and_is_one() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.check_schema(validator.schema)
    check_every(LOOKED_AT, lambda name: validator.validate(to_document(report(name))))


@every(
    ("block", "change"),
    [
        ("verdict", {"status": "fine"}),
        ("load", {"headroom": "much"}),
        ("stability", {"gcd": 1.5}),
        ("wait", {"thresholds": [1, None]}),
        ("load", {"sustainable_rps_range": [1.0]}),
        ("inputs", {"gpu": "guessed"}),
        ("worst_cycle", {"danger_zone_rps": [1.0]}),
        ("saturation", {"throughput_rps": None}),
        ("sources", {"load": {"source": "", "kind": "guessed"}}),
    ],
)
def test_the_schema_refuses_what_no_report_holds(block: str, change: dict[str, Any]) -> None:
    document = copy.deepcopy(to_document(report(LOOKED_AT[0])))
    document[block] |= change
    assert not jsonschema.Draft202012Validator(json_schema()).is_valid(document)
