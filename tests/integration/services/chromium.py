"""A real headless Chromium, spoken to by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from patience import PATIENCE
from websockets.sync.client import ClientConnection, connect

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--hide-scrollbars", "--disable-background-networking", "--remote-debugging-port=0", "--window-size=1280,900"),
]


@contextmanager
def opened() -> Iterator[Chromium]:
    """A browser with one tab, and a profile of its own."""
    assert BINARY
    with tempfile.TemporaryDirectory(prefix="onceonly-chromium-", ignore_cleanup_errors=True) as profile:
        command = [BINARY, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True) as process:
            try:
                # Events come while a test waits for something else and reads none: no end of the queue, and no pings,
                # whose answers would be behind the events.
                unlimited: Any = {"max_size": None, "max_queue": None, "ping_interval": None}
                with connect(_address(Path(profile)), open_timeout=PATIENCE, **unlimited) as socket:
                    yield Chromium(socket)
            finally:
                os.killpg(process.pid, signal.SIGKILL)


def _address(profile: Path) -> str:
    """Of the tab."""
    file = profile / "DevToolsActivePort"
    port = until(lambda: file.exists() and file.read_text().split("\n")[0], "Chromium listens")
    pages = httpx.get(f"http://127.0.0.1:{port}/json", timeout=PATIENCE).json()
    return str(next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page"))


class Chromium:
    """One tab; `errors` holds what its console complained of, `requests` each URL that it asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._sent = socket, 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    # ---- what a person does

    def login(self, url: str, token: str) -> None:
        self.call("Network.clearBrowserCookies")
        self.call("Network.setCookie", name="_token", value=token, url=url)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def scheme(self, name: str) -> None:
        """'light' or 'dark', as the system prefers it."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        text = {"text": "\r"} if key == "Enter" else {}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def type_keys(self, text: str) -> None:
        """As `type`, key by key, for a page that listens to keys."""
        for letter in text:
            self.call("Input.dispatchKeyEvent", type="keyDown", key=letter, text=letter)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=letter)

    # ---- what a person sees

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression, in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Until it is true; a page that is being replaced has no answer."""
        return until(lambda: self._quietly(f"Boolean({expression})"), expression, seconds)

    def text(self) -> str:
        return str(self.value("document.body.innerText"))

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, file: Path, width: int = 1280, height: int = 900) -> None:
        self.resize(width, height)
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    # ---- the protocol

    def call(self, method: str, **parameters: Any) -> Any:
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(PATIENCE))
            if message.get("id") == self._sent:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._hear(message)

    def _hear(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event["method"]:
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning"):
                self.errors.append(json.dumps(told["args"]))
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")

    def _quietly(self, expression: str) -> Any:
        try:
            return self.value(expression)
        except AssertionError:
            return None


def until(ready: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """What `ready` returns once it is true."""
    end = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)
    return found
