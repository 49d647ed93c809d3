"""What ``contig serve`` is told: by the command line, and by one TOML file below it."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..arguments import is_loopback
from ..dashboard import PageOptions
from ..dashboard.serving import check_installed
from ..replay import ReplayBuffer
from ..server import Server, TcpTransport
from .address import once, read_token
from .tables import TABLE_OPTIONS, TableOptions, checked, make_table, read_example, table_options

__all__ = ["MOST_ITEMS", "ServeConfig", "read_config"]

MOST_ITEMS = 1 << 24  # of a batch of a queue

# What is said of the server, not of its tables, and the kinds of it in a file.
_SERVER: dict[str, tuple[type, ...]] = {
    "queue": (int,),
    "host": (str,),
    "port": (int,),
    "token_file": (str,),
    "tls": (list,),
    "metrics_port": (int,),
    "dashboard": (int,),
    "dashboard_host": (str,),
    "max_restarts": (int,),
    "max_frame": (int,),
    "log_json": (bool,),
    "log_level": (str,),
}
_DEFAULTS = {"host": "127.0.0.1", "port": 0, "max_restarts": 0, "log_level": "info"}
_PORTS = ("port", "metrics_port", "dashboard")
_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class ServeConfig:
    """A server to be made.

    Attributes:
        server: its options by name.
        every: what all tables have in common.
        tables: by name, with what they have for themselves.
        from_file: whether there was a file.
    """

    server: dict[str, Any]
    every: TableOptions
    tables: dict[str, TableOptions]
    from_file: bool

    def __getitem__(self, name: str) -> Any:
        return self.server.get(name, _DEFAULTS.get(name))

    def _spell(self, name: str) -> str:
        """An option as it was given."""
        return name if self.from_file else _flag(name)

    def make_server(self) -> Server:
        """The server, not started. Raises ValueError or OSError with what is wrong."""
        self._check_restarts()
        tls = self["tls"]
        frame = {} if self["max_frame"] is None else {"max_frame": self["max_frame"]}
        transport = TcpTransport(
            port=self["port"],
            host=self["host"],
            token=self._token(),
            tls=None if tls is None else (str(tls[0]), str(tls[1])),
            metrics_port=self["metrics_port"],
            max_restarts=self["max_restarts"],
            takes_weights=True,
            **frame,
        ).checked()
        if self["queue"] is not None:
            return self._queue(transport)
        tables: dict[str, ReplayBuffer] = {}
        try:
            for name, own in self.tables.items():
                tables[name] = make_table(name, own.over(self.every), self._spell)
            return Server(tables=tables, transport=transport)
        except BaseException:
            for buffer in tables.values():
                buffer.storage.close()
            raise

    def page(self) -> PageOptions | None:
        """How its dashboard is reached, if it is to have one: from elsewhere with what clients
        need, too: the token, and TLS. Raises ValueError or ImportError with what is wrong."""
        if self["dashboard"] is None:
            if self["dashboard_host"] is not None:
                host, port = self._spell("dashboard_host"), self._spell("dashboard")
                raise ValueError(f"{host} has no effect without {port}")
            return None
        check_installed()
        host, tls = self["dashboard_host"] or "127.0.0.1", self["tls"]
        if is_loopback(host):
            return PageOptions(host, self["dashboard"]).checked()
        if tls is None:
            raise ValueError(
                f"{self._spell('dashboard_host')} {host}: viewers would send the token for all to "
                f"see: give {self._spell('tls')}, or leave the page on 127.0.0.1"
            )
        files = (str(tls[0]), str(tls[1]))
        return PageOptions(host, self["dashboard"], self._token(), files).checked()

    def _check_restarts(self) -> None:
        on_disk = any(own.over(self.every).disk is not None for own in self.tables.values())
        if self["max_restarts"] and on_disk and self["queue"] is None:
            raise ValueError(
                f"{self._spell('max_restarts')} has no effect with {self._spell('disk')}: tables "
                "on disk are served by one process; have the service's manager restart it"
            )

    def _queue(self, transport: TcpTransport) -> Server:
        spell = self._spell
        if self.tables:
            raise ValueError(f"give {spell('queue')} or tables ({spell('table')}), not both")
        self.every.check(spell)
        for name in TABLE_OPTIONS:
            if name != "example" and getattr(self.every, name) is not None:
                raise ValueError(
                    f"{spell(name)} has no effect with {spell('queue')}: it is for tables"
                )
        if self.every.example is None:
            raise ValueError(f"nothing says what an item is: give {spell('example')}")
        if not 1 <= self["queue"] <= MOST_ITEMS:
            raise ValueError(f"{spell('queue')} {self['queue']}: expected 1 to {MOST_ITEMS} items")
        return Server(self.every.example, self["queue"], transport)

    def _token(self) -> str | None:
        path = self["token_file"]
        return read_token(None if path is None else Path(path), "CONTIG_TOKEN")

    @property
    def names(self) -> list[str]:
        """Of the tables, as clients know them."""
        return list(self.tables) or ["default"]


def read_config(args: argparse.Namespace) -> ServeConfig:
    """Of the command line, and of the file it names. Raises ValueError or OSError."""
    given = {name: getattr(args, name) for name in TABLE_OPTIONS}
    for name in ("stack", "codecs"):
        given[name] = None if given[name] is None else dict(given[name])
    if args.example is not None:
        given["example"] = read_example(args.example)
    told = TableOptions(**given)
    server = {k: v for k in _SERVER if (v := getattr(args, k, None)) is not None}
    names = once(args.table)
    if args.config is None:
        own = {} if args.queue is not None and not names else dict.fromkeys(names or ["default"])
        return ServeConfig(server, told, {n: TableOptions() for n in own}, False)
    found = _read_file(args.config)
    if names and found.tables:
        raise ValueError(f"--table {names[0]}: the tables are in {args.config}; write it there")
    tables = found.tables or {n: TableOptions() for n in names}
    merged = {**found.server, **server}
    if not tables and merged.get("queue") is None:
        tables = {"default": TableOptions()}
    return ServeConfig(merged, told.over(found.every), tables, True)


def _read_file(path: Path) -> ServeConfig:
    try:
        content = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not TOML: {error}") from None
    beside, server, every = path.parent, {}, {}
    tables = checked(content.pop("tables", {}), (dict,), f"{path}: tables")
    for key, value in content.items():
        if key in _SERVER:
            server[key] = checked(value, _SERVER[key], f"{path}: {key}")
        elif key in TABLE_OPTIONS:
            every[key] = value
        else:
            known = ", ".join((*_SERVER, *TABLE_OPTIONS, "tables"))
            raise ValueError(f"{path}: unknown option {key!r}; there are {known}")
    _check_server(server, path, lambda name: str(beside / name))
    own = {
        name: table_options(checked(given, (dict,), where), where, beside)
        for name, given in tables.items()
        for where in (f"{path}: tables.{name}",)
    }
    return ServeConfig(server, table_options(every, str(path), beside), own, True)


def _check_server(server: dict[str, Any], path: Path, beside: Callable[[str], str]) -> None:
    """Checks what is said of the server; names of files become paths."""
    if "tls" in server:
        tls = server["tls"]
        if len(tls) != 2 or not all(isinstance(name, str) for name in tls):
            raise ValueError(f"{path}: tls: expected [certificate, key], got {tls!r}")
        server["tls"] = [beside(name) for name in tls]
    if "token_file" in server:
        server["token_file"] = beside(server["token_file"])
    for name in _PORTS:
        if not 0 <= server.get(name, 0) < 65536:
            raise ValueError(f"{path}: {name}: expected a port, 0 to 65535, got {server[name]}")
    level = server.get("log_level", "info")
    if level not in _LEVELS:
        raise ValueError(f"{path}: log_level {level!r}: expected one of {', '.join(_LEVELS)}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
