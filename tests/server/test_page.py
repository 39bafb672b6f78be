"""The page at `/` in a real browser: it chats, stops, shows what runs, and fits a phone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.helpers.browser import BROWSER, Page, browse
from tests.helpers.server_process import ServerProcess

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

ANSWERED = "!!document.querySelector('.assistant .facts, .assistant .error')"
TOO_WIDE = """[...document.querySelectorAll('body *')].filter(e => e.offsetParent !== null &&
  !e.closest('.unseen, .skip, .who') && e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.tagName + '#' + e.id)"""
UNNAMED = """[...document.querySelectorAll('button, input, textarea, [role=img]')].filter(e =>
  !(e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label'))).map(e => e.id)"""


NOTHING = "\N{EN DASH}"


async def ask(page: Page, text: str) -> None:
    """As somebody with a keyboard alone does."""
    await page.run(f"document.getElementById('prompt').value = {json.dumps(text)}")
    await page.run("document.getElementById('prompt').focus()")
    await page.press("Enter", 13, "\r")


async def chat(page: Page) -> None:
    await page.until("document.getElementById('model').textContent.startsWith('SmolLM2')")
    await page.run("document.getElementById('max_tokens').value = 24")
    await ask(page, "Say hello.")
    await page.until(ANSWERED)
    assert await page.run("document.querySelector('.assistant .text').textContent.length") > 0
    assert "tokens" in await page.run("document.querySelector('.facts').textContent")


async def stop(page: Page) -> None:
    await page.run("document.getElementById('max_tokens').value = 400")
    await ask(page, "Count from one to one thousand.")
    await page.until("document.querySelectorAll('.assistant .text')[1]?.textContent.length > 2")
    await page.press("Escape", 27)
    await page.until("document.querySelectorAll('.facts')[1]?.textContent.includes('stopped')")


async def watch(page: Page) -> None:
    await page.run("document.getElementById('show-live').click()")
    await page.until(
        "document.querySelector('#plot-throughput path')?.getAttribute('d').length > 9"
    )
    label = await page.run("document.getElementById('blocks').getAttribute('aria-label')")
    assert "cached" in label
    assert await page.run("document.getElementById('ttft').textContent") != NOTHING


async def look_at_all(url: str, folder: Path) -> dict[str, bytes]:
    """Screenshots by name."""
    seen: dict[str, bytes] = {}
    async with browse(url, folder / "profile") as page:
        await page.resize(390, 844)
        await chat(page)
        assert await page.run(TOO_WIDE) == []
        seen["chat-390"] = await page.screenshot()
        await stop(page)
        await watch(page)
        assert await page.run(TOO_WIDE) == []
        seen["live-390"] = await page.screenshot()
        await page.resize(1280, 800)
        assert await page.run(TOO_WIDE) == []
        seen["both-1280"] = await page.screenshot()
        assert await page.run(UNNAMED) == []
        assert page.problems == []
    return seen


def test_the_page_chats_stops_and_shows_what_runs(server: ServerProcess, tmp_path: Path) -> None:
    for name, picture in asyncio.run(look_at_all(server.url, tmp_path)).items():
        (tmp_path / f"{name}.png").write_bytes(picture)


def test_the_page_comes_from_here_alone(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "://" not in page.text
    for name in ("style.css", "app.js", "api.js", "chat.js", "charts.js", "live.js", "icon.svg"):
        file = http.get(f"/page/{name}")
        assert file.status_code == 200
        assert "https://" not in file.text
    assert http.get("/page/../app.py").status_code == 404
    assert http.get("/page/nothing.js").status_code == 404
