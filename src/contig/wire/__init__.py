"""What clients and servers say to each other: bytes in, bytes out, no sockets. docs/design/wire.md.

frames      types of frames, and what is in them
handshake   hello, greeting, OPEN, ACCEPT: both sides, with their proofs
pulse       when to say something, and when the other side is lost
tls         contexts from what users give
announce    the same for shared memory: where a server of this host says how to attach to it
"""

from __future__ import annotations

import logging

from .frames import *  # noqa: F403  (what its __all__ has)
from .handshake import *  # noqa: F403
from .pulse import *  # noqa: F403

log = logging.getLogger("contig.transport")  # of clients and servers: users know it by this name
