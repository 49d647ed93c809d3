"""Files and directories in a bucket, or wherever fsspec reaches: ``s3://``, ``gs://``, ``memory://``.

    URL                  a file, and
    URL.contig.json      its manifest: size and CRC-32; or
    URL/contig.json      a directory's manifest, which names
    URL/GENERATION/...   its files

A manifest is one object, written last: without it, an upload was interrupted, and it is refused. A
directory that is replaced gets a new generation, so readers find the earlier one, whole, until the
new manifest takes its place. A file has one place only: while it is replaced, its manifest does not
fit, and readers are told so. What a killed upload leaves is never read; only what a manifest named
is ever removed. Needs fsspec, and the package of the protocol.
"""

from __future__ import annotations

import logging
import os
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from ..errors import LayoutError
from ..tape.disk import files
from .remote_place import Manifest, Place, is_below, line_of, new_generation, one_line

__all__ = ["downloaded", "folder_to_load", "folder_to_save", "is_url", "uploading"]

log = logging.getLogger("contig.replay")

_TRANSFERS = 8  # at a time
_CHUNK_BYTES = 16 << 20
_TRIES = 5  # of a download that meets others replacing what it reads
_MADE_BY_OTHERS = "nothing says that it is whole: its upload was interrupted, or another program's"


def is_url(path: Any) -> bool:
    """Whether a path is none of this machine's, but has a protocol."""
    return isinstance(path, str) and "://" in path


@contextmanager
def uploading(url: str, kind: str, *, overwrite: bool | str = False) -> Iterator[Path]:
    """A path in a temporary directory; what is made there, a file or a directory, is at `url` at
    the end of the block.

    Args:
        kind: what it is, for the manifest: "checkpoint", "parquet" and the like.
        overwrite: whether something that is there may be replaced; "same": only of the same kind.

    Raises:
        FileExistsError: something is there.
        OSError: it cannot be reached; in one line, with what to do.
    """
    place = Place(url)
    place.check_free(kind, overwrite)
    with _temporary() as folder:
        made = folder / place.name
        yield made
        with one_line(url):
            place.check_free(kind, overwrite)  # somebody may have been faster
            _upload(place, made, kind, overwrite is True)


@contextmanager
def downloaded(url: str, *, unverified: bool = False) -> Iterator[Path]:
    """A copy of what is at `url`, in a temporary directory, for the length of the block.

    Args:
        unverified: whether a file or directory without a manifest is taken as it is.

    Raises:
        FileNotFoundError: nothing is there.
        LayoutError: it is not whole, or damaged.
        OSError: it cannot be reached; in one line, with what to do.
    """
    place = Place(url)
    with _temporary() as folder:
        with one_line(url):
            copy = _download(place, folder / place.name, unverified)
        yield copy


def folder_to_save(path: str | Path) -> AbstractContextManager[Path]:
    """Where to make a checkpoint: at a path, or, of a url, in a directory that is then uploaded."""
    if is_url(path):
        return uploading(str(path), "checkpoint", overwrite="same")
    return nullcontext(Path(path))


def folder_to_load(path: str | Path) -> AbstractContextManager[Path]:
    """Where to read a checkpoint: at a path, or, of a url, in a copy."""
    return downloaded(str(path)) if is_url(path) else nullcontext(Path(path))


@contextmanager
def _temporary() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="contig-"))
    try:
        yield folder
    finally:
        files.remove_tree(folder)


def _each(transfer: Callable[[str], None], names: Iterable[str]) -> None:
    """Several at a time; after the first failure, none is begun."""
    with ThreadPoolExecutor(_TRANSFERS, thread_name_prefix="contig-transfer") as pool:
        futures = [pool.submit(transfer, name) for name in names]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _sum(path: Path) -> list[int]:
    """Size and CRC-32."""
    size = crc = 0
    for piece in files.read_pieces(path, _CHUNK_BYTES):
        size += len(piece)
        crc = zlib.crc32(piece, crc)
    return [size, crc]


# -- up --------------------------------------------------------------------------------------------


def _upload(place: Place, made: Path, kind: str, anyway: bool) -> None:
    earlier = _earlier(place)
    if made.is_dir():
        names = [p.relative_to(made).as_posix() for p in sorted(made.rglob("*")) if not p.is_dir()]
        new = Manifest(kind, new_generation(), {n: _sum(made / n) for n in names})
    else:
        new = Manifest(kind, "", {place.name: _sum(made)})
    try:
        _put_all(place, made, new)
        if not anyway and _earlier(place) != earlier:
            raise FileExistsError(f"{place.url}: somebody else put something there meanwhile")
    except BaseException:
        if new.generation:  # a file's place may have the earlier one
            _remove(place, new, but=None)
        raise
    # From here on nothing is removed if it fails: an error does not say that it was not written.
    _put_manifest(place, new)
    if earlier is not None:
        _remove(place, earlier, but=new)


