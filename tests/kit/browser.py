"""Chromium without a library: pages driven over the pipe of the DevTools protocol.

``--remote-debugging-pipe`` reads commands from file descriptor 3 and writes answers and events to 4, each a JSON object
that ends with a zero byte (Chromium, ``content/browser/devtools/devtools_pipe_handler.cc``).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# A name for the loopback interface that the browser does not take for secure. No other name is looked up.
PLAIN_HOST = "plain.test"
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--remote-debugging-pipe",
    f"--host-resolver-rules=MAP {PLAIN_HOST} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
KEYS = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, " ": 32, "Enter": 13}
PATIENCE_S = 60.0


def program() -> str | None:
    """The path of an installed Chromium, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Page:
    """One tab. ``requests`` are the addresses it asked for since it was made."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._next, self._rest, self._session = 0, b"", {}
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; returns its result and raises RuntimeError with Chromium's message."""
        self._next += 1
        command = {"id": self._next, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            message = self._message(deadline)
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("id") == self._next:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium does not answer within {PATIENCE_S:g} s")
            read = os.read(self._answers, 1 << 20)
            if not read:
                raise RuntimeError("Chromium has ended")
            self._rest += read
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, url: str) -> None:
        """Go to an address and wait until the page is complete; the same address is loaded again."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.wait(
            f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url.partition('#')[0])})"
        )

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {condition}")
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression or of its promise; raises RuntimeError with the exception of the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", str(found)))
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release one key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def look(self, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """The size of the window and the colour scheme that the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """Keep what is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def page() -> Iterator[Page]:
    """A tab of a Chromium that is started for it, with a profile of its own."""
    read, commands = os.pipe()
    answers, write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        line = [
            "bash",
            "-c",
            f'exec "$0" "$@" 3<&{read} 4>&{write}',
            program() or "",
            *OPTIONS,
            f"--user-data-dir={profile}",
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(line, pass_fds=(read, write), **quiet) as process:  # type: ignore[call-overload]
            os.close(read)
            os.close(write)
            try:
                yield Page(commands, answers)
            finally:
                process.kill()
                os.close(commands)
                os.close(answers)
