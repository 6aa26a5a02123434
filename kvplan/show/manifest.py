"""Manifests that operate a service, as YAML: a template for each target in `kvplan/emit/`.

A template's values are quoted wherever they could be read as anything else; words for its comments are put on a line.
"""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from kvplan.emit.service import Service
from kvplan.model import Plan
from kvplan.options import Target
from kvplan.show import page
from kvplan.show.html import template
from kvplan.simulation.fleet.scaling import LatencyRule
from kvplan.study.operations import Operations
from kvplan.study.verification import SEEDS, Way
from kvplan.units import format_number, format_percent, format_seconds

_COLUMNS = 110
_COMMENT = re.compile("^( *)# (.*)", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*", re.ASCII)
_WORD = re.compile("true|false|yes|no|on|off|y|n|null|nan|inf", re.IGNORECASE)  # of YAML 1.1


def text(
    target: Target, operations: Operations, service: Service, plan: Plan, *, name: str, sha256: str
) -> str:
    """Write the manifest of a service, with comments on its basis."""
    written = template("kvplan.emit", f"{target}.yaml.j2", _scalar, trim=True, **_FILTERS)
    rendered = written.render(
        operations=operations,
        target=target,
        rule=LatencyRule,
        service=service,
        objectives="; ".join(slo.text for slo in plan.slos),
        name=name,
        origin=page.origin(sha256),
    )
    warned = warning(operations.worst_within, operations.aim)
    return _COMMENT.sub(_wrapped, rendered if warned is None else f"# {warned}\n{rendered}")


def warning(worst: float | None, aim: float) -> str | None:
    """Say that a simulated day missed its aim, if it did."""
    if worst is None or worst >= aim:
        return None
    return (
        f"WARNING: {worst:.2%} of the requests of the worst simulated day are within the objectives; the aim is "
        f"{aim:.2%}, half a point less than in an idle fleet"
    )


def _number(value: float) -> str:
    """Write a number with four digits and without an exponent, as Kubernetes reads a quantity.

    >>> _number(2.41372), _number(1234567.0), _number(0.00012)
    ('2.414', '1235000', '0.00012')
    """
    return np.format_float_positional(value, precision=4, unique=False, fractional=False, trim="-")


def _scalar(value: Any) -> Markup:
    """Write a value on a line, so that it is read as what it is.

    >>> [str(_scalar(value)) for value in ("NaN", "don't", "a\\x85b", "apps/v1", 2.0)]
    ["'NaN'", "'don''t'", '"a\\\\U00000085b"', 'apps/v1', '2']
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return Markup(_number(value))
    text = str(value)
    if not isinstance(value, str) or (_PLAIN.fullmatch(text) and not _WORD.fullmatch(text)):
        return Markup(text)
    if text.isprintable():
        return Markup("'" + text.replace("'", "''") + "'")
    signs = (f"\\{c}" if c in '"\\' else c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
    return Markup('"' + "".join(signs) + '"')


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "line": lambda words: Markup(page.printable(" ".join(words.split()))),
    "number": _number,
    "percent": lambda share: Markup(format_percent(share)),
    "seconds": lambda seconds: Markup(format_seconds(seconds)),
}


def _wrapped(comment: re.Match[str]) -> str:
    indent, words = comment.groups()
    return textwrap.fill(
        words,
        _COLUMNS,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}#   ",
        break_on_hyphens=False,
    )


_WAYS: page.Columns[Way] = {
    page.Column("Settings"): lambda way: way.name,
    page.words("Per replica"): lambda way: way.control,
    page.number("Within"): lambda way: format_percent(way.within),
    page.number("Worst day"): lambda way: format_percent(way.worst),
    page.number("GPU-hours"): lambda way: format_number(way.gpu_hours),
}


def simulated_days(ways: Sequence[Way]) -> page.Section:
    """Show requests within the objectives and GPU-hours of a day."""
    return page.section(
        "verification",
        "Simulated days",
        page.tabulate(_WAYS, ways),
        notes=(
            f"{len(SEEDS)} days that the headroom was not chosen by; requests whose own times are within the "
            "objectives, and GPU-hours of a day, loading and draining included.",
            "Guesses that are deployed: KV usage as Value, waiting requests as AverageValue; latency is llm-d's "
            "rule, with its own behavior: predicted latency is simulated. All keep the same bounds of replicas.",
        ),
    )
