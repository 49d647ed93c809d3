"""Objects by import path, ``package.module:name``, as commands are told; and what they raise."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .failure import CommandFailed, fail, one_line

__all__ = ["load", "load_made", "made", "raised"]

_PACKAGE = Path(__file__).parents[1]
_INSTALLED = {Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")}


def load(text: str, option: str) -> Any:
    """What a path names; modules of the working directory are found, too."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        fail(f"{option} {text}: expected an import path, such as package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = made(lambda: importlib.import_module(module), text, option)
    for part in name.split("."):
        if not hasattr(found, part):
            fail(f"{option} {text}: {module} has no {name}")
        found = getattr(found, part)
    return found


def load_made(text: str, option: str) -> Any:
    """The same; a function or class that needs no arguments is called."""
    found = load(text, option)
    if not inspect.isroutine(found) and not inspect.isclass(found):
        return found
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):  # ValueError: it does not say what it takes
        return found  # it takes what a policy is given
    out = made(found, text, option)
    if out is None:
        fail(f"{option} {text}: it was called without arguments, and returned None")
    return out


def made(make: Callable[[], Any], text: str, option: str) -> Any:
    """What a user's function returns; whatever it raises ends the command, in one line."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        said = one_line(error) if isinstance(error, ImportError) else raised(error)
        raise CommandFailed(f"{option} {text}: {said}") from error


def raised(error: BaseException) -> str:
    """What a user's code raised, and in which function: the innermost that is not installed."""
    own = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _is_installed(Path(frame.f_code.co_filename))
    ]
    where = ""
    if own:
        code, line = own[-1]
        where = f", in {code.co_qualname} ({Path(code.co_filename).name}, line {line})"
    return f"{type(error).__name__}: {one_line(error)}{where}"


def _is_installed(path: Path) -> bool:
    return bool({_PACKAGE, *_INSTALLED} & set(path.parents)) or str(path).startswith("<")
