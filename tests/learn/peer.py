"""torchrl's estimators on arrays from a file; runs in a process of its own, without contig.

``python peer.py in.npz out.npz``: arrays are [T, B]; torchrl takes [B, T, 1].
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torchrl.objectives.value import functional as f


def main(given: str, out: str) -> None:
    x = np.load(given)

    def tensor(name: str) -> Any:
        return torch.from_numpy(x[name]).transpose(0, 1).unsqueeze(-1)

    gamma, lmbda = float(x["gamma"]), float(x["lmbda"])
    value, then = tensor("value"), tensor("next_value")
    ends = (tensor("reward"), tensor("done"), tensor("terminated"))
    advantage, target = f.generalized_advantage_estimate(gamma, lmbda, value, then, *ends)
    found = {
        "gae": advantage,
        "gae_target": target,
        "td0": f.td0_return_estimate(gamma, then, ends[0], ends[2]),
        "td_lambda": f.td_lambda_return_estimate(gamma, lmbda, then, *ends),
        "td1": f.td1_return_estimate(gamma, then, *ends),
    }
    log_rho = tensor("log_rho")
    vtrace = f.vtrace_advantage_estimate(
        gamma, log_rho, torch.zeros_like(log_rho), value, then, *ends, 1.5, 0.9
    )
    found["vtrace"], found["vtrace_target"] = vtrace
    arrays = {k: v.squeeze(-1).transpose(0, 1).numpy() for k, v in found.items()}
    np.savez(out, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
