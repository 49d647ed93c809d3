"""Run the commands of the documentation, with the files that it shows beside them.

    python tools/check_commands.py [FILE.md ...]     default: README.md and docs/**/*.md

- A fenced block with a title, as in ```toml title="serve.toml", is a file. It is written before
  the commands behind it run.
- A ```console block has commands behind "$ ". They run in order in one directory for each page.
  `contig serve` and others that end only when they are told to run until the end of their block;
  then SIGTERM has to end them with status 0.
- A comment `<!-- run: COMMAND -->` is a command that readers need not see.
- A block whose last line of text before it is `<!-- skip -->` is not run.

Every page has namespaces of its own (Linux), so that ports, addresses and folders are those that it
names: 10.0.0.5 is data.example, and /etc, /opt and /var/lib can be written to and are thrown away.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^ *(?P<ticks>`{3,})(?P<kind>\w*)(?:.*title=\"(?P<title>[^\"]+)\")?.*$")
HIDDEN = re.compile(r"^<!-- run: (?P<command>.*) -->$")
SKIP = "<!-- skip -->"
READY = re.compile(r"listening on |collecting for |https?://")
ADDRESS, NAME = "10.0.0.5", "data.example"
LIMIT_S = 90.0
NOT_RUN = 77  # exit status: there can be no namespaces here


class Step(NamedTuple):
    """One thing to do for a page.

    Attributes:
        line: of the Markdown file.
        kind: "file", "command", or "end" of a block.
        text: the file's content, or the command.
        path: of the file.
    """

    line: int
    kind: str
    text: str = ""
    path: str = ""


def find_steps(text: str) -> list[Step]:
    """The files and commands of a Markdown text, in order."""
    lines, steps = text.splitlines(), list[Step]()
    at, previous = 0, ""
    while at < len(lines):
        hidden, opening = HIDDEN.match(lines[at].strip()), FENCE.match(lines[at])
        if hidden is not None:
            steps.append(Step(at + 1, "command", hidden["command"]))
        if opening is None:
            previous = lines[at].strip() or previous
            at += 1
            continue
        end = at + 1
        while end < len(lines) and lines[end].strip() != opening["ticks"]:
            end += 1
        body, indent = lines[at + 1 : end], len(lines[at]) - len(lines[at].lstrip())
        body = [line[indent:] for line in body]
        if previous == SKIP:
            pass
        elif opening["title"]:
            steps.append(Step(at + 1, "file", "\n".join(body) + "\n", opening["title"]))
        elif opening["kind"] == "console":
            steps += _commands(body, at + 2)
            steps.append(Step(end + 1, "end"))
        previous, at = "", end + 1
    return steps


def _commands(lines: list[str], first: int) -> list[Step]:
    """The commands of a console block; other lines are what they print."""
    steps, at = list[Step](), 0
    while at < len(lines):
        if lines[at].startswith("$ "):
            command, line = lines[at][2:], first + at
            while command.endswith("\\"):
                at += 1
                command = f"{command[:-1]} {lines[at].strip()}"
            steps.append(Step(line, "command", command))
        at += 1
    return steps


def runs_until_told(command: str) -> bool:
    """Returns whether a command ends only when it is told to."""
    words = shlex.split(command, comments=True)
    if len(words) < 2 or Path(words[0]).name != "contig" or "--help" in words:
        return False
    if words[1] == "worker":
        return "--example" not in words and "--frames" not in words
    return words[1] in ("serve", "dashboard")


# -- within the namespaces ------------------------------------------------------------------------


def run_page(page: Path) -> None:
    """Runs a page's steps in the working directory. Raises SystemExit with what went wrong."""
    running: list[tuple[Step, subprocess.Popen[str]]] = []
    try:
        for step in find_steps(page.read_text(encoding="utf-8")):
            where = f"{page}:{step.line}"
            if step.kind == "file":
                Path(step.path).parent.mkdir(parents=True, exist_ok=True)
                Path(step.path).write_text(step.text)
            elif step.kind == "end":
                while running:
                    _end(page, *running.pop())
            elif runs_until_told(step.text):
                running.append((step, _start(where, step.text)))
            else:
                _run(where, step.text)
        while running:
            _end(page, *running.pop())
    finally:
        for _, process in running:
            process.kill()


def _run(where: str, command: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{where}: {command}\nexit status {done.returncode}\n{done.stdout}")
    print(f"ran   {where}: {command}", flush=True)


def _start(where: str, command: str) -> subprocess.Popen[str]:
    """Starts a service, and waits until it says that it is ready."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said, deadline = "", time.monotonic() + LIMIT_S
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while not READY.search(said):
            if not ready.select(max(deadline - time.monotonic(), 0)):
                process.kill()
                raise SystemExit(f"{where}: {command}\nnot ready within {LIMIT_S:g} s\n{said}")
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"{where}: {command}\nexit status {process.wait()}\n{said}")
            said += line
    print(f"began {where}: {command}", flush=True)
    return process


def _end(page: Path, step: Step, process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=LIMIT_S)
    if process.returncode:
        where = f"{page}:{step.line}"
        raise SystemExit(f"{where}: {step.text}\nexit status {process.returncode}\n{said}")


def enter_namespaces() -> None:
    """Makes this process's own network and folders ready. Raises OSError if it may not."""
    import fcntl

    up, set_flags, set_address = 0x1 | 0x40, 0x8914, 0x8916  # from linux/sockios.h
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        fcntl.ioctl(line, set_flags, struct.pack("16sH14x", b"lo", up))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(ADDRESS))
        fcntl.ioctl(line, set_address, struct.pack("16s16s", b"lo:1", address))
    over = Path(tempfile.mkdtemp(prefix="commands-"))
    _mount("-t", "tmpfs", "tmpfs", str(over))
    for folder in ("etc", "opt", "var/lib"):
        upper, work = over / folder / "upper", over / folder / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir=/{folder},upperdir={upper},workdir={work}"
        _mount("-t", "overlay", "-o", options, "overlay", f"/{folder}")
    with Path("/etc/hosts").open("a") as hosts:
        hosts.write(f"\n{ADDRESS} {NAME}\n")
    installed = Path("/opt/contig/bin/contig")
    installed.parent.mkdir(parents=True)
    installed.symlink_to(Path(sys.executable).with_name("contig"))


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip())


# -- from outside ---------------------------------------------------------------------------------


def in_namespaces(command: list[str], work: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command behind `enter_namespaces`; its status is NOT_RUN where that is impossible."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return subprocess.CompletedProcess(command, NOT_RUN, "there is no unshare (util-linux)")
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.run(
        [unshare, *root, "--mount", "--net", sys.executable, __file__, "--inside", *command],
        cwd=work,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def check(page: Path) -> tuple[int, str]:
    """Runs a page's commands; returns the exit status and what was printed."""
    if not any(step.kind == "command" for step in find_steps(page.read_text(encoding="utf-8"))):
        return 0, ""
    with tempfile.TemporaryDirectory(prefix="commands-") as work:
        done = in_namespaces([str(page.resolve())], Path(work))
    return done.returncode, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the commands of the documentation.")
    parser.add_argument("files", nargs="*", type=Path, help="default: README.md and docs/**/*.md")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        try:
            enter_namespaces()
        except OSError as error:
            print(f"no namespaces here: {error}")
            return NOT_RUN
        (page,) = arguments.files
        run_page(page)
        return 0
    failed = 0
    for page in arguments.files or [Path("README.md"), *sorted(Path("docs").rglob("*.md"))]:
        status, said = check(page)
        print(said, end="")
        failed += status not in (0, NOT_RUN)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
