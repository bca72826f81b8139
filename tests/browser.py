"""A headless Chromium, spoken to through a pipe in its DevTools protocol.

Source: https://chromedevtools.github.io/devtools-protocol; messages are JSON, each with a NUL behind it, written to the
browser's file descriptor 3 and read from its 4.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 60.0
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Gives the pipe the numbers that the browser expects, then becomes it.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND"),
)


def found_chromium() -> str | None:
    """The browser's program; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """A running browser; to be closed."""

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out), program]
        self._process = subprocess.Popen(
            [*command, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._read = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End it, and all processes that it began."""
        with contextlib.suppress(OSError, TimeoutError, subprocess.TimeoutExpired):
            self.call("Browser.close")
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda found: found.get("id") == self._number)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def wait_for(self, method: str, session: str) -> dict[str, Any]:
        """Wait for an event of a page."""

        def is_it(message: dict[str, Any]) -> bool:
            return message.get("method") == method and message.get("sessionId") == session

        seen = [event for event in self.events if is_it(event)]
        return seen[-1] if seen else self._wait(is_it)

    def _wait(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + LIMIT
        while True:
            message = self._next(end)
            if "method" in message:
                self.events.append(message)
            if is_it(message):
                return message

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("the browser ended" if ready else f"no word from the browser in {LIMIT:.0f} s")
            self._read += data
        message, _, self._read = self._read.partition(b"\0")
        return dict(json.loads(message))


class Page:
    """A page that a browser has opened.

    Args:
        browser: The browser.
        path: The page's file.
        scheme: ``light`` or ``dark``.
        width: Of the window, in CSS pixels.
    """

    def __init__(self, browser: Browser, path: Path, scheme: str = "light", width: int = 1280) -> None:
        self._browser = browser
        self.url = path.as_uri()
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.resize(width)
        self.call("Page.navigate", url=self.url)
        browser.wait_for("Page.loadEventFired", self._session)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript, as plain values."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, element: str) -> None:
        """Click with the mouse in the middle of an element, given as an expression of JavaScript."""
        self.run(f"{element}.scrollIntoView({{block: 'center'}})")
        box = f"{element}.getBoundingClientRect()"
        x, y = self.run(f"[{box}.x + {box}.width / 2, {box}.y + {box}.height / 2]")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press_enter(self) -> None:
        """Press the key where the focus is."""
        for kind, text in (("keyDown", {"text": "\r"}), ("keyUp", {})):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, **text)

    def complaints(self) -> list[str]:
        """What was written to the console, errors and refused loads among it."""
        methods = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed")
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        return [json.dumps(event["params"]) for event in self._events() if event["method"] in methods]

    def requests(self) -> list[str]:
        """All addresses that were asked for."""
        asked = [event for event in self._events() if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in asked]

    def _events(self) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("sessionId") == self._session]

    def picture(self, *, whole: bool = True) -> bytes:
        """A screenshot, PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def printed(self) -> bytes:
        """What a printer gets, PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
