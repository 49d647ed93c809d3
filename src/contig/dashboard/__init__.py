"""A page, and a terminal, that show what happens in buffers, servers and directories, live.

    numbers    counters of a table             ages     how old what is sampled is
    source     what is watched                 monitor  rates
    book       episodes, and rows of one       query    the search box
    curves, images, returns, export            what the page shows of them
    app, guard, serving                        HTTP
    dashboard, child                           a page of this process's tables, in a process

Reads only. Starlette and uvicorn (extra `dashboard`) are needed by `app` and `serving` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "ages": ("Budget", "SeenRows", "histogram"),
    "book": ("Book", "Kept", "StorageBook"),
    "dashboard": ("Dashboard",),
    "monitor": ("Monitor",),
    "numbers": ("Numbers", "table_numbers"),
    "serving": ("PageOptions", "PageServer"),
    "source": ("Source", "StorageSource", "Told"),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .ages import Budget as Budget
    from .ages import SeenRows as SeenRows
    from .ages import histogram as histogram
    from .book import Book as Book
    from .book import Kept as Kept
    from .book import StorageBook as StorageBook
    from .dashboard import Dashboard as Dashboard
    from .monitor import Monitor as Monitor
    from .numbers import Numbers as Numbers
    from .numbers import table_numbers as table_numbers
    from .serving import PageOptions as PageOptions
    from .serving import PageServer as PageServer
    from .source import Source as Source
    from .source import StorageSource as StorageSource
    from .source import Told as Told
