"""A zstandard frame's structure (RFC 8878, 3.1.1), without decoding it.

magic [4] | descriptor [1] | window [0-1] | dictionary [0-4] | content size [0-8]
then blocks: header [3] (last: 1 bit, kind: 2, size: 21), bytes
then a checksum [0 or 4]
"""

from __future__ import annotations

__all__ = ["zstd_damage"]

_MAGIC = b"\x28\xb5\x2f\xfd"
_LARGEST_BLOCK = 128 << 10
_RAW, _REPEATED, _COMPRESSED = range(3)
_DICTIONARY_BYTES = (0, 1, 2, 4)
_SIZE_BYTES = (0, 2, 4, 8)


def zstd_damage(data: memoryview, expected: int) -> str:
    """Why bytes are not one whole frame of so many bytes of content, with nothing behind it; empty
    if they are, as far as their structure says: compressed blocks are not looked into."""
    if bytes(data[:4]) != _MAGIC or len(data) < 6:
        return f"no zstd frame: it begins with {bytes(data[:4])!r}"
    descriptor = data[4]
    if descriptor & 8:
        return "a zstd frame of a kind that is not known"
    single = bool(descriptor & 32)
    size_bytes = _SIZE_BYTES[descriptor >> 6] or int(single)
    dictionary_at = 5 if single else 6
    size_at = dictionary_at + _DICTIONARY_BYTES[descriptor & 3]
    if not size_bytes:
        return f"a zstd frame that does not say its size, expected {expected} bytes"
    if any(data[dictionary_at:size_at]):
        return "a zstd frame that needs a dictionary: encode it without"
    holds = int.from_bytes(data[size_at : size_at + size_bytes], "little")
    holds += 256 if size_bytes == 2 else 0
    if holds != expected:
        return f"it holds {holds} bytes, expected {expected}"
    window = holds if single else _window(data[5])
    end, reason = _end_of_blocks(data, size_at + size_bytes, holds, min(window, _LARGEST_BLOCK))
    if reason:
        return reason
    end += 4 if descriptor & 4 else 0
    if end > len(data):
        return "a zstd frame that is cut short"
    return f"a zstd frame with {len(data) - end} bytes behind it" if end < len(data) else ""


def _window(descriptor: int) -> int:
    base = 1 << (10 + (descriptor >> 3))
    return base + base // 8 * (descriptor & 7)


def _end_of_blocks(data: memoryview, at: int, holds: int, largest: int) -> tuple[int, str]:
    """Where the last block ends, or why there is none."""
    known, all_known, last = 0, True, False
    while not last:
        if at + 3 > len(data):
            return at, "a zstd frame that is cut short"
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind > _COMPRESSED or size > largest:
            return at, "a zstd frame that is damaged"
        at += 3 + (1 if kind == _REPEATED else size)
        if kind == _COMPRESSED:
            all_known = False
        else:
            known += size
    if known > holds or (all_known and known != holds):
        return at, f"a zstd frame that is damaged: it says {holds} bytes and has {known}"
    return at, ""
