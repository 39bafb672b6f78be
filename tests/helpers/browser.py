"""Headless Chromium, driven over its own protocol (DevTools) with the client that is there."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WAIT_S = 60.0
_LISTENING = re.compile(rb"DevTools listening on (ws://\S+)")


class Page:
    """One page. `problems` are what its console and its requests complained of."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session_id: str) -> None:
        self.problems: list[str] = []
        self._socket = socket
        self._session_id = session_id
        self._ids = itertools.count(100)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command of the protocol."""
        call_id = next(self._ids)
        await self._socket.send_json(
            {"id": call_id, "method": method, "params": params, "sessionId": self._session_id}
        )
        while True:
            message = await self._socket.receive_json(timeout=2 * WAIT_S)
            self._note(message)
            if message.get("id") == call_id:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        done = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Wait until an expression is true."""
        return await self.run(
            "new Promise((resolve, reject) => {"
            f"  const end = Date.now() + {WAIT_S * 1000};"
            "  const look = () => {"
            f"   const value = {condition};"
            "    if (value) resolve(value);"
            "    else if (Date.now() > end) reject(new Error('it did not happen'));"
            "    else setTimeout(look, 50);"
            "  };"
            "  look();"
            "})"
        )

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip

    async def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, text=text, windowsVirtualKeyCode=code,
            )  # fmt: skip

    async def screenshot(self) -> bytes:
        """What is to be seen, as PNG."""
        done = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(done["data"])

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.problems.append(params["entry"]["text"])


@asynccontextmanager
async def browse(url: str, profile: Path) -> AsyncIterator[Page]:
    """A page of a fresh browser; the browser has ended after."""
    assert BROWSER is not None
    process = await asyncio.create_subprocess_exec(
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        address = await asyncio.wait_for(_address(process), WAIT_S)
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(address, max_msg_size=0) as socket,
        ):
            yield await _open(socket, url)
    finally:
        process.kill()
        await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async for line in process.stderr:
        if found := _LISTENING.search(line):
            return found[1].decode()
    raise AssertionError("the browser ended")


async def _open(socket: aiohttp.ClientWebSocketResponse, url: str) -> Page:
    created = await _command(socket, 1, "Target.createTarget", {"url": "about:blank"})
    attach = {"targetId": created["targetId"], "flatten": True}
    attached = await _command(socket, 2, "Target.attachToTarget", attach)
    browser = Page(socket, attached["sessionId"])
    for domain in ("Page", "Runtime", "Log"):
        await browser.call(f"{domain}.enable")
    await browser.call("Page.navigate", url=url)
    await browser.until("document.readyState === 'complete'")
    return browser


async def _command(
    socket: aiohttp.ClientWebSocketResponse, call_id: int, method: str, params: dict[str, Any]
) -> dict[str, Any]:
    await socket.send_json({"id": call_id, "method": method, "params": params})
    while True:
        message = await socket.receive_json(timeout=WAIT_S)
        if message.get("id") == call_id:
            result: dict[str, Any] = message["result"]
            return result
