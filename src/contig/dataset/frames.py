"""Files of frames: some arrays ``[n, ...]`` of one trajectory.

`.npz` is written and read; pickles of foreign programs are read without running them. A file is
complete before it has its name.
"""

from __future__ import annotations

import functools
import io
import math
import os
import pickle
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .. import _native
from ..convert import as_array, is_number, numpy_dtype
from ..errors import LayoutError
from ..tape.disk import files
from ..unpickle import load_arrays

__all__ = [
    "Frames",
    "canonical",
    "frame_range",
    "load_frames",
    "must_be_finite",
    "read_npz",
    "save_frames",
    "unzip",
    "with_flags",
]

Array = np.ndarray[Any, Any]
Frames = dict[str, Array]

_NAMES = {
    "observation": ("observations", "obs"),
    "privileged_observation": ("privileged_observations", "privileged_obs"),
    "action": ("actions",),
    "reward": ("rewards",),
    "done": ("dones",),
    "timeout": ("timeouts", "time_out", "time_outs"),
    "next_observation": ("next_observations", "next_obs"),
    "next_privileged_observation": ("next_privileged_observations", "next_privileged_obs"),
}
_CANONICAL = {other: name for name, others in _NAMES.items() for other in (name, *others)}
_DAMAGED: tuple[type[Exception], ...] = (
    pickle.UnpicklingError,
    ValueError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,  # zipfile's, of a damaged directory
)
# What a packed file may come to: so many bytes, or so many times its size.
_UNPACKED, _TIMES = 256 << 20, 64
_BFLOAT16 = np.dtype("V2")  # as numpy itself saves it
_RANGE = re.compile(r"traj_(\d+)_(\d+)\.[^.]+")


@functools.lru_cache(maxsize=4096)
def frame_range(filename: str) -> tuple[int, int]:
    """First frame, and the one behind the last, from ``traj_<start>_<end>.<anything>``.

    Raises:
        ValueError: another name.
    """
    found = _RANGE.fullmatch(os.path.basename(filename))
    if found is None or int(found[1]) >= int(found[2]):
        raise ValueError(
            f"{filename}: expected traj_<start>_<end>.npz with start < end, such as "
            "traj_100_200.npz for frames 100 to 199"
        )
    return int(found[1]), int(found[2])


def canonical(data: dict[str, Any]) -> Frames:
    """Fields by the names a Transition has; others keep theirs; None is absent."""
    return {
        _CANONICAL.get(str(name), str(name)): as_array(value)
        for name, value in data.items()
        if value is not None
    }


def save_frames(path: Path, frames: Frames) -> None:
    """Writes an `.npz` that is complete before it is visible, and on the disk after this."""
    out = io.BytesIO()
    # The format has no name for bfloat16: its bytes.
    plain = {k: v.view(_BFLOAT16) if v.dtype.name == "bfloat16" else v for k, v in frames.items()}
    np.savez(out, allow_pickle=False, **plain)
    files.write_new(path, out.getvalue())


def load_frames(path: str | Path) -> Frames:
    """The arrays of a file, by canonical names.

    Raises:
        LayoutError: damaged, or something else than arrays of one length.
    """
    try:
        with files.open_stream(path) as file:
            data = read_npz(file.read()) if str(path).endswith(".npz") else load_arrays(file)
    except _DAMAGED as error:
        raise LayoutError(f"{path} is damaged or no file of frames: {error}") from error
    if not isinstance(data, dict):
        raise LayoutError(f"{path}: expected a dict of arrays, got {type(data).__name__}")
    frames = canonical(data)
    for name, array in frames.items():
        if array.dtype == _BFLOAT16:
            frames[name] = array.view(numpy_dtype("bfloat16"))
    start, end = frame_range(os.path.basename(path))
    for name, array in frames.items():
        if array.ndim < 1 or array.shape[0] != end - start:
            raise LayoutError(
                f"{path}: {name} has shape {list(array.shape)}, expected {end - start} frames "
                "first, as the file's name says"
            )
        if not is_number(array.dtype):
            raise LayoutError(f"{path}: {name} is {array.dtype}, expected numbers")
    return frames


def read_npz(data: bytes) -> Frames:
    """An `.npz` from its bytes: arrays are views of them where nothing is compressed."""
    members = _native.stored_zip(data)  # checks them
    if members is None:
        return unzip(data)
    return {_array_name(name.decode()): _array(data, at, size) for name, at, size in members}


def unzip(data: bytes) -> Frames:
    """The same of any `.npz`; arrays are copies."""
    out: Frames = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > max(_UNPACKED, _TIMES * len(data)):
            raise ValueError(
                f"its arrays take {unpacked:,} bytes when they are unpacked, of a file of "
                f"{len(data):,}: more than {_TIMES} times as much; if that is right, save them "
                "again with np.savez, which does not pack"
            )
        for member in archive.infolist():
            name = _array_name(member.filename)
            raw = archive.read(member)  # checks it
            out[name] = _array(raw, 0, len(raw))
    return out


def _array_name(member: str) -> str:
    if not member.endswith(".npy"):
        raise ValueError(f"{member} is in it, which is no array")
    return member.removesuffix(".npy")


def _array(data: bytes, start: int, size: int) -> Array:
    """The array of a `.npy` file that is somewhere in the data."""
    if size < 12 or data[start : start + 6] != b"\x93NUMPY" or data[start + 6] not in (1, 2, 3):
        raise ValueError("an array's header is damaged")
    if data[start + 6] == 1:
        begin = start + 10 + data[start + 8] + 256 * data[start + 9]
    else:
        begin = start + 12 + int(struct.unpack_from("<I", data, start + 8)[0])
    shape, fortran, dtype, nbytes = _header(data[start:begin])
    if start + size - begin < nbytes:
        raise ValueError("an array is cut short")
    flat = np.frombuffer(data, dtype, math.prod(shape), begin)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


@functools.lru_cache(maxsize=256)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file = io.BytesIO(head)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(np.lib.format.read_magic(file))
    if read is None:
        raise ValueError("an array of a newer format is in it")
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array of objects is in it, which would need pickle")
    return shape, fortran, dtype, math.prod(shape) * dtype.itemsize


def with_flags(frames: Frames) -> Frames:
    """Frames with flags, as bool ``[n]``, and rewards ``[n]``."""
    rows = len(frames["observation"])
    out = dict(frames)
    for flag in ("done", "timeout"):
        given = frames.get(flag)
        if given is None:
            out[flag] = np.zeros(rows, bool)
        elif given.dtype != bool or given.ndim != 1:
            out[flag] = given.reshape(rows, -1)[:, 0] != 0
    if out["reward"].ndim == 2 and out["reward"].shape[1] == 1:
        out["reward"] = out["reward"][:, 0]
    return out


def must_be_finite(frames: Frames, env: int, start: int, where: str) -> None:
    for name, array in frames.items():
        if array.dtype.kind not in "biu":
            bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))
            if len(bad):
                raise ValueError(
                    f"{where}: {name} is not finite at frame {start + int(bad[0])}, which env "
                    f"{env} was to read; leave the trajectory out, or check_finite=False"
                )
