"""Codecs by name: ``"zstd"``, ``"zstd:19"``, ``"jpeg:90"``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from .codec import Codec
from .compressed import Lz4, Zstd
from .images import Jpeg, Png, Qoi

__all__ = ["codec_of"]


class _Form(NamedTuple):
    """A kind of codec: what makes it, and the numbers that may follow its name."""

    make: Callable[..., Codec]
    least: int = 0
    most: int = -1
    required: bool = False


_FORMS = {
    "zstd": _Form(Zstd, -7, 22),
    "lz4": _Form(Lz4, 1, 12),
    "png": _Form(Png, 0, 9),
    "qoi": _Form(Qoi),
    "jpeg": _Form(Jpeg, 1, 100, required=True),
}


def codec_of(name: Any) -> Codec:
    """The codec of that name; one that has been made already stays as it is.

    Raises:
        ValueError: there is none, or none with this number, with what to write.
    """
    if isinstance(name, Codec):
        return name
    if not isinstance(name, str):
        raise ValueError(f"codec {name!r}: expected a name, one of {', '.join(_FORMS)}")
    return _made(name)


@functools.lru_cache(maxsize=256)
def _made(name: str) -> Codec:
    kind, colon, text = name.partition(":")
    form = _FORMS.get(kind)
    if form is None:
        raise ValueError(
            f"codec {name!r}: unknown; there are {', '.join(_FORMS)} (as in 'zstd:3', 'jpeg:90')"
        )
    if not colon:
        if form.required:
            raise ValueError(f"codec {name!r}: say its quality, as in 'jpeg:90'; it is lossy")
        return form.make(name)
    if form.most < form.least:
        raise ValueError(f"codec {name!r}: {kind} has no levels; write {kind!r}")
    try:
        number = int(text)
    except ValueError:
        number = form.most + 1
    if not form.least <= number <= form.most or text != str(number):
        raise ValueError(
            f"codec {name!r}: expected {kind} with a number from {form.least} to {form.most}"
        )
    return form.make(name, number)
