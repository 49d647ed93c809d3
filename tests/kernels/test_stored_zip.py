"""Archives of stored members against Python's zipfile; damage never goes unnoticed."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED, **more: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
        file.comment = more.get("comment", b"")
    return out.getvalue()


@given(st.dictionaries(st.text("abc/é.", min_size=1), st.binary(max_size=200), max_size=4))
def test_members_are_those_of_zipfile(members: dict[str, bytes]) -> None:
    data = archive(members)
    found = _native.stored_zip(data)
    assert found is not None
    assert {n.decode(): data[at : at + size] for n, at, size in found} == members


def test_what_others_read() -> None:
    members = {"a": b"x" * 100}
    assert _native.stored_zip(archive(members, zipfile.ZIP_DEFLATED)) is None
    assert _native.stored_zip(archive(members, comment=b"said")) is None
    assert _native.stored_zip(b"before" + archive(members)) is None
    assert _native.stored_zip(b"") is None and _native.stored_zip(b"PK" * 100) is None


def test_large_archives_go_without_the_gil() -> None:
    data = archive({"a": bytes(range(256)) * 8192})
    assert _native.stored_zip(data) == [(b"a", 31, 2 << 20)]


def test_every_changed_byte_is_noticed() -> None:
    members = {"a.npy": b"0123456789" * 3, "b.npy": b"abc"}
    whole = archive(members)
    places = _native.stored_zip(whole)
    assert places is not None
    contents = {at for _, offset, size in places for at in range(offset, offset + size)}
    for at in range(len(whole)):
        for flip in (1, 0x80):
            changed = bytearray(whole)
            changed[at] ^= flip
            try:
                found = _native.stored_zip(bytes(changed))
            except ValueError as error:
                assert "checksum or place of" in str(error)
                continue
            assert at not in contents
            if found is not None:  # a byte that says nothing about the contents
                got = {name.decode(): bytes(changed[o : o + n]) for name, o, n in found}
                assert got == members


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_archives_cut_short(cut: int) -> None:
    whole = archive({"a.npy": b"0123456789" * 9})
    assert _native.stored_zip(whole[:cut]) is None


def test_members_that_share_bytes_are_refused() -> None:
    """A few bytes name the same place again: to check them all would take a minute."""
    data = archive({"a": bytes(4 << 20)})
    at = data.rindex(b"PK\x01\x02")
    end = data.rindex(b"PK\x05\x06")
    entry, count = data[at:end], 60_000
    tail = bytearray(data[end:])
    struct.pack_into("<HHI", tail, 8, count, count, count * len(entry))
    with pytest.raises(ValueError, match="checksum or place of"):
        _native.stored_zip(data[:at] + entry * count + bytes(tail))
