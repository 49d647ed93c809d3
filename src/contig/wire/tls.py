"""TLS contexts from what users give."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

__all__ = ["client_context", "server_context"]


def server_context(tls: Any) -> ssl.SSLContext:
    """For a server: paths of a certificate chain and of its private key, both PEM.

    Raises:
        FileNotFoundError: one of them is not there.
        ValueError: they are something else, or do not belong together.
    """
    pair = isinstance(tls, (tuple, list)) and len(tls) == 2
    if not pair or not all(isinstance(x, (str, os.PathLike)) for x in tls):
        raise ValueError(f"tls: expected the paths of a certificate and of its key, got {tls!r}")
    certificate, key = (Path(x) for x in tls)
    _must_exist("certificate", certificate)
    _must_exist("key", key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ValueError(
            f"tls: {certificate} and {key} are no certificate and its key ({error.reason or error})"
            ": give PEM files that belong together, the certificate first"
        ) from error
    return context


def client_context(tls: Any) -> ssl.SSLContext | None:
    """For a client: True (the system's authorities), the path of one (PEM), or an SSLContext.

    Raises:
        FileNotFoundError, ValueError: as for a server.
    """
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is True:
        return ssl.create_default_context()
    if not isinstance(tls, (str, os.PathLike)):
        raise ValueError(
            f"tls: expected True, the path of an authority or an SSLContext, got {tls!r}"
        )
    authority = Path(tls)
    _must_exist("authority", authority)
    try:
        return ssl.create_default_context(cafile=authority)
    except ssl.SSLError as error:
        raise ValueError(
            f"tls: {authority} has no certificate of an authority ({error.reason or error}): give "
            "a PEM file"
        ) from error


def _must_exist(what: str, path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(
            f"tls: there is no {what} at {path.absolute()}: give the path of a PEM file"
        )
