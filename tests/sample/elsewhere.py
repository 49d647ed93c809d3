"""A shard whose answers come later, or never."""

from __future__ import annotations

from typing import Any

from contig.replay.shards import Later, ShardLost, ShardReader

__all__ = ["Elsewhere"]


class Elsewhere:
    """Asks a reader, as a shard of another node would.

    Attributes:
        dead: it does not answer any more; what it was asked is not done.
    """

    def __init__(self, reader: ShardReader) -> None:
        self.reader, self.number, self.dead = reader, reader.number, False

    def __getattr__(self, name: str) -> Any:
        return lambda *given: _Answer(self, name, given)


class _Answer(Later):
    def __init__(self, shard: Elsewhere, name: str, given: Any) -> None:
        self.shard, self.name, self.given = shard, name, given
        self.found = None if shard.dead else getattr(shard.reader, name)(*given)

    def get(self) -> Any:
        if self.shard.dead:
            raise ShardLost("gone")
        return self.found
