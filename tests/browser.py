"""A headless Chromium spoken to over a pipe, as far as the tests of HTML need it."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")


class Browser:
    """One tab.

    Attributes
    ----------
    complaints : list of str
        What the console said about the pages, and what was asked of the network.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._buffer, self._last = b"", 0
        self.complaints: list[str] = []
        self._session: str | None = None
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path, *, width: int, dark: bool = False) -> None:
        """Load a page into a window of that many pixels, and wait until it is there."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not self._loaded:
            self._next()

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            received = os.read(self._reading, 1 << 20)
            assert received, "the browser has gone"
            self._buffer += received
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        method, given = message.get("method", ""), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.complaints.append(json.dumps(given))
        elif method == "Network.requestWillBeSent":
            url = given["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.complaints.append(url)
        return message


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own, with a fresh profile."""
    assert CHROMIUM is not None
    to_browser, from_browser = os.pipe(), os.pipe()

    def connect() -> None:
        # high numbers first: 3 and 4 may be among those of the pipes
        os.dup2(to_browser[0], 103)
        os.dup2(from_browser[1], 104)
        os.dup2(103, 3)
        os.dup2(104, 4)

    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as folder:  # it may still write there as it ends
        process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}"],
            preexec_fn=connect,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            yield Browser(from_browser[0], to_browser[1])
        finally:
            process.kill()
            process.wait()
            os.close(to_browser[1])
            os.close(from_browser[0])
