"""After `make run`: the shipped runs reached what the README promises. Used by .ci/run."""

import json
import sys
from pathlib import Path

AT_LEAST = {"linear": 0.95, "mlp_lr=0.001": 0.95, "mlp_lr=0.003": 0.95, "cnn": 0.97}
NEAR_REFERENCE = 0.03


def main() -> int:
    latest = Path("results/latest")
    failures = []
    for link in sorted(latest.iterdir()):
        evaluation = json.loads((link / "evaluation.json").read_text())
        accuracy, reference = evaluation["metrics"]["accuracy"], evaluation["reference"]
        least = reference["value"] - NEAR_REFERENCE if reference else AT_LEAST[link.name]
        print(f"{link.name}: held-out accuracy {accuracy:.4f}, at least {least:.4f} expected")
        if accuracy < least:
            failures.append(link.name)
    missing = {*AT_LEAST, "linear-synthetic"} - {link.name for link in latest.iterdir()}
    return 1 if failures or missing else 0


if __name__ == "__main__":
    sys.exit(main())
