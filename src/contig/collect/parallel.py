"""ParallelEnv: environments in processes of their own, with their arrays in shared memory.

parent   actions into the block, one byte to each child
child i  steps, writes its lane of the block, one byte back; at an episode's end its info, if
         somebody reads it
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import subprocess
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ..arguments import seconds
from ..batch import Batch
from ..errors import LayoutError, WorkerError
from ..layout import Layout, ShapeDtype
from ..process.spawn import Child, describe_exit
from .batched import BatchedEnv, check_lanes
from .places import say_moved
from .specs import Array, Spec, nest, spec_of_space
from .stepping import Leaves, Step

__all__ = ["COMMAND", "ParallelEnv", "shared_block"]

COMMAND = struct.Struct("<cq")  # what to do, and a seed (-1: none)
_START_S = 120.0  # until an environment is made
_STOP_S = 3.0


def shared_block(fd: int, spec: Spec, actions: Spec, lanes: int) -> Batch:
    """The arrays that a parent and its children share, over a descriptor's memory."""
    layout = _block_layout(spec, actions)
    return Batch(mmap.mmap(fd, layout.block_columns(lanes).nbytes), layout, (lanes,))


def _block_layout(spec: Spec, actions: Spec) -> Layout:
    leaves: dict[Any, ShapeDtype] = dict(actions.leaves)
    for number, leaf in enumerate(spec.leaves.values()):
        leaves["next", str(number)] = leaves["obs", str(number)] = leaf
    leaves["reward",] = ShapeDtype((), np.dtype(np.float64))
    leaves["terminated",] = leaves["truncated",] = ShapeDtype((), np.dtype(np.bool_))
    return Layout(nest(leaves))


