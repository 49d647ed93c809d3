"""``contig top``: the dashboard's numbers in a terminal.

examples:
  contig top learner:5000            again and again, until Ctrl-C
  contig top runs/online --once      once
  contig top rollouts --json         a JSON object per look

exit status: 0 done; 2 there is nothing to look at; 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Iterator
from typing import Any

from ..dashboard import Monitor
from ..errors import ContigError
from ..lazy import install_hint
from .failure import OK, fail, one_line
from .values import above
from .watched import add_target, open_source

__all__ = ["add_arguments", "run"]

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_BAR = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    how = parser.add_argument_group("how it is shown")
    how.add_argument(
        "--interval", type=above(0, 1e6), default=1.0, metavar="S",
        help="seconds between two looks",
    )  # fmt: skip
    how.add_argument("--once", action="store_true", help="one look, after one interval")
    how.add_argument("--json", action="store_true", help="a JSON object per look")


def run(args: argparse.Namespace) -> int:
    """Shows until Ctrl-C; returns the exit status."""
    if not args.json and importlib.util.find_spec("rich") is None:
        fail(f"needs rich: {install_hint('top')}; or give --json")
    try:
        source = open_source(args)
    except (OSError, ValueError, ContigError) as error:
        fail(one_line(error))
    try:
        looks = _looks(Monitor(source, args.interval), args.interval, args.once)
        if args.json:
            for look in looks:
                print(json.dumps(look), flush=True)
        else:
            _show(looks, once=args.once)
    except (ContigError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        fail(one_line(error))
    finally:
        source.close()
    return OK


def _looks(monitor: Monitor, interval_s: float, once: bool) -> Iterator[dict[str, Any]]:
    """The numbers, again and again, each with what is known of ages; rates need two looks."""
    monitor.now()
    while True:
        time.sleep(interval_s)
        look = dict(monitor.now())
        look["ages"] = {name: _ages(monitor, name) for name in look["tables"]}
        yield look
        if once:
            return


def _ages(monitor: Monitor, table: str) -> dict[str, Any] | None:
    try:
        return monitor.source.ages(table)
    except KeyError:
        return None  # a queue


def _show(looks: Iterator[dict[str, Any]], *, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if once or not console.is_terminal:
        for look in looks:
            console.print(_screen(look))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for look in looks:
            live.update(_screen(look), refresh=True)


def _screen(look: dict[str, Any]) -> Any:
    """One look, as rich draws it."""
    from rich.console import Group

    source = look["source"]
    when = time.strftime("%H:%M:%S", time.localtime(look["time"]))
    parts: list[Any] = [f"[b]contig[/b] {source['kind']} {source['label']}   {when}", ""]
    parts.append(_tables(look))
    if look["clients"] is not None:
        parts += ["", _clients(look["clients"])]
    for name in ("clients", "rows_out", "limiter"):
        if name in look["notes"]:
            parts.append(f"[dim]{name}: {look['notes'][name]}[/dim]")
    return Group(*parts)


def _grid(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _tables(look: dict[str, Any]) -> Any:
    grid = _grid("table", "in/s", "out/s", "fill", "episodes", "per insert", "age", "stale")
    for name, table in look["tables"].items():
        fill = table["fill"]
        bar = "–" if fill is None else f"{'█' * round(min(fill, 1) * _BAR):░<{_BAR}} {fill:4.0%}"
        limiter = table.get("limiter")
        ratio = short(table["samples_per_insert"])
        if limiter:
            ratio += f" of {short(limiter['samples_per_insert'])}"
        ages = look["ages"].get(name) or {}
        age, stale = ages.get("rows"), ages.get("staleness")
        grid.add_row(
            name,
            short(table["rows_in_per_s"]),
            short(table["rows_out_per_s"]),
            bar,
            short(table.get("episodes")),
            ratio,
            "–" if age is None else f"{short(age['p50'])} rows",
            "–" if stale is None else short(stale["p50"]),
        )
    return grid


def _clients(clients: list[dict[str, Any]]) -> Any:
    grid = _grid("client", "table", "rows/s", "rows", "connected", "blocked", "")
    for client in clients[:40]:
        grid.add_row(
            client["peer"],
            client["table"],
            short(client["rows_per_s"]),
            short(client["rows"]),
            f"{client['seconds']:,.0f} s",
            f"{client['blocked_s']:,.1f} s",
            "waits" if client["blocked"] else "",
        )
    return grid


def short(value: float | None) -> str:
    """A number in a few characters."""
    if value is None:
        return "–"
    for unit, name in _UNITS:
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"
