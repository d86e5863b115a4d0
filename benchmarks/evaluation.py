"""How much memory an evaluation takes, and how long, by rows and classes.

Real shards are evaluated by the real code with a linear model, in a process of its own whose peak of
resident memory is the kernel's figure: Python, torch and the shards' mapped pages count.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from safetensors.torch import save_file

from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.settings.run_settings import Data, Evaluation, RunSettings
from shardline.core.files import json_bytes, write_json
from shardline.data.build import build_shards, describe_part, seal
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table

LIMIT_BYTES = 1_000_000_000
CASES = ((100_000, 1000), (1_000_000, 10), (1_000_000, 1000), (1_000_000, 20_000))
SHARES = {"train": 0.3, "validation": 0.01, "test": 0.69}  # classes need rows to train on
SHARD_ROWS = 50_000
FEATURES = 16


def centres(num_classes: int) -> np.ndarray:
    """Return the middle of each class [C, features]."""
    return np.random.default_rng(1).normal(size=(num_classes, FEATURES)).astype(np.float32)


class Clouds(Source):
    """Rows around the middle of their class, so that near classes are confused."""

    def __init__(self, num_shards: int, num_classes: int) -> None:
        super().__init__(num_shards=num_shards)
        self._centres = centres(num_classes)

    @property
    def schema(self) -> Schema:
        """Features, and a name per class."""
        classes = tuple(f"class {index:05d}" for index in range(len(self._centres)))
        return Schema(
            feature_shape=(FEATURES,),
            feature_dtype="float32",
            task="classification",
            classes=classes,
        )

    def iter_tables(self, shard: int):
        """Yield a shard's rows."""
        generator = np.random.default_rng(shard)
        labels = generator.integers(0, len(self._centres), SHARD_ROWS)
        noise = generator.normal(0, 0.6, (SHARD_ROWS, FEATURES))
        ids = np.arange(shard * SHARD_ROWS, (shard + 1) * SHARD_ROWS)
        features = (self._centres[labels] + noise).astype(np.float32)
        yield Table(ids=ids, features=features, labels=labels)


class Nearest(pl.LightningModule):
    """Logits that grow with the nearness of each class's middle."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, num_classes)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C]."""
        return self.layer(features)


def prepare(folder: Path, num_rows: int, num_classes: int) -> None:
    """Write shards, of which about `num_rows` rows are held out, and a model."""
    source = Clouds(-(-int(num_rows / SHARES["test"]) // SHARD_ROWS), num_classes)
    built = build_shards(source, range(source.num_shards), SHARES, folder)
    manifest = seal(
        [describe_part("clouds", built, {})],
        dataset="clouds-0123456789ab",
        source=source,
        document={},
    )
    write_json(folder / "manifest.json", encode(manifest))
    middle = torch.from_numpy(centres(num_classes)) / 0.36  # of the noise's variance
    bias = -0.18 * (middle**2).sum(dim=1)
    save_file({"layer.weight": middle, "layer.bias": bias}, folder / "model.safetensors")


def measure(folder: Path, batch: int) -> None:
    """Evaluate, and print figures as JSON."""
    from shardline.training.evaluate import evaluate

    spec = RunSpec(
        run="nearest",
        model_class="benchmarks.evaluation:Nearest",
        settings=RunSettings(
            evaluation=Evaluation(batch=batch), data=Data(normalize="none", window_bytes=64 << 20)
        ),
    )
    before, started = peak_bytes(), time.perf_counter()
    result = evaluate(
        spec,
        model_file=folder / "model.safetensors",
        datasets=[DatasetPlace(manifest=folder / "manifest.json", shards=folder)],
    )
    figures = {
        "seconds": time.perf_counter() - started,
        "before": before,
        "peak": peak_bytes(),
        "json": len(json_bytes(encode(result))),
        "rows": result.num_samples,
        "accuracy": result.metrics["accuracy"],
    }
    print(json.dumps(figures))


def peak_bytes() -> int:
    """Return the most resident memory that this process has had."""
    # getrusage's figure would be that of the process that started it, where that was larger
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> int:
    """Measure each case; return 1 if one took more memory than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", type=int, nargs=2, metavar=("ROWS", "CLASSES"), action="append")
    parser.add_argument("--batch", type=int, default=1024, help="evaluation.batch")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.batch)
        return 0
    print("| rows | classes | seconds | memory before, MB | peak, MB | evaluation, kB | accuracy |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    is_met = True
    for num_rows, num_classes in options.case or CASES:
        with tempfile.TemporaryDirectory() as name:
            prepare(Path(name), num_rows, num_classes)
            command = [sys.executable, "-m", "benchmarks.evaluation", "--measure", name]
            command += ["--batch", str(options.batch)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout)
        print(
            f"| {found['rows']:,} | {num_classes:,} | {found['seconds']:.1f} | {found['before'] / 1e6:.0f} "
            f"| {found['peak'] / 1e6:.0f} | {found['json'] / 1e3:.0f} | {found['accuracy']:.3f} |",
            flush=True,
        )
        is_met &= found["peak"] < LIMIT_BYTES
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
