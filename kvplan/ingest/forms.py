"""Files that people have and that are not read: forms.toml says what each is, and what to give instead."""

import re
import shlex
from pathlib import Path

from kvplan.ingest.model.hardware import tables

_TABLES = tables(Path(__file__).with_suffix(".toml"))


def instead_of(text: str) -> str:
    """Say what a file is that begins like this, and what to give instead; empty where that is not known.

    Examples
    --------
    >>> instead_of("tensor-parallel-size: 4\\nmodel: org/m\\n").partition(" by ")[2]
    'kvplan import --model org/m --gpu GPU --tp 4'
    """
    for form in _TABLES["forms"]:
        if all(re.search(part, text, re.MULTILINE | re.DOTALL) for part in form["has"]):
            return f"{form['name']}: {form['says'].format(command=_command(text))}"
    return ""


def _command(text: str) -> str:
    words = []
    for option, names in _TABLES["options"].items():
        said = re.search(
            rf"(?:--|^\s*|[\s\"'])(?:{names})[\"']?(?:[=:,]\s*|\s+)[\"']?([^\s\"',\]]+)", text, re.MULTILINE
        )
        if said or option in ("model", "gpu"):
            words.append(f"--{option} {shlex.quote(said[1][:80]) if said else option.upper()}")
    return " ".join(["kvplan import", *words])
