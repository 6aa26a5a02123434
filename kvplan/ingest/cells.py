"""What stands in a table or a line of JSON: names whatever their spelling, objects, values as messages quote them."""

import json
import re
from typing import Any

_SHOWN = 60  # characters of a value in a message


def plain_name(name: str) -> str:
    """The name of a column without case, spaces and signs.

    Examples
    --------
    >>> plain_name("TPOT (ms)"), plain_name("input_tokens")
    ('tpotms', 'inputtokens')
    """
    return re.sub(r"[\W_]", "", name.lower())


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None where it is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def shown(value: Any) -> str:
    """A value as a message quotes it: as in the file, and short.

    Examples
    --------
    >>> shown("7x"), shown(-7)
    ("'7x'", '-7')
    """
    text = repr(value.strip()) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