def _earlier(place: Place) -> Manifest | None:
    try:
        return place.manifest()
    except LayoutError as error:  # it is replaced all the same; its files stay
        log.warning("%s", error)
        return None


def _put_all(place: Place, made: Path, new: Manifest) -> None:
    def put(name: str) -> None:
        at = f"{place.path}/{new.generation}/{name}" if new.generation else place.path
        if not getattr(place.fs, "async_impl", False):
            # Object stores have no directories: there, it would make a bucket of a mistyped name.
            place.fs.makedirs(at.rsplit("/", 1)[0], exist_ok=True)
        place.fs.put_file(str(made / name if new.generation else made), at)
        place.fs.invalidate_cache()
        found = int(place.fs.info(at)["size"])
        if found != new.sums[name][0]:
            raise OSError(f"{at} has {found} bytes after its upload, expected {new.sums[name][0]}")

    _each(put, new.sums)


def _put_manifest(place: Place, new: Manifest) -> None:
    file, directory = place.manifests()
    ours, other = (directory, file) if new.generation else (file, directory)
    _replace_object(place.fs, ours, new.to_bytes())
    with suppress(FileNotFoundError, NotADirectoryError):
        if place.fs.exists(other):
            place.fs.rm_file(other)


def _replace_object(fs: Any, path: str, data: bytes) -> None:
    """One object at once: stores do that; on file systems, a rename does."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
    if "file" in protocols:
        part = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            fs.pipe_file(part, data)
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise
    else:
        fs.pipe_file(path, data)


def _remove(place: Place, gone: Manifest, but: Manifest | None) -> None:
    """Removes the files of an upload that no manifest names any more, as far as that works."""
    if not gone.generation and (but is None or not but.generation):
        return  # the new file is where the earlier one was
    base = f"{place.path}/{gone.generation}" if gone.generation else place.path
    try:
        for name in gone.sums:
            with suppress(FileNotFoundError):
                place.fs.rm_file(f"{base}/{name}" if gone.generation else base)
        if gone.generation:
            with suppress(FileNotFoundError):
                place.fs.rm(base, recursive=True)  # folders, where there are any
    except Exception as error:
        log.warning("%s: what is not used any more could not be removed: %s", base, line_of(error))


# -- down ------------------------------------------------------------------------------------------


def _download(place: Place, to: Path, unverified: bool) -> Path:
    for _ in range(_TRIES):
        place.fs.invalidate_cache()
        found = place.manifest()
        if found is None:
            return _download_others(place, to, unverified)
        try:
            _get_all(place, found, to)
            return to
        except (FileNotFoundError, LayoutError):
            files.remove_tree(to) if to.is_dir() else to.unlink(missing_ok=True)
            place.fs.invalidate_cache()
            if place.manifest() == found:
                raise
    raise OSError(f"{place.url}: others keep replacing it")


def _get_all(place: Place, found: Manifest, to: Path) -> None:
    def get(name: str) -> None:
        local, at = to, place.path
        if found.generation:
            local, at = to / name, f"{place.path}/{found.generation}/{name}"
        local.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.fs.get_file(at, str(local))
        except FileNotFoundError:
            raise FileNotFoundError(f"{at}, which its manifest names, is missing") from None
        got = _sum(local)
        if got != found.sums[name]:
            raise LayoutError(
                f"{place.url}: {name} is damaged, or is being replaced ({got[0]} bytes, expected "
                f"{found.sums[name][0]}, or other contents); upload it anew"
            )

    if found.generation:
        to.mkdir(exist_ok=True)
    _each(get, found.sums)


def _download_others(place: Place, to: Path, unverified: bool) -> Path:
    fs = place.fs
    if not fs.exists(place.path):
        raise FileNotFoundError("no object and no directory of that name")
    if not unverified:
        raise LayoutError(
            f"{place.url}: {_MADE_BY_OTHERS}. Upload it anew, or take it as it is, unverified"
        )
    if fs.isfile(place.path):
        fs.get_file(place.path, str(to))
        return to
    base = fs._strip_protocol(place.path).rstrip("/")
    found = {str(path)[len(base) + 1 :]: str(path) for path in fs.find(place.path)}

    def get(name: str) -> None:
        if not is_below(name):
            raise LayoutError(f"{place.url}: an object named {name!r} cannot be a file here")
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        fs.get_file(found[name], str(to / name))

    to.mkdir(exist_ok=True)
    _each(get, found)
    return to
