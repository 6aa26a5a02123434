"""Quantities are read strictly and written for people."""

import math
from fractions import Fraction

import pytest
from every import every

from kvplan.errors import UsageError
from kvplan.profile.reading import parse_profile
from kvplan.units import (
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_requests,
    parse_seconds,
)


@every(
    ("text", "seconds"),
    [
        ("14.5 ms", 0.0145),
        ("0.25 us", 2.5e-7),
        ("85us", 8.5e-5),
        ("1 h", 3600.0),
        ("600 s", 600.0),
        ("1.5 min", 90.0),
        ("1e-3 s", 0.001),
        ("-5 ms", -0.005),
        ("0 s", 0.0),
    ],
)
def test_times_are_read_in_seconds_and_rounded_once(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@every(
    ("text", "amount"),
    [
        ("5.05 GiB", math.floor(Fraction(505, 100) * 2**30)),
        ("1 KiB", 1024),
        ("1 kB", 1000),
        ("24 GB", 24 * 10**9),
        ("0.5 B", 0),
        ("80 TiB", 80 * 2**40),
    ],
)
def test_amounts_of_memory_are_read_in_whole_bytes(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


NOT_TIMES = [
    "", "s", "5", "5 parsecs", "5 S", "5 GiB", "five s", "nan s", "inf s", "1_000 s", "1,5 s", "0x10 s",
    "5 s 3 ms", "5\ns", "٣ s", "1e9999 s", "1" * 41 + " s", "1e999 s", "--1 s", ".5 s",
]  # fmt: skip


@every("text", NOT_TIMES)
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"ns, us, ms, s, min, h|too large"):
        parse_seconds(text)


def test_what_is_not_an_amount_of_memory_is_refused_with_the_units_that_are_allowed() -> None:
    with pytest.raises(UsageError) as refusal:
        parse_bytes("5 gib")
    assert str(refusal.value) == (
        "'5 gib' is not an amount of memory; write a number and one of "
        'B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, such as "5.05 GiB"'
    )


@every(
    ("value", "text"),
    [
        (0, "0 s"),
        (1e-9, "0.001 us"),
        (2.5e-7, "0.25 us"),
        (0.0145, "14.5 ms"),
        (0.99996, "1 s"),
        (0.9994, "999 ms"),
        (59.99, "1 min"),
        (90.0, "1.5 min"),
        (3600, "1 h"),
        (3_600_000, "1,000 h"),
        (-0.002, "-2 ms"),
    ],
)
def test_times_are_written_in_the_unit_that_suits_them(value: float, text: str) -> None:
    assert format_seconds(value) == text


@every(
    ("value", "digits", "text"),
    [
        (0, 4, "0"),
        (-0.0, 4, "0"),
        (7, 4, "7"),
        (1.0, 4, "1"),
        (2.50, 4, "2.5"),
        (0.00012345, 3, "0.000123"),
        (1234.5, 2, "1,234"),
        (41_408, 4, "41,408"),
        (9_999.96, 4, "10,000"),
        (9.99996, 4, "10"),
        (1.0000001, 12, "1.0000001"),
        (1e-12, 4, "1e-12"),
        (1e12, 4, "1,000,000,000,000"),
        (1e18, 4, "1e+18"),
        (-1234567.0, 4, "-1,234,567"),
    ],
)
def test_numbers_keep_their_significant_digits(value: float, digits: int, text: str) -> None:
    assert format_number(value, digits) == text


def test_rates_and_percentages_carry_their_unit() -> None:
    assert format_rate(1.5) == "1.5/s"
    assert format_rate(3414.16, "tokens") == "3,414 tokens/s"
    assert format_percent(0.2) == "20%"
    assert format_percent(-0.0512) == "-5.12%"
    assert format_percent(0.034, signed=True) == "+3.4%"
    assert format_percent(-0.034, signed=True) == "-3.4%"


@pytest.mark.parametrize(("text", "per_s"), [("60/min", 1.0), ("7200 /h", 2.0), ("0.5/s", 0.5)])
def test_a_profile_has_its_rates_in_units(text: str, per_s: float) -> None:
    toml = f"""schema = 1
name = "a"
gpu = {{ memory_tokens = 60 }}
timing = {{ d0 = "10 ms" }}
classes = [{{ name = "a", input = 1, decode = 2, rate = "{text}" }}]
"""
    assert parse_profile(toml.encode(), "a.toml").model.total_rate_rps == pytest.approx(per_s)


@pytest.mark.parametrize("text", ["60", "60/day", "/min", "1e999/s", "60/min" + " " * 300])
def test_a_rate_in_another_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_requests(text)
