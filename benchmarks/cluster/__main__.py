"""Predicts what clusters of 1 to 1,000 nodes do, and compares with 1 to 3 raylets of this machine.

    python -m benchmarks.cluster                        some two minutes
    python -m benchmarks.cluster --quick                shorter, and less exact
    python -m benchmarks.cluster --network-gbit 100 --cores 64 --steps-per-s 200 --weights-mb 50
    python -m benchmarks.cluster --no-cluster           constants and predictions only

The raylets share this machine's cores: rates of rows do not grow beyond these, which the model is
told, and answers of shards wait for one another, which it is not.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from benchmarks.cluster import constants, local
from benchmarks.cluster.model import Constants, Rate, batch_parts, predict

SIZES = (1, 2, 3, 10, 30, 100, 300, 1000)
CALL_S, REQUEST_S = 1e-3, 2e-4  # if there is no cluster to measure them with


def _rate(rate: Rate) -> str:
    digits = 0 if rate.per_s >= 100 else 2
    return f"{rate.per_s:>12,.{digits}f} {rate.bottleneck:<13}"


def measured_constants(given: argparse.Namespace) -> Constants:
    seconds = 0.5 if given.quick else 2.0
    return Constants(
        row_bytes=constants.row_bytes(),
        copy_bytes_per_s=constants.copy_bytes_per_s(seconds),
        shared_rows_per_s=constants.shared_rows_per_s(seconds),
        tcp_rows_per_s=constants.tcp_rows_per_s(seconds),
        steps_per_s=given.steps_per_s or constants.steps_per_s(seconds),
        sample_s=constants.sample_s(given.batch, seconds),
        call_s=CALL_S,
        request_s=REQUEST_S,
        network_bytes_per_s=given.network_gbit * 1e9 / 8,
        weights_bytes=given.weights_mb * 1e6,
        cores=given.cores,
        batch=given.batch,
    )


def show_constants(c: Constants) -> None:
    print(
        f"row {c.row_bytes} B; copy {c.copy_bytes_per_s / 1e9:.1f} GB/s; "
        f"append, shared memory {c.shared_rows_per_s / 1e6:.2f} M rows/s a core, "
        f"TCP {c.tcp_rows_per_s / 1e6:.2f} M rows/s a connection;\n"
        f"environments {c.steps_per_s:,.0f} steps/s a core; "
        f"sample {c.batch} of one tape {c.sample_s * 1e6:.0f} us; "
        f"Ray call {c.call_s * 1e6:.0f} us, each more {c.request_s * 1e6:.0f} us;\n"
        f"given: network {c.network_bytes_per_s * 8 / 1e9:g} Gbit/s, {c.cores} cores a node, "
        f"weights {c.weights_bytes / 1e6:g} MB"
    )


def show_predictions(c: Constants) -> None:
    print(f"\n{'nodes':>6} | {'rows/s into shards':<26} | {'rows/s into one table':<26} | "
          f"{f'batches/s of {c.batch}':<26} | {'versions/s':<26}")  # fmt: skip
    for nodes in SIZES:
        p = predict(c, nodes)
        rates = " | ".join(_rate(r) for r in (p.ingest, p.central, p.batches, p.weights))
        print(f"{nodes:>6} | {rates}")


def compare(c: Constants, seconds: float) -> Constants:
    """Runs 1 to 3 raylets; returns the constants with those of Ray."""
    cores = len(os.sched_getaffinity(0))
    lines = []
    with local.cluster(3) as nodes:
        c = replace(c, call_s=local.call_s(seconds), request_s=local.request_s(seconds))
        for k in (1, 2, 3):
            found = local.measure(nodes[:k], c.batch, seconds)
            rows = min(k, cores) * c.shared_rows_per_s
            parts = batch_parts(c, k)
            batch_s = parts["gather"] + parts["requests"] + parts["latency"]
            lines.append(
                f"{k:>6} | {rows / 1e6:>9.2f} {found.rows_per_s / 1e6:>9.2f} "
                f"{found.rows_per_s / rows:>6.2f} | {batch_s * 1e6:>9.0f} "
                f"{found.batch_s * 1e6:>9.0f} {found.batch_s / batch_s:>6.2f}"
            )
    print(f"\nraylets on this machine ({cores} cores): predicted, measured, measured / predicted")
    print(f"{'nodes':>6} | {'M rows/s added':^26} | {'us a batch, not prefetched':^26}")
    print("\n".join(lines))
    return c


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-cluster", action="store_true", help="only this process")
    parser.add_argument("--network-gbit", type=float, default=10.0)
    parser.add_argument("--cores", type=int, default=32, help="of a node")
    parser.add_argument("--steps-per-s", type=float, help="of a core; measured on CartPole if none")
    parser.add_argument("--weights-mb", type=float, default=10.0)
    parser.add_argument("--batch", type=int, default=256)
    given = parser.parse_args()
    c = measured_constants(given)
    if not given.no_cluster:
        c = compare(c, 1.0 if given.quick else 4.0)
    print()
    show_constants(c)
    show_predictions(c)


if __name__ == "__main__":
    main()
