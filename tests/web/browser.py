"""Headless Chromium, controlled by the DevTools protocol over a pipe, without a driver."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WITHIN_S = 60.0
POLL_S = 0.1


def why_no_browser() -> str:
    return "" if shutil.which("chromium") else "no chromium on PATH (Debian: apt-get install chromium)"


class Browser:
    """One page. What the page logs as an error, or fails to load, is kept in ``errors``."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to = to_browser
        self._from = os.fdopen(from_browser, "rb", buffering=0)
        self._read = b""
        self._number = 0
        self._session = ""
        self.errors: list[str] = []
        self.requested: list[str] = []  # what the page asked its host for, since it was opened
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._to)
        self._from.close()

    def open(self, url: str, *, width: int = 1440, height: int = 1000, dark: bool = False) -> None:
        self._call("Page.navigate", {"url": "about:blank"})  # ends the requests of the page before
        self.errors.clear()
        self.requested.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._call("Page.navigate", {"url": url})

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        request = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self._call("Runtime.evaluate", request)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key of the keyboard, such as Enter or ArrowDown."""
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", {"type": kind, "key": key, "code": key})

    def until(self, expression: str) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while not self.value(expression):
            if time.monotonic() > deadline_s:
                pytest.fail(f"the page never came to: {expression}; errors: {self.errors}")
            time.sleep(POLL_S)

    def screenshot(self, path: Path) -> None:
        shot = self._call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": False})
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters or {}}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            part = self._from.read(1 << 20)
            assert part, "the browser has ended"
            self._read += part
        whole, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(whole)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(parameters["exceptionDetails"].get("exception", {}).get("description")))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                url = str(parameters["request"]["url"])
                self.requested.append(url)
                if not url.startswith(("http://127.0.0.1:", "data:", "about:")):
                    self.errors.append(f"it asks {url}")


@contextmanager
def a_browser() -> Iterator[Browser]:
    if why_not := why_no_browser():
        pytest.skip(why_not)
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    # The browser expects the pipe at the file descriptors 3 and 4.
    wire = f'exec chromium "$@" 3<&{to_read} 4>&{from_write}'
    with tempfile.TemporaryDirectory(prefix="fnm-chromium-", ignore_cleanup_errors=True) as folder:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        options += [f"--user-data-dir={folder}", "--disable-dev-shm-usage", "--hide-scrollbars"]
        process = subprocess.Popen(
            ["bash", "-c", wire, "bash", *options],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        browser = Browser(to_write, from_read)
        try:
            yield browser
        finally:
            process.terminate()
            process.wait(WITHIN_S)
            browser.close()
