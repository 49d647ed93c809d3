"""One environment of a ParallelEnv: ``python -m contig.collect.env_worker SOCKET TRACE``."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any

import cloudpickle

from ..process.channel import Channel
from ..process.spawn import enter, receive_job
from ..process.trace import tell_failure
from .batched import make_lane
from .env import EnvBase
from .parallel import COMMAND, shared_block
from .places import quiet
from .specs import as_space, at_lane, nest, spec_of_space

__all__ = ["main"]


def _serve(env: EnvBase, channel: Channel) -> None:
    """Steps when told to, until the socket ends."""
    line = channel.line
    place, fds, _, _ = socket.recv_fds(line, 16, 1)
    if not fds:
        return
    lane, lanes = struct.unpack("<qq", place)
    actions = spec_of_space(env.action_space, "action")
    block = shared_block(fds[0], env.spec, actions, lanes)
    keys = range(len(env.spec.paths))
    after, before = [block["next", str(i)] for i in keys], [block["obs", str(i)] for i in keys]
    taken = {p: block[p] for p in actions.paths}
    single = actions.single
    while len(command := line.recv(COMMAND.size, socket.MSG_WAITALL)) == COMMAND.size:
        what, seed = COMMAND.unpack(command)
        info = None
        if what == b"r":
            obs = env.begin(None if seed < 0 else seed)
        else:
            step = env.advance(_action(taken, single, lane, env.action_space))
            for column, leaf in zip(after, step.next):
                column[lane] = leaf[0]
            block["reward"][lane] = step.reward[0]
            block["terminated"][lane] = step.terminated[0]
            block["truncated"][lane] = step.truncated[0]
            obs = step.obs
            if what == b"i" and (step.terminated[0] or step.truncated[0]):
                info = None if step.infos is None else step.infos[0]
        for column, leaf in zip(before, obs):
            column[lane] = leaf[0]
        if info is None:
            line.sendall(b"k")
        else:
            line.sendall(b"d")
            channel.send({}, cloudpickle.dumps(info))


def _action(columns: dict[Any, Any], single: bool, lane: int, space: Any) -> Any:
    tree = nest({p: c.copy() for p, c in columns.items()})["action"]
    tree = tree if single else as_space(space, tree)
    return at_lane(tree, slice(lane, lane + 1))  # type: ignore[arg-type]


def main() -> None:
    channel, _ = enter()
    quiet()
    ready = False
    try:
        env = make_lane(receive_job(channel))
        spec = (env.spec.leaves, env.spec.root, env.spec.sources)
        about = (spec, env.action_space, env.primers, env.marks_init)
        channel.send({}, cloudpickle.dumps(about))
        ready = True
        _serve(env, channel)
        env.close()
    except BaseException:
        try:
            if ready:
                channel.line.sendall(b"e")
        except OSError:
            pass
        tell_failure(channel)
        sys.exit(1)


if __name__ == "__main__":
    main()
