"""The report as JSON: the schema_version 1 contract, the same bytes for the same profile."""

import json
from typing import Any


def render(document: dict[str, Any]) -> str:
    """JSON text of a contract document, keys in the order of the contract.

    Parameters
    ----------
    document : dict
        Plain dicts, lists, strings and finite numbers, such as `kvplan.report.assembly.to_document` returns.

    Raises
    ------
    ValueError
        A number is not finite; the contract has null instead.

    Examples
    --------
    >>> print(render({"schema_version": 1, "loss": None, "name": "Übung"}), end="")
    {
      "schema_version": 1,
      "loss": null,
      "name": "Übung"
    }
    """
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
