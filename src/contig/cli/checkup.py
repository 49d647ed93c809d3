"""What ``contig doctor`` looks at: each check says what it found and, if that is wrong, the remedy.

Nothing here needs the native module, which may be what is wrong, before it was checked.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Checkup", "Finding", "size"]

_SHM = Path("/dev/shm")
_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
_KERNEL = tuple(int(x) for x in platform.release().split(".")[:2] if x.isdecimal())
_ASKS = (6, 1)  # Linux from there on has large pages for who asks, whatever it does by itself
_EXTRAS = ("torch", "jax", "tensordict", "gymnasium", "ray", "pyarrow", "h5py", "minari", "rich",
           "uvloop", "starlette", "cloudpickle", "fsspec", "zstandard", "lz4")  # fmt: skip
_LEAST_FILES = 1024


class Finding(NamedTuple):
    """What a check found.

    Attributes:
        name: of the check.
        status: "ok"; "note": it could be better; "wrong".
        found: in words.
        remedy: what to do; empty if there is nothing to do.
    """

    name: str
    status: str
    found: str
    remedy: str = ""


class Checkup(NamedTuple):
    """All checks of a machine.

    Attributes:
        need: bytes that a buffer is to have; None: it is not known.
        clean: remove what dead processes left.
        shm, pages: where the system says what there is.
        kernel: its version.
    """

    need: int | None = None
    clean: bool = False
    shm: Path = _SHM
    pages: Path = _PAGES
    kernel: tuple[int, ...] = _KERNEL

    def findings(self) -> Iterator[Finding]:
        yield self._versions()
        native = self._native()
        yield native
        if native.status == "wrong":
            return  # what comes needs it
        checks: tuple[Callable[[], Finding], ...] = (
            self._memory,
            self._shared_memory,
            self._locks,
            self._files,
            self._huge_pages,
            self._leftovers,
        )
        for check in checks:
            yield check()

    def _versions(self) -> Finding:
        from .. import __version__

        needed = [f"{name} {_version(name) or 'missing'}" for name in ("numpy", "optree")]
        extras = [f"{name} {known}" for name in _EXTRAS if (known := _version(name))]
        where = f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
        found = f"contig {__version__}, {where}, {', '.join(needed)}; {', '.join(extras)}"
        if any("missing" in n for n in needed):
            return Finding("versions", "wrong", found, "pip install contig, with what it needs")
        return Finding("versions", "ok", found)

    def _native(self) -> Finding:
        try:
            native = importlib.import_module("contig._native")
            right = native.crc32c(b"123456789") == 0xE3069283
        except (ImportError, AttributeError) as error:
            return Finding(
                "native module", "wrong", f"it cannot be loaded: {error}",
                "install contig anew for this Python: pip install --force-reinstall contig",
            )  # fmt: skip
        if not right:
            return Finding(
                "native module", "wrong", f"{native.__file__} computes wrong checksums",
                "it was built for another processor: install contig anew",
            )  # fmt: skip
        return Finding("native module", "ok", str(native.__file__))

    def _memory(self) -> Finding:
        from ..tape.fits import available_bytes

        there = available_bytes()
        if there is None:
            return Finding("memory", "note", "the system does not say how much there is")
        return self._against("memory", there, f"{size(there)} available", (
            "a smaller capacity, DiskStorage, or more memory for this container (--memory)"
        ))  # fmt: skip

    def _shared_memory(self) -> Finding:
        name = "shared memory"
        if not self.shm.is_dir():
            return Finding(
                name, "wrong" if sys.platform == "linux" else "note", f"there is no {self.shm}",
                "SharedStorage and servers need it; LazyTensorStorage works within one process",
            )  # fmt: skip
        room = os.statvfs(self.shm)
        free, whole = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        more = f"{-(-2 * max(self.need or 0, whole) // (1 << 30))}g"
        return self._against(
            name, free, f"{size(free)} of {size(whole)} free in {self.shm}",
            f"give it more: mount -o remount,size={more} {self.shm}, or docker run "
            f"--shm-size={more}; or a smaller capacity, or DiskStorage",
        )  # fmt: skip

    def _against(self, name: str, there: int, found: str, remedy: str) -> Finding:
        if self.need is None:
            return Finding(name, "ok", found)
        found = f"{found}, and the buffer needs {size(self.need)}"
        if self.need > there:
            return Finding(name, "wrong", found, remedy)
        return Finding(name, "ok", found)

    def _locks(self) -> Finding:
        from .._native import ROBUST_LOCKS

        if ROBUST_LOCKS:
            return Finding("locks", "ok", "robust and shared between processes")
        return Finding(
            "locks", "note", "this platform has none that outlive a killed process",
            "storages are shared between threads only here; share between processes on Linux",
        )  # fmt: skip

    def _files(self) -> Finding:
        name = "file descriptors"
        if sys.platform == "win32":
            return Finding(name, "ok", "this platform has no such limit")
        import resource

        from ..server.budget import Limits

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = hard == resource.RLIM_INFINITY
        found = f"{soft:,}, and up to {'any number' if unlimited else f'{hard:,}'} if asked for"
        wanted = Limits().max_connections + _LEAST_FILES
        if not unlimited and hard < _LEAST_FILES:
            return Finding(name, "wrong", found, "ulimit -Hn 16384, or LimitNOFILE= of the service")
        if not unlimited and hard < wanted:
            return Finding(
                name, "note", f"{found}; a server of {Limits().max_connections:,} clients has more",
                f"for so many: LimitNOFILE={wanted} of the service, or ulimit -Hn {wanted}",
            )  # fmt: skip
        return Finding(name, "ok", found)

    def _huge_pages(self) -> Finding:
        chosen = {}
        for what in ("enabled", "shmem_enabled"):
            try:
                text = (self.pages / what).read_text()
            except OSError:
                continue
            chosen[what] = text.partition("[")[2].partition("]")[0]
        if not chosen:
            return Finding("huge pages", "note", "this system does not say")
        found = ", ".join(f"{what}: {value}" for what, value in chosen.items())
        asks = self.kernel >= _ASKS and chosen.get("shmem_enabled") != "deny"
        if chosen.get("shmem_enabled") in ("never", "deny") and not asks:
            return Finding(
                "huge pages", "note", found,
                "large tapes are drawn from faster with them: echo within_size > "
                f"{self.pages / 'shmem_enabled'}, or Linux 6.1, where tapes ask for them",
            )  # fmt: skip
        return Finding("huge pages", "ok", found + ("; tapes ask for them" if asks else ""))

    def _leftovers(self) -> Finding:
        from ..tape.segment import leftovers, reap

        dead = leftovers()
        if not dead:
            return Finding("leftovers", "ok", "nothing of dead processes is in shared memory")
        found = f"{len(dead)} segments of dead processes, {size(sum(dead.values()))}"
        some = ", ".join(sorted(dead)[:5]) + (", ..." if len(dead) > 5 else "")
        if self.clean:
            gone = reap()
            return Finding("leftovers", "ok", f"{found}; {len(gone)} were removed: {some}")
        return Finding(
            "leftovers", "note", f"{found}: {some}",
            "contig doctor --clean; else the next process that shares memory removes them",
        )  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def size(nbytes: int) -> str:
    """Bytes in words."""
    value = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
