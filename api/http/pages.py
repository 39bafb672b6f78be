"""The page at `/`: static files of this package, read once.

Nothing of it comes from elsewhere, and the page may talk to this server only (Content-Security-
Policy). It needs no key; what it asks for does. Exercised by `pytest tests/server/test_page.py`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.api.http.errors import ApiError
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

FOLDER = Path(__file__).parent / "page"
PREFIX = "/page/"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@cache
def _files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in _TYPES}


async def show_page(request: Request) -> Response:
    """The page, or one of its files. Raises ApiError 404."""
    name = request.path_params.get("name", "index.html")
    content = _files().get(name)
    if content is None:
        raise ApiError(404, f"there is no {PREFIX}{name}")
    return Response(content, headers=_HEADERS, media_type=_TYPES[Path(name).suffix])
