"""Run the Python snippets of the documentation.

    python tools/check_snippets.py [FILE.md ...]     default: README.md and docs/**/*.md

Every fenced block that opens with ```python is run; ```pycon, ```text and others are not, nor is a
block with the comment `<!-- skip -->` as the last line of text before it. The blocks of one file
share one namespace and run in order in one fresh process, in an empty temporary directory.

The blocks become a script in which each keeps the line numbers it has in the Markdown file, so
that tracebacks point there. In it the line that closes block N writes N to a file, which is how
the parent knows how far the script came, even if the process was killed. As in any script, worker
processes that are spawned import it again: code that starts them belongs under
`if __name__ == "__main__":`.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})\s*(?P<info>[^`]*)$")
SKIP = "<!-- skip -->"
MAX_LINES = 40  # of output shown for a failure


@dataclass(frozen=True)
class Block:
    first: int  # 1-based line of the opening fence
    last: int  # 1-based line of the closing fence
    code: str
    skipped: bool


def find_blocks(text: str) -> list[Block]:
    """The ```python blocks of a Markdown text, in order."""
    lines = text.splitlines()
    blocks: list[Block] = []
    previous = ""  # the last line of text outside blocks
    at = 0
    while at < len(lines):
        opening = FENCE.match(lines[at])
        if opening is None:
            previous = lines[at].strip() or previous
            at += 1
            continue
        ticks = opening["ticks"]
        closing = re.compile(rf"^ *{ticks[0]}{{{len(ticks)},}}\s*$")
        end = at + 1
        while end < len(lines) and not closing.match(lines[end]):
            end += 1
        if opening["info"].split(maxsplit=1)[:1] == ["python"]:
            code = textwrap.dedent("\n".join(lines[at + 1 : end]))
            blocks.append(Block(at + 1, end + 1, code, previous == SKIP))
        previous = ""
        at = end + 1
    return blocks


def script_of(blocks: list[Block], progress: Path) -> str:
    """One script of all blocks, each at its own lines of the Markdown file."""
    lines: list[str] = []
    for number, block in enumerate(blocks, 1):
        lines += [""] * (block.first - len(lines))
        lines += block.code.split("\n")
        # Guarded, because a process started by multiprocessing imports the script again.
        lines.append(
            'if __name__ == "__main__": '
            f'__import__("pathlib").Path({str(progress)!r}).write_text("{number}")'
        )
    return "\n".join(lines) + "\n"


def syntax_problem(path: Path, block: Block) -> str | None:
    try:
        compile("\n" * block.first + block.code, str(path), "exec")
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    return None


def run(path: Path, blocks: list[Block], timeout_s: float) -> tuple[int, str]:
    """Run the blocks of one file; returns how many passed, and what went wrong ("" if nothing)."""
    for number, block in enumerate(blocks):
        problem = syntax_problem(path, block)
        if problem is not None:
            passed, earlier = run(path, blocks[:number], timeout_s)
            return passed, earlier or problem
    if not blocks:
        return 0, ""
    with tempfile.TemporaryDirectory(prefix="snippets-") as name:
        directory = Path(name)
        progress = directory / "progress"
        script = directory / f"{path.stem}_snippets.py"
        script.write_text(script_of(blocks, progress), encoding="utf-8")
        work = directory / "work"
        work.mkdir()
        # A session of its own, so that after a timeout its worker processes can be ended too.
        process = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
            ending = f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            ending = f"still running after {timeout_s:g} s"
        passed = int(progress.read_text()) if progress.exists() else 0
    if passed == len(blocks) and ending == "exit status 0":
        return passed, ""
    text = output.decode(errors="replace").replace(str(script), str(path))
    shown = text.strip().splitlines()
    if len(shown) > MAX_LINES:
        shown = [f"... {len(shown) - MAX_LINES} lines ...", *shown[-MAX_LINES:]]
    return passed, "\n".join([*shown, ending])


def check(path: Path, timeout_s: float) -> bool:
    """Run one Markdown file and print a line per block."""
    blocks = find_blocks(path.read_text(encoding="utf-8"))
    runnable = [block for block in blocks if not block.skipped]
    passed, problem = run(path, runnable, timeout_s)
    number = 0
    for block in blocks:
        where = f"{path}:{block.first}"
        number += not block.skipped
        if block.skipped:
            print(f"skip  {where}")
        elif number <= passed:
            print(f"pass  {where}")
        elif number == passed + 1:
            print(f"FAIL  {where}")
            print(textwrap.indent(problem, "      "))
        else:
            print(f"----  {where}  (not run: an earlier block failed)")
    if problem and passed == len(runnable):
        print(f"FAIL  {path}  (after its last block)")
        print(textwrap.indent(problem, "      "))
    return not problem


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the Python snippets of the documentation.")
    parser.add_argument("files", nargs="*", type=Path, help="default: README.md and docs/**/*.md")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="for each file")
    arguments = parser.parse_args()
    files = arguments.files or [Path("README.md"), *sorted(Path("docs").rglob("*.md"))]
    failed = [path for path in files if not check(path, arguments.timeout_s)]
    for path in failed:
        print(f"failed: {path}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
