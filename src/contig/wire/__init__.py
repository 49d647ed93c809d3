"""What clients and servers say to each other: bytes in, bytes out, no sockets. docs/design/wire.md.

frames      types of frames, and what is in them
fields      of trajectories, as frames have them
handshake   hello, greeting, OPEN, ACCEPT: both sides, with their proofs
versions    of the protocol, and what the older one cannot carry
pulse       when to say something, and when the other side is lost
tls         contexts from what users give
announce    the same for shared memory: where a server of this host says how to attach to it
"""

from __future__ import annotations

import logging

from .fields import *  # noqa: F403  (what its __all__ has)
from .frames import *  # noqa: F403
from .handshake import *  # noqa: F403
from .pulse import *  # noqa: F403
from .versions import *  # noqa: F403

log = logging.getLogger("contig.transport")  # of clients and servers: users know it by this name
