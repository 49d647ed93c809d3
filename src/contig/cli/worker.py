"""``contig worker``: steps environments with a policy, and sends the rows to a server elsewhere.

examples:
  contig worker 10.0.0.5:5000 --env CartPole-v1                         random actions
  contig worker 10.0.0.5:5000 --env pkg.envs:make_env --policy pkg.agent:Policy --envs 8
  contig worker 10.0.0.5:5000 --env pkg.envs:make_env --processes 4 --table online --tls ca.pem
  contig worker --env pkg.envs:make_env --policy pkg.agent:Policy --example > row.json

An import path is package.module:name; modules of the working directory are found, too. --env names
what makes an environment (any that a Collector takes), or is the id of a Gymnasium one. --policy
names a policy, or a function or class without arguments that makes one. Weights that a learner
publishes at the server are taken as they come; until then the policy acts on its own.

A lost server is waited for (--reconnect), and nothing is lost or sent twice. SIGTERM and Ctrl-C end
it in good order: what was collected is sent and acked first.

What an environment or a policy raises ends it: one line says where and what, --traceback all of it.

exit status: 0 ended as it was told; 2 not started, the server was gone for too long, or the
environment or the policy failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..client import RemoteReplayBuffer
from ..collect import BaseCollector, Collector, GymEnv, MultiCollector, SerialEnv
from ..collect.collection import CollectionSpec
from ..collect.exploration import seed_torch
from ..collect.roller import first_rows
from ..collect.vector import as_env
from ..errors import ConnectionClosedError, LayoutError, WorkerError
from ..lazy import install_hint
from ..server.logs import logging_lines
from .address import add_client_arguments, client_arguments
from .failure import OK, CommandFailed, ends, fail, one_line
from .import_path import load, load_made, made, raised
from .signals import ToldToEnd, end, handling
from .values import number, text, whole

__all__ = ["add_arguments", "run"]

log = logging.getLogger("contig.worker")

_STEPS = 32  # of each environment, between two appends
_SAY_S = 10.0
# Options that say how rows are collected and sent, and their defaults.
_OF_COLLECTION = {
    "table": None, "token_file": None, "tls": None, "processes": 1, "frames_per_batch": None,
    "frames": -1, "seed": None, "reconnect": 300.0, "log_json": False,
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_client_arguments(parser, needed=False)  # none is needed to say what a row is
    what = parser.add_argument_group("what it does")
    what.add_argument(
        "--env", type=text, required=True, metavar="PATH", help="import path, or Gymnasium id"
    )
    what.add_argument(
        "--policy", type=text, metavar="PATH", help="import path (default: random actions)"
    )
    what.add_argument(
        "--envs", type=whole(1, 1 << 16), default=1, metavar="N", help="of each process"
    )
    what.add_argument(
        "--processes", type=whole(1, 1024), default=1, metavar="N", help="that step them"
    )
    steps = f"between two appends, of all envs of a process (default: {_STEPS} of each)"
    what.add_argument("--frames-per-batch", type=whole(1), metavar="N", help=steps)
    what.add_argument(
        "--frames", type=frames, default=-1, metavar="N", help="then it ends; -1: never"
    )
    what.add_argument(
        "--seed", type=whole(0, (1 << 32) - 1), metavar="N",
        help="of the first env (default: any)",
    )  # fmt: skip
    what.add_argument(
        "--reconnect", type=number(0), default=300.0, metavar="SECONDS",
        help="how long a lost server is waited for",
    )  # fmt: skip
    what.add_argument(
        "--example", action="store_true",
        help="print what a row is, for contig serve --example, and end",
    )  # fmt: skip
    what.add_argument("--log-json", action="store_true", help="log lines as JSON")


def frames(word: str) -> int:
    """How many frames to collect; -1: it never ends."""
    return -1 if word == "-1" else whole(1)(word)


def run(args: argparse.Namespace) -> int:
    """Collects until it is told to end; returns the exit status."""
    try:
        with handling(end, signal.SIGTERM, signal.SIGINT):
            return _run(args)
    except ToldToEnd:
        return OK  # before there was anything to lose


def _run(args: argparse.Namespace) -> int:
    if args.server is None and not args.example:
        fail("which server? Give HOST:PORT, or --example for what a row is")
    if args.example:
        _check_example(args)
    make_env = _env_of(args.env)
    policy = None if args.policy is None else load_made(args.policy, "--policy")
    env = made(lambda: as_env(_envs(make_env, args.envs)), args.env, "--env")
    seed_torch(args.seed)
    try:
        layout = _row_layout(env, policy)
        if args.example:
            print(json.dumps(layout.to_json()))
            return OK
        with logging_lines("info", args.log_json):
            remote = _connect(args, layout)
            return _work(args, remote, partial(_collector, args, make_env, env, policy, remote))
    except LayoutError as error:
        fail(one_line(error))
    except WorkerError as error:  # of another process, whose traceback it has
        raise CommandFailed(f"{_users(args)}: {ends(error)}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, (CommandFailed, BrokenPipeError)):
            raise
        raise CommandFailed(f"{_users(args)}: {raised(error)}") from error


def _users(args: argparse.Namespace) -> str:
    """Whose code is stepped."""
    return f"--env {args.env}" + ("" if args.policy is None else f" --policy {args.policy}")


def _check_example(args: argparse.Namespace) -> None:
    """Refuses what would have no effect: no server is asked, and no row sent."""
    if args.server is not None:
        fail(f"{args.server[0]}:{args.server[1]} has no effect with --example: no server is asked")
    for option, default in _OF_COLLECTION.items():
        if getattr(args, option) != default:
            flag = "--" + option.replace("_", "-")
            fail(f"{flag} has no effect with --example: nothing is collected")


def _connect(args: argparse.Namespace, layout: Any) -> RemoteReplayBuffer:
    try:
        told = client_arguments(args)
        return RemoteReplayBuffer(**told, data_sample=layout, reconnect_s=args.reconnect)
    except (ValueError, OSError) as error:
        fail(one_line(error))


def _work(
    args: argparse.Namespace, remote: RemoteReplayBuffer, make: Callable[[], BaseCollector]
) -> int:
    collector: BaseCollector | None = None
    try:
        try:
            collector = make()
            _collect(collector, args, remote)
        except ToldToEnd:
            log.info("told to end", extra={"event": "stop"})
        return OK
    except ConnectionClosedError as error:
        fail(one_line(error))
    finally:
        with handling(signal.SIG_IGN, signal.SIGTERM, signal.SIGINT):
            _end(collector, remote)


def _env_of(text: str) -> Any:
    """What makes an environment."""
    if ":" in text:
        return load(text, "--env")
    try:
        import gymnasium
    except ImportError as error:
        fail(f"--env {text}: {error}: {install_hint('gymnasium')}")
    try:
        gymnasium.spec(text)
    except gymnasium.error.Error as error:
        fail(f"--env {text}: {error}")
    return partial(GymEnv, text)


def _envs(make_env: Any, count: int) -> Any:
    return make_env if count == 1 else SerialEnv(count, make_env)


def _row_layout(env: Any, policy: Any) -> Any:
    """What a row will be like, by one step of the environment."""
    registers = policy is not None
    spec = CollectionSpec(policy=policy, frames_per_batch=1, register_primers=registers)
    return first_rows(env, spec).layout


def _collector(
    args: argparse.Namespace, make_env: Any, env: Any, policy: Any, remote: RemoteReplayBuffer
) -> BaseCollector:
    options: dict[str, Any] = {
        "frames_per_batch": args.frames_per_batch or _STEPS * env.num_envs,
        "total_frames": args.frames,
        "replay_buffer": remote,
        "auto_register_policy_transforms": policy is not None,
        "seed": args.seed,
    }
    if args.processes == 1:
        return Collector(env, policy, **options)
    env.close()  # each process makes its own
    envs = [_envs(make_env, args.envs) for _ in range(args.processes)]
    return MultiCollector(envs, policy, sync=False, max_restarts=args.processes, **options)


def _collect(
    collector: BaseCollector, args: argparse.Namespace, remote: RemoteReplayBuffer
) -> None:
    """Until all frames are there; says from time to time how it goes."""
    host, port = args.server
    told = {"event": "start", "server": f"{host}:{port}", "table": remote.table}
    log.info("collecting for %s:%d, table %s", host, port, remote.table, extra=told)
    print(f"collecting for {host}:{port} table {remote.table}", flush=True)
    said = time.monotonic()
    for batches, _ in enumerate(collector, 1):
        if time.monotonic() - said >= _SAY_S:
            said = time.monotonic()
            version = getattr(collector, "policy_version", None)
            log.info("%d batches, policy version %s", batches, version, extra={"event": "progress"})


def _end(collector: BaseCollector | None, remote: RemoteReplayBuffer) -> None:
    """Lets go of everything; what was collected is acked first."""
    failed = sys.exc_info()[0] is not None
    try:
        if collector is not None:
            collector.shutdown()
        remote.close(1.0 if failed else 30.0)
    except (ConnectionError, TimeoutError) as error:
        if not failed:
            raise CommandFailed(one_line(error)) from None
    if not failed:
        print("ended: everything that was collected is at the server", flush=True)
