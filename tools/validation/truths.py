"""Truths by the oracle, kept in a file so that what is judged can change without them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSION = 3  # of the oracle: truths of another are found again


class Truths:
    """Records by name; each new one is written at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}

    def get(
        self,
        key: str,
        compute: Callable[[], dict[str, Any]],
        enough: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """The record of a key, computed where there is none that is good enough."""
        key = f"{VERSION}:{key}"
        if key not in self._known or not enough(self._known[key]):
            self._known[key] = compute()
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps(self._known, indent=0), "utf-8")
            os.replace(beside, self.path)
        return dict(self._known[key])
