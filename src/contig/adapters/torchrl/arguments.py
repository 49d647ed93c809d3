"""Arguments of TorchRL's that mean nothing here, or that say the same in another way."""

from __future__ import annotations

from typing import Any

import torch

from .instead import only_theirs

__all__ = ["device_of", "made", "refused", "seed_of", "without_effect"]


def without_effect(*given: Any) -> None:
    """Arguments that only say how TorchRL does something: what comes out is the same."""


def refused(**given: tuple[Any, str]) -> None:
    """Raises TypeError for arguments whose meaning would be lost: each with what to do instead."""
    for name, (value, hint) in given.items():
        if value is not None and value is not False:
            raise TypeError(f"{name}={value!r}: contig has no such thing: {hint}")


def made(given: Any, kind: type, what: str, hint: str) -> Any:
    """An object, or what a factory makes of it, as TorchRL takes either.

    Raises:
        TypeError: it is none of this kind.
    """
    if given is not None and not isinstance(given, kind) and callable(given):
        given = given()
    if given is None or isinstance(given, kind):
        return given
    name, whose = type(given).__name__, ""
    if type(given).__module__.startswith("torchrl"):
        whose = " of TorchRL's own"
        hint = only_theirs(name) or hint
    raise TypeError(f"{what}: expected one of contig's, got {name}{whose}; {hint}")


def device_of(device: Any) -> Any:
    """Where samples go: None if they are there already."""
    return None if device is None or str(device) in ("cpu", "auto") else torch.device(device)


def seed_of(generator: torch.Generator | None) -> int:
    """A seed for samplers, which have random numbers of their own. TorchRL's draw from the given
    generator, or torch's: what that would say next, without taking it, so that the rest of a script
    goes on as without us."""
    ahead = torch.Generator()
    ahead.set_state(torch.get_rng_state() if generator is None else generator.get_state().cpu())
    return int(torch.randint(2**62, (), generator=ahead))
