"""Waste of best-fit packing beside Grain's, for rows of log-normal lengths.

Grain packs a stream into a number of open packs; Shardline plans each group of rows at once. Both cut
rows that are longer than a pack before: Grain is given the parts. Grain is no dependency of
Shardline: install `grain` into an environment that has Shardline's packages too.
"""

import argparse
import time

import numpy as np

from shardline_io.order.best_fit import plan_packs

LENGTHS = {  # mean and deviation of the logarithm, values of a pack
    "short": (5.5, 1.2, 1024),
    "medium": (6.0, 1.0, 2048),
    "long": (7.0, 1.3, 4096),
}
BINS = (30, 200)  # Grain's packs that are open at a time


def grain_packs(lengths: np.ndarray, length: int, bins: int) -> int:
    """Return how many packs Grain makes."""
    import grain
    from grain.experimental import BestFitPackIterDataset

    rows = grain.MapDataset.source([{"tokens": np.ones(n, np.uint8)} for n in lengths])
    packed = BestFitPackIterDataset(
        rows.to_iter_dataset(), length_struct={"tokens": length}, num_packing_bins=bins
    )
    return sum(1 for _ in packed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--alone", action="store_true", help="without Grain")
    arguments = parser.parse_args()
    print("| lengths | pack | Shardline | seconds | Grain, by open packs |")
    print("| --- | --- | --- | --- | --- |")
    for name, (mean, deviation, length) in LENGTHS.items():
        drawn = np.random.default_rng(0).lognormal(mean, deviation, arguments.rows)
        lengths = np.maximum(1, drawn.astype(np.int64))
        start = time.perf_counter()
        plan = plan_packs(lengths, length)
        seconds = time.perf_counter() - start
        parts = np.concatenate([np.minimum(n - np.arange(0, n, length), length) for n in lengths])
        peers = []
        for bins in () if arguments.alone else BINS:
            begin = time.perf_counter()
            packs = grain_packs(parts, length, bins)
            waste = 1 - lengths.sum() / (packs * length)
            peers.append(f"{bins}: {waste:.3%} in {time.perf_counter() - begin:.1f} s")
        waste = 1 - lengths.sum() / (len(plan.used) * length)
        print(f"| {name} | {length:,} | {waste:.3%} | {seconds:.2f} | {'; '.join(peers)} |")


if __name__ == "__main__":
    main()