class ParallelEnv(BatchedEnv):
    """n environments, each in a process of its own.

    Args:
        num_envs: n.
        make_env: makes one of them; or a list of n factories or environments.
        policy: as in GymEnv.
        step_timeout_s: an environment that is longer in one step or reset hangs.
        start_timeout_s: the same for the first reset and the first step, which may compile.

    Raises:
        WorkerError: a process died or failed, with its number, pid and traceback.
    """

    def __init__(
        self,
        num_envs: int,
        make_env: Callable[[], Any] | Any,
        *,
        policy: Any = None,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        super().__init__(num_envs, make_env, policy=policy)
        self._infos = False
        self._limits_s = (
            seconds("step_timeout_s", step_timeout_s),
            seconds("start_timeout_s", start_timeout_s),
        )

    def _made(self) -> _Children:
        if self._lanes is None:
            self._lanes = _Children(self._recipes, *self._limits_s)
            self._adopt(self._lanes.primers, self._lanes.marks_init)
        return self._lanes  # type: ignore[no-any-return]

    @property
    def spec(self) -> Spec:
        return self._made().spec

    @property
    def action_space(self) -> Any:
        return self._made().action_space

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [child.pid for child in self._made().children]

    def _reset(self, lanes: Array, seed: int | None) -> Leaves:
        self._was_reset = True
        seeds = [-1 if seed is None else seed + i for i in range(self.num_envs)]
        self._made().tell(b"r", [int(i) for i in np.flatnonzero(lanes)], seeds)
        return self._made().read("obs")

    def _step(self, action: Any) -> Step:
        children = self._made()
        spec = children.actions
        for path, value in zip(spec.paths, spec.checked(action, (self.num_envs,))):
            children.block[path][...] = value
        what = b"i" if self._infos else b"s"
        infos = children.tell(what, list(range(self.num_envs)), [-1] * self.num_envs)
        after, terminated = children.read("next"), children.block["terminated"].copy()
        truncated = children.block["truncated"].copy()
        obs = children.read("obs") if (terminated | truncated).any() else after
        reward = children.block["reward"].copy()
        return Step(after, reward, terminated, truncated, obs, infos=infos)

    def keep_infos(self) -> None:
        self._infos = True

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.close()
        self._lanes = None


class _Children:
    """The processes behind a ParallelEnv."""

    def __init__(self, made: list[Any], step_s: float, start_s: float) -> None:
        import cloudpickle

        self._step_s, self._start_s, self._limit_s = step_s, start_s, _START_S
        self._met: set[bytes] = set()  # commands that were given before

        self.children: list[Child] = []
        self._closer = weakref.finalize(self, _end, self.children)
        for recipe in made:
            child = Child("contig.collect.env_worker", environment={"OMP_NUM_THREADS": "1"})
            self.children.append(child)
            child.channel.line.settimeout(_START_S)
            child.give(cloudpickle.dumps(recipe))
        try:
            self._meet(len(made))
        except BaseException:
            self._closer()
            raise

    def _meet(self, lanes: int) -> None:
        import cloudpickle

        self._lines = [child.channel.line for child in self.children]
        said = []
        for number, child in enumerate(self.children):
            message = child.channel.receive()
            if message is None or "error" in message.content:
                self._fail(number, message.content["error"] if message else None)
            said.append(cloudpickle.loads(message.raw))
        specs = [Spec(*spec) for spec, *_ in said]
        check_lanes(specs)
        self.spec = specs[0]
        say_moved(self.spec.places)
        self.action_space: Any = said[0][1]
        self.primers: dict[Any, Array] = said[0][2]
        self.marks_init: bool = said[0][3]
        if self.action_space is None:
            raise LayoutError("environments of a ParallelEnv need an action_space")
        self.actions = spec_of_space(self.action_space, "action")
        layout = _block_layout(self.spec, self.actions)
        fd = os.memfd_create("contig-envs", os.MFD_CLOEXEC)
        os.ftruncate(fd, layout.block_columns(lanes).nbytes)
        self.block = shared_block(fd, self.spec, self.actions, lanes)
        for number, line in enumerate(self._lines):
            socket.send_fds(line, [struct.pack("<qq", number, lanes)], [fd])
        os.close(fd)

    def tell(self, what: bytes, lanes: list[int], seeds: list[int]) -> list[Any]:
        """Gives some children a command and waits for all of them; what some had to say beside."""
        said: list[Any] = [None] * len(self._lines)
        limit_s = self._step_s if what in self._met else self._start_s
        if limit_s != self._limit_s:
            self._limit_s = limit_s
            for line in self._lines:
                line.settimeout(limit_s)
        for lane in lanes:
            try:
                self._lines[lane].sendall(COMMAND.pack(what, seeds[lane]))
            except OSError:
                pass  # what it said last is read below
        for lane in lanes:
            try:
                answer = self._lines[lane].recv(1)
            except TimeoutError:
                where = self.children[lane].traceback()
                self.children[lane].kill()
                self._fail(lane, f"hangs for more than {limit_s} s:\n{where}")
            except OSError:
                answer = b""
            if answer == b"d":
                said[lane] = self._hear(lane)
            elif answer != b"k":
                message = self.children[lane].channel.receive() if answer else None
                self._fail(lane, message.content["error"] if message else None)
        self._met.add(what)
        return said

    def _hear(self, lane: int) -> Any:
        import cloudpickle

        message = self.children[lane].channel.receive()
        if message is None:
            self._fail(lane, None)
        return cloudpickle.loads(message.raw)

    def _fail(self, number: int, said: str | None) -> NoReturn:
        child = self.children[number]
        if said is None:
            try:
                said = describe_exit(child.process.wait(_STOP_S))
            except subprocess.TimeoutExpired:
                said = f"does not answer:\n{child.traceback()}"
                child.kill()
        raise WorkerError(f"environment {number} (pid {child.pid}) failed: {said}")

    def read(self, name: str) -> Leaves:
        """The lanes' observations, copied."""
        return Leaves(self.block[name, str(i)].copy() for i in range(len(self.spec.paths)))

    def close(self) -> None:
        self._closer()


def _end(children: list[Child]) -> None:
    for child in children:
        child.close()
    for child in children:
        child.end(_STOP_S)
