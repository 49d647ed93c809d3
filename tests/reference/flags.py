"""The three flags of a step from those that are given. done = terminated | truncated."""

from __future__ import annotations

NAMES = ("done", "terminated", "truncated")


def complete(given: dict[str, bool]) -> dict[str, bool] | None:
    """All three, or None if those given disagree. Only `done`: it was a termination."""
    done, terminated, truncated = (given.get(name) for name in NAMES)
    if done is None:
        done = bool(terminated) or bool(truncated)
    if terminated is None:
        terminated = done and not truncated
    if truncated is None:
        truncated = done and not terminated
    if len(given) == 3 and done != (terminated or truncated):
        return None
    return dict(zip(NAMES, (done, terminated, truncated)))
