"""Files that people have and that are not read: forms.toml says what each is, and what to give instead."""

import re
import shlex
from pathlib import Path

from kvplan.ingest.model.hardware import tables

_HOW = re.MULTILINE | re.DOTALL | re.IGNORECASE
_DEFAULT = re.compile(r"\$\{\w{1,100}:?-([^}$]{1,200})\}")  # of a variable
# after an equals sign, a colon or a blank; in a list after a comma, or the next of YAML
_ARGUMENT = (
    r"(?:--|^[ \t-]*|[\s\"'])(?:{})[\"']?(?:[=:][ \t]*|,\s*|[ \t]+|[ \t]*\n[ \t]*-[ \t]+)[\"']?"
    r"((?!-)[^\s\"',\]]+)"
)
_TABLES = tables(Path(__file__).with_suffix(".toml"))


def instead_of(text: str) -> str:
    """Say what a file is that begins like this, and what to give instead; empty where that is not known.

    Examples
    --------
    >>> instead_of("tensor-parallel-size: 4\\nmodel: org/m\\n").partition(" by ")[2]
    'kvplan import --model org/m --gpu GPU --tp 4'
    """
    for form in _TABLES["forms"]:
        if all(re.search(part, text, _HOW) for part in form["has"]):
            return f"{form['name']}: {form['says'].format(command=_command(text))}"
    return ""


def _command(text: str) -> str:
    words = []
    text = _DEFAULT.sub(r"\1", text)
    for option, names in _TABLES["options"].items():
        said = re.search(_ARGUMENT.format(names), text, _HOW)
        value = said[1][:80] if said and "$" not in said[1] else ""
        if value or option in ("model", "gpu"):
            words.append(f"--{option} {shlex.quote(value) if value else option.upper()}")
    engine = next((name for form, name in _TABLES["engines"].items() if re.search(form, text, _HOW)), "")
    return " ".join(["kvplan import", *words, *([f"--engine {engine}"] if engine else [])])
