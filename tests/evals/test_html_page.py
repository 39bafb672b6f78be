"""The page, opened in a real browser: no error, plots drawn, nothing wider than the window."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hasten.evals.report.html import html_page

from tests.unit.evals.fakes import FakeTarget
from tests.unit.evals.runs import opened, run

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
MEASURE = """<script>
addEventListener('load', () => {
  const plots = [...document.querySelectorAll('.plot svg')].map(p => p.getBoundingClientRect());
  const small = [...document.querySelectorAll('.plot text')].filter(
    t => t.getBoundingClientRect().height < 9);
  document.title = JSON.stringify({
    overflow: document.documentElement.scrollWidth - innerWidth,
    plots: plots.filter(b => b.width > 250 && b.height > 100).length,
    small: small.length, width: innerWidth});
});
addEventListener('error', e => { document.title = 'error: ' + e.message; });
</script>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


@pytest.fixture(name="page", scope="module")
def _page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    with opened(root / "store") as store:
        record = run(store, FakeTarget("base"), FakeTarget("cand", noise=0.3))
    path = root / "page.html"
    path.write_text(html_page(record).replace("</head>", MEASURE + "</head>"))
    return path


def browse(page: Path, width: int, *flags: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    # Headless windows have a least width; an iframe has not.
    frame = page.with_name(f"frame{width}.html")
    frame.write_text(
        f'<body style="margin:0"><iframe id=f src="{page.name}" style="border:0;width:{width}px;'
        'height:3000px"></iframe><script>addEventListener("load", () => { setTimeout(() => {'
        "document.title = document.getElementById('f').contentDocument.title }, 200) })</script>"
    )
    return subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         "--enable-logging=stderr", "--virtual-time-budget=3000", *flags, frame.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_whole_and_fits(page: Path, width: int) -> None:
    import json
    import re

    done = browse(page, width, "--dump-dom", "--window-size=1400,3000")
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found is not None, done.stdout[:500]
    seen = json.loads(found[1])
    assert seen["width"] == width
    assert seen["overflow"] <= 0
    assert seen["plots"] >= 3
    assert seen["small"] == 0
    assert "CONSOLE" not in done.stderr
