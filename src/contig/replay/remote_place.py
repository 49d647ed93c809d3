"""A place that fsspec reaches: its file system, and the manifest that says what is there.

Errors of the packages behind fsspec are of any kind and length: `one_line` makes them OSError.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..errors import LayoutError
from ..lazy import install_hint

__all__ = ["Manifest", "Place", "is_below", "line_of", "new_generation", "one_line"]

_MANIFEST = "contig.json"
_FORMAT = 1
_GENERATION = re.compile(r"g[0-9a-f]{12}/")
_PROTOCOLS = "s3, gs, abfs, sftp, file, memory"


class Manifest(NamedTuple):
    """What an upload consists of.

    Attributes:
        kind: what it is.
        generation: the folder that its files are in; empty: it is one file, and not in any.
        sums: size and CRC-32 of each file, by its path.
    """

    kind: str
    generation: str
    sums: dict[str, list[int]]

    def to_bytes(self) -> bytes:
        return json.dumps({"format": _FORMAT, **self._asdict()}).encode()

    @staticmethod
    def of(data: bytes, where: str) -> Manifest:
        try:
            found = json.loads(data)
            known = found["format"]
            if known == _FORMAT:
                sums = {str(k): [int(n) for n in v] for k, v in found["sums"].items()}
                made = Manifest(str(found["kind"]), str(found["generation"]), sums)
                below = [*sums, *filter(None, [made.generation])]
                if all(map(is_below, below)) and all(len(v) == 2 for v in sums.values()):
                    return made
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LayoutError(f"{where} is damaged: {error!r}") from None
        if known == _FORMAT:
            raise LayoutError(f"{where} is damaged: names or sums in it make no sense")
        raise LayoutError(f"{where}: format {known}, this contig reads {_FORMAT}; use a newer one")


def is_below(name: str) -> bool:
    """Whether a path stays in the directory it belongs to, on any machine."""
    parts = name.replace("\\", "/").split("/")
    return ":" not in name and all(part not in ("", ".", "..") for part in parts)


def new_generation() -> str:
    """A name for the folder of an upload."""
    return f"g{uuid.uuid4().hex[:12]}"


class Place:
    """A url and the file system that it belongs to."""

    def __init__(self, url: str) -> None:
        self.url = url if url.endswith("://") else url.rstrip("/")
        self.fs, path = _file_system(self.url)
        self.path = path.rstrip("/")
        self.name = self.path.rsplit("/", 1)[-1]
        if not self.name:
            raise ValueError(f"{url}: expected a bucket and a name in it")

    def manifests(self) -> tuple[str, str]:
        """Where a file's and a directory's are."""
        return f"{self.path}.{_MANIFEST}", f"{self.path}/{_MANIFEST}"

    def manifest(self) -> Manifest | None:
        for path in self.manifests():
            try:
                return Manifest.of(self.fs.cat_file(path), path)
            except (FileNotFoundError, NotADirectoryError):
                continue
        return None

    def check_free(self, kind: str, overwrite: bool | str) -> None:
        """Raises FileExistsError unless something may be put there."""
        if overwrite is True:
            return
        with one_line(self.url):
            self.fs.invalidate_cache()
            there = self.manifest()
            if there is None and (not self.fs.exists(self.path) or self._interrupted()):
                return
        if there is not None and overwrite == "same" and there.kind == kind:
            return
        what = "something else, or a part of it" if there is None else there.kind
        hint = "choose another name" if overwrite == "same" else "choose another, or overwrite it"
        raise FileExistsError(f"{self.url} is there already ({what}); {hint}")

    def _interrupted(self) -> bool:
        """Whether nothing is there but what a directory's upload left that did not end."""
        base = self.fs._strip_protocol(self.path).rstrip("/")
        names = [str(path)[len(base) + 1 :] for path in self.fs.find(self.path)]
        return all(_GENERATION.match(name) for name in names)


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(f"{url}: urls need fsspec: {install_hint('remote')}") from error
    protocol = url.partition("://")[0]
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # says which package
        raise ImportError(f"{url}: {line_of(error)}") from error
    except ValueError as error:
        if "rotocol" not in str(error):
            raise
        raise ValueError(
            f"{url}: fsspec knows no protocol {protocol!r}; expected one such as {_PROTOCOLS}, or "
            "install the package that brings it"
        ) from error
    return fs, str(path)


@contextmanager
def one_line(url: str) -> Iterator[None]:
    """Errors of a file system's package as OSError, in one line with the url."""
    try:
        yield
    except (LayoutError, FileExistsError, ImportError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{url}: nothing is there: {line_of(error)}") from error
    except Exception as error:
        text = f"{type(error).__name__}: {line_of(error)}"
        if isinstance(error, PermissionError) or "redential" in text:
            hint = "check the credentials that its package looks for (environment, configuration)"
            raise PermissionError(f"{url}: not allowed: {text}; {hint}") from error
        raise OSError(f"{url}: {text}") from error


def line_of(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
