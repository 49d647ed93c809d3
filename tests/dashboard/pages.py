"""Pages that tests ask over HTTP, as a browser does."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from contig.dashboard import PageOptions, PageServer, Source
from contig.dashboard.serving import listen


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, path: str, method: str = "GET", **headers: str | bytes) -> Answer:
    """One request; header names with underscores."""
    where = urlsplit(url)
    line = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=30)
    try:
        line.putrequest(method, path, skip_host="host" in headers)
        for name, value in headers.items():
            line.putheader(name.replace("_", "-"), value)
        line.endheaders()
        answer = line.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, told, answer.read())
    finally:
        line.close()


@contextmanager
def served(source: Source, **options: Any) -> Iterator[str]:
    """A source's page, in a thread of this process: its url, without a token."""
    told = PageOptions(**options).checked()
    listening = listen(told)
    port = listening.getsockname()[1]
    page = PageServer(source, told, listening)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        page.close()
