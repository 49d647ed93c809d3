"""The page's HTTP interface: everything is GET, and nothing changes anything.

    /                                        the page
    /api/numbers                             counters, rates, clients
    /api/tables/T/live?since=                history, and ages of what is sampled
    /api/tables/T/returns                    returns and lengths over time
    /api/tables/T/episodes?query=&sort=...   the browser's list
    /api/tables/T/episodes/N                 one episode: rewards, flags, leaves
    /api/tables/T/episodes/N/lines?leaf=     a leaf as lines
    /api/tables/T/episodes/N/frames?leaf=    frames of an image leaf, as PNG
    /api/tables/T/export?ids=|query=&as=     what is selected, as a file

A request that cannot be answered is a 4xx with ``{"error": what is wrong}``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from ..errors import ContigError
from ..tape.episodes import EPISODE
from .book import Book
from .curves import as_json, describe_leaves, episode_curves, leaf_lines
from .export import FORMATS, TooLarge, episode_json, export
from .images import frames_png
from .monitor import Monitor
from .query import search
from .returns import returns_over_time

__all__ = ["make_app"]

_PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_TYPES[".svg"] = "image/svg+xml"
_FILES = {p.name: p.suffix for p in _PAGE.iterdir() if p.suffix in _TYPES}
_MOST_LINES = 500  # of the list, in one answer
_MOST_IDS = 1000


class _Api:
    """What the routes answer with. Runs in threads."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._source = monitor.source

    def numbers(self, request: Request) -> Response:
        return JSONResponse(self._monitor.now())

    def live(self, request: Request) -> Response:
        table = request.path_params["table"]
        since = _number(request, "since", 0.0)
        shown = self._monitor.now()
        if table not in shown["tables"]:
            raise KeyError(f"no table {table!r}; there are {', '.join(shown['tables'])}")
        try:
            ages: dict[str, Any] | None = self._source.ages(table)
        except KeyError:
            ages = None  # a queue
        return JSONResponse({"history": self._monitor.history(table, since), "ages": ages})

    def returns(self, request: Request) -> Response:
        return JSONResponse(returns_over_time(self._book(request).episodes()))

    def episodes(self, request: Request) -> Response:
        book = self._book(request)
        episodes = book.episodes()
        found = _sorted(request, episodes[search(_text(request, "query"), episodes)])
        offset = _whole(request, "offset", 0)
        limit = min(_whole(request, "limit", 50), _MOST_LINES)
        lines = [episode_json(line) for line in found[offset : offset + limit]]
        fields = [] if book.fields is None else _names(book)
        answer = {"total": len(episodes), "found": len(found), "offset": offset}
        return JSONResponse({**answer, "episodes": lines, "fields": fields})

    def episode(self, request: Request) -> Response:
        book, number = self._book(request), request.path_params["number"]
        about = episode_json(book.about(number))
        layout = book.layout
        leaves = [] if layout is None else describe_leaves(layout)
        kept = book.kept(number)
        rows = {"first": kept.first, "rows": kept.end - kept.first}
        curves = episode_curves(book, number)
        return JSONResponse({"episode": about, **rows, "leaves": leaves, **curves})

    def lines(self, request: Request) -> Response:
        book, number = self._book(request), request.path_params["number"]
        leaf, first = _whole(request, "leaf"), _whole(request, "first", 0)
        return JSONResponse(leaf_lines(book, number, leaf, first))

    def frames(self, request: Request) -> Response:
        book, number = self._book(request), request.path_params["number"]
        names = (("leaf", None), ("from", 0), ("count", 1), ("every", 1), ("side", 0))
        asked = [_whole(request, name, default) for name, default in names]
        body, count = frames_png(book, number, *asked)
        return Response(body, media_type="image/png", headers={"x-frames": str(count)})

    def export(self, request: Request) -> Response:
        form = _text(request, "as") or "csv"
        if form not in FORMATS:
            raise ValueError(f"as={form}: expected one of {', '.join(FORMATS)}")
        book = self._book(request)
        chosen = _chosen(request, book.episodes())
        body = export(book, chosen, form)
        headers = {"content-disposition": f'attachment; filename="episodes.{form}"'}
        return Response(body, media_type=FORMATS[form], headers=headers)

    def _book(self, request: Request) -> Book:
        return self._source.book(request.path_params["table"])


def _text(request: Request, name: str) -> str:
    return str(request.query_params.get(name, ""))


def _whole(request: Request, name: str, default: int | None = None) -> int:
    text = _text(request, name)
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError(f"{name}={text}: expected a whole number from 0 on")
    return int(text)


def _number(request: Request, name: str, default: float) -> float:
    text = _text(request, name)
    try:
        return float(text) if text else default
    except ValueError:
        raise ValueError(f"{name}={text}: expected a number") from None


def _names(book: Book) -> list[str]:
    own = np.dtype(book.episodes().dtype).names or ()
    return [n for n in own if n not in (EPISODE.names or ())]


def _sorted(request: Request, episodes: Any) -> Any:
    """By a column; the newest first unless it is said otherwise."""
    text = _text(request, "sort") or "-id"
    name = text.lstrip("-")
    if name not in (episodes.dtype.names or ()) or episodes[name].ndim != 1:
        raise ValueError(f"sort={text}: expected a column such as return, or -return")
    order = np.argsort(episodes[name], kind="stable")
    return episodes.take(order[::-1] if text.startswith("-") else order)


def _chosen(request: Request, episodes: Any) -> Any:
    """The episodes that are to be exported: by ids, or by a search."""
    text = _text(request, "ids")
    if not text:
        return _sorted(request, episodes[search(_text(request, "query"), episodes)])
    parts = text.split(",")
    if len(parts) > _MOST_IDS or not all(p.isascii() and p.isdigit() for p in parts):
        raise ValueError(f"ids={text[:80]}: expected numbers with commas, {_MOST_IDS} at most")
    ids = np.array([int(p) for p in parts if len(p) < 19], np.int64)
    missing = ids[~np.isin(ids, episodes["id"])]
    if len(missing) or len(ids) < len(parts):
        raise KeyError(f"no episode {', '.join(map(str, as_json(missing))) or text[:80]}")
    return episodes[np.isin(episodes["id"], ids)]


def _page(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    # Only what is there, by its name: nothing of a path that came from outside is followed.
    if name not in _FILES:
        raise HTTPException(404, f"no page {name[:80]}")
    return FileResponse(_PAGE / name, media_type=_TYPES[_FILES[name]])


def _says(status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        text = error.args[0] if isinstance(error, KeyError) and error.args else str(error)
        return JSONResponse({"error": str(text)}, status)

    return answer


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def make_app(monitor: Monitor) -> Starlette:
    """The ASGI application of what a monitor watches; a `Guard` belongs around it."""
    api = _Api(monitor)
    table = "/api/tables/{table:path}"  # a name may have slashes
    one = f"{table}/episodes/{{number:int}}"
    routes = [
        Route("/api/numbers", api.numbers),
        Route(f"{table}/live", api.live),
        Route(f"{table}/returns", api.returns),
        Route(f"{table}/episodes", api.episodes),
        Route(one, api.episode),
        Route(f"{one}/lines", api.lines),
        Route(f"{one}/frames", api.frames),
        Route(f"{table}/export", api.export),
        Route("/", _page),
        Route("/{name}", _page),
    ]
    handlers = {
        HTTPException: _http_error,
        TooLarge: _says(413),
        KeyError: _says(404),
        ValueError: _says(400),
        ContigError: _says(503),
        OSError: _says(503),
    }
    return Starlette(routes=routes, exception_handlers=handlers)
