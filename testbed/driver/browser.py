"""A real headless Chromium, driven by its own protocol (Chrome DevTools Protocol 1.3): opens pages and asks them."""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

_START_S = 60.0
_ANSWER_S = 60.0


class Browser:
    """One page of a running browser."""

    def __init__(self, connection: websocket.WebSocket) -> None:
        self._connection = connection
        self._last = 0
        self.events: list[dict[str, Any]] = []
        """All that the page reported: exceptions, log entries, requests."""

    def ask(self, method: str, **parameters: Any) -> Any:
        """One command and its result; raises `RuntimeError` where the browser refuses it."""
        self._last += 1
        number = self._last
        body = {"id": number, "method": method, "params": parameters}
        self._connection.send(json.dumps(body))
        while True:
            answer = json.loads(self._connection.recv())
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path, width: int = 1100, height: int = 900) -> None:
        """Show a file, and wait until it is loaded; forgets the events of the page before."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.resize(width, height)
        self.events.clear()
        self.ask("Page.navigate", url=page.resolve().as_uri())
        end_s = time.monotonic() + _ANSWER_S
        while self.value("document.readyState") != "complete":
            assert time.monotonic() < end_s, f"{page} is not loaded"
            time.sleep(0.05)

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """The visible part, in CSS pixels."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )

    def media(self, scheme: str = "light", kind: str = "") -> None:
        """`scheme`: light or dark; `kind`: print, or empty for the screen."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", media=kind, features=[feature])

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; raises `RuntimeError` where it throws."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"].get("exception", answer)))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """One key, such as Tab, Enter or ArrowRight."""
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowDown": 40, " ": 32}
        about: dict[str, Any] = {"key": key, "code": "Space" if key == " " else key}
        about["windowsVirtualKeyCode"] = codes[key]
        text = {"Enter": "\r", " ": " "}.get(key)
        more = {"text": text} if text else {}
        down = "keyDown" if text else "rawKeyDown"
        self.ask("Input.dispatchKeyEvent", type=down, **about, **more)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **about)

    def screenshot(self, file: Path) -> None:
        """The visible part, as its name ends: .png or .webp."""
        about = {"format": "webp", "quality": 70} if file.suffix == ".webp" else {"format": "png"}
        answer = self.ask("Page.captureScreenshot", **about)
        file.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed on A4."""
        answer = self.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(answer["data"])


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """A new browser without network, with a new profile; `program`: chromium."""
    with tempfile.TemporaryDirectory(prefix="kcover-", ignore_cleanup_errors=True) as folder:
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += ["--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-port=0"]
        command += ["--remote-allow-origins=*", f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            connection = _connected(process, Path(folder) / "DevToolsActivePort")
            try:
                yield Browser(connection)
            finally:
                connection.close()
        finally:
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _connected(process: subprocess.Popen[bytes], file: Path) -> websocket.WebSocket:
    end_s = time.monotonic() + _START_S
    while not file.exists() or len(file.read_text().splitlines()) < 2:
        if process.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError("chromium does not start")
        time.sleep(0.05)
    port, path = file.read_text().splitlines()[:2]
    whole = websocket.create_connection(f"ws://127.0.0.1:{port}{path}", timeout=_ANSWER_S)
    try:
        whole.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
        targets = json.loads(whole.recv())["result"]["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
    finally:
        whole.close()
    address = f"ws://127.0.0.1:{port}/devtools/page/{page}"
    return websocket.create_connection(address, timeout=_ANSWER_S)
