"""Leaves the same files each time: what its argument and the run's seed say."""

import json
import os
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SETTINGS = json.loads(Path(os.environ["SHARDLINE_RUN_JSON"]).read_text())["settings"]
OUTPUT = Path(os.environ["SHARDLINE_OUTPUT"])
LEVEL = int(sys.argv[1]) + SETTINGS["seed"] / 10

save_file({"weight": np.arange(6, dtype=np.float32) * LEVEL}, OUTPUT / "model.safetensors")
records = [{"step": n, "epoch": n // 4, "val_loss": LEVEL / n} for n in range(1, 9)]
(OUTPUT / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
figures = {"metrics": {"accuracy": LEVEL / 4, "loss": 1 / LEVEL}, "num_samples": 40}
(OUTPUT / "evaluation.json").write_text(json.dumps(figures))
