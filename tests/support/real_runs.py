"""Real runs for the report: scikit-learn models trained for a few hundred steps on digits and diabetes."""

import base64
import hashlib
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_diabetes, load_digits
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from shardline.report import RunFiles, TableEntry

HOSTILE = "<script>window.hacked=1</script>"
BATCH = 64


def split_parts(load):
    features, target = load(return_X_y=True)
    train, rest, train_y, rest_y = train_test_split(features, target, test_size=0.4, random_state=0)
    valid, test, valid_y, test_y = train_test_split(rest, rest_y, test_size=0.5, random_state=0)
    scaler = StandardScaler().fit(train)
    return (
        (scaler.transform(train), train_y),
        (scaler.transform(valid), valid_y),
        (scaler.transform(test), test_y),
    )


def digits_run(folder: Path, name: str, *, lr: float, hidden: tuple[int, ...], epochs=6, seed=7):
    train, valid, test = split_parts(load_digits)
    model = MLPClassifier(
        hidden_layer_sizes=hidden, learning_rate_init=lr, solver="sgd", random_state=seed
    )
    classes = list(range(10))

    def measure(part):
        probabilities = model.predict_proba(part[0])
        return {
            "loss": float(log_loss(part[1], probabilities, labels=classes)),
            "accuracy": float(accuracy_score(part[1], probabilities.argmax(axis=1))),
        }

    metrics = fit(model, train, valid, lr, epochs, measure, {"classes": classes})
    held_out = measure(test)
    counts = confusion_matrix(test[1], model.predict(test[0]), labels=classes).tolist()
    evaluation = {
        "task": "classification",
        "num_samples": len(test[1]),
        "metrics": held_out,
        "headline": {"metric": "accuracy", "value": held_out["accuracy"], "mode": "max"},
        "confusion": {"classes": [str(name) for name in classes], "counts": counts},
    }
    evaluation |= judge(model, test)
    return seal(
        folder, name, "digits", "mlp" if hidden else "linear", lr, metrics, evaluation, seed
    )


def judge(model, test) -> dict[str, Any]:
    """Return calibration and samples, as an evaluation records them."""
    probabilities, truth = model.predict_proba(test[0]), test[1]
    confidence, predicted = probabilities.max(axis=1), probabilities.argmax(axis=1)
    bins = []
    for low in np.arange(0, 1, 0.1):
        inside = (confidence > low) & (confidence <= low + 0.1)
        mean = [
            float(x[inside].mean()) if inside.any() else None
            for x in (confidence, predicted == truth)
        ]
        bins.append(
            {
                "low": low,
                "high": low + 0.1,
                "count": int(inside.sum()),
                "confidence": mean[0],
                "accuracy": mean[1],
            }
        )
    losses = -np.log(probabilities[np.arange(len(truth)), truth])
    samples = [
        {
            "row": int(row),
            "label": str(truth[row]),
            "predicted": str(predicted[row]),
            "confidence": float(confidence[row]),
            "loss": float(losses[row]),
            "image": draw(load_digits().images[row]),
        }
        for row in np.argsort(-losses)[:6]
    ]
    return {
        "calibration": {"bins": bins, "ece": 0.04},
        "samples": {"hardest": samples, "typical": samples[3:]},
    }


def draw(pixels) -> str:
    """Return pixels [8, 8] of 0 to 16 as a PNG's data URL."""
    file = io.BytesIO()
    Image.fromarray((pixels * 15).astype(np.uint8)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


DESCRIBED = [
    {
        "row": 1, "loss": 2.5, "image": draw(np.full((8, 8), 3)),
        "mask": {"true": draw(np.eye(8) * 9), "predicted": draw(np.eye(8)), "classes": {"1": "1"}},
        "boxes": {"true": [], "predicted": [{"at": [0.25, 0.5, 0.75, 1], "label": HOSTILE, "score": 0.5}]},
    },
    {"row": 2, "loss": 1.5, "text": {"prompt": f"مرحبا {HOSTILE}", "true": "a\nb", "predicted": "wide" * 99}},
]  # fmt: skip


def diabetes_run(folder: Path, name: str, *, lr: float, hidden: tuple[int, ...]):
    train, valid, test = split_parts(load_diabetes)
    model = MLPRegressor(hidden_layer_sizes=hidden, learning_rate_init=lr, random_state=7)

    def measure(part):
        error = float(mean_squared_error(part[1], model.predict(part[0])))
        return {"loss": error, "mse": error}

    metrics = fit(model, train, valid, lr, 20, measure, {})
    held_out = measure(test)
    evaluation = {
        "task": "regression",
        "num_samples": len(test[1]),
        "metrics": held_out,
        "headline": {"metric": "mse", "value": held_out["mse"], "mode": "min"},
        "reference": {"metric": "mse", "value": 5200.0, "meaning": "error of predicting the mean"},
        "measured_by": "model",
        "samples": {"hardest": DESCRIBED},
    }
    return seal(folder, name, "diabetes", "mlp", lr, metrics, evaluation)


def fit(model, train, valid, lr, epochs, measure, first_fit):
    records, step, begin = [], 0, time.monotonic()
    generator = np.random.default_rng(0)
    for epoch in range(epochs):
        for batch in np.array_split(generator.permutation(len(train[1])), len(train[1]) // BATCH):
            model.partial_fit(train[0][batch], train[1][batch], **first_fit)
            step += 1
            stamp = {"step": step, "epoch": epoch, "wall_s": round(time.monotonic() - begin, 3)}
            records.append({**stamp, "train_loss": float(model.loss_), "lr": lr})
        records.append({**stamp, **{f"val_{key}": v for key, v in measure(valid).items()}})
    return records


def seal(folder, name, dataset, model, lr, metrics, evaluation, seed=7) -> RunFiles:
    identity = hashlib.sha256(name.encode()).hexdigest()
    run = identity[:12]
    target = folder / identity[:12]
    target.mkdir(parents=True)
    settings = {
        "seed": seed,
        "nodes": 1,
        "devices": 2,
        "global_batch": BATCH,
        "optim": {"name": "sgd", "lr": lr},
    }
    documents = {
        "run": {
            "run": run,
            "dataset": {"id": hashlib.sha256(dataset.encode()).hexdigest()[:12]},
            "model": model,
            "settings": settings,
            "identity": identity,
        },
        "identity": {
            "settings": settings,
            "model": model,
            "versions": {"training": 2 if model == "mlp" else 1, model: 1},
            "code": {"model": model.ljust(12, "0")},
        },
        "evaluation": {"run": run, "split": "test", "identity": identity, **evaluation},
        "provenance": {
            "run": run,
            "seed": seed,
            "started": "2026-05-04T09:12:00Z",
            "ended": "2026-05-04T09:13:10Z",
            "duration_s": metrics[-1]["wall_s"],
            "attempts": 1,
            "world": {"world_size": 2, "nodes": 1, "launcher": "torchrun"},
            "devices": ["cpu", "cpu"],
            "software": {"python": "3.11.7", "torch": "2.13.0", "pytorch-lightning": "2.6.6"},
            "git": {"commit": "5f0c2d1e9ab34c77", "dirty": lr == 0.3, "diff_digest": "9be1"},
            "host": "node-01",
            "manifest_sha256": identity[::-1],
        },
    }
    for stem, document in documents.items():
        (target / f"{stem}.json").write_text(json.dumps(document))
    (target / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in metrics))
    return RunFiles(
        run=target / "run.json",
        identity=target / "identity.json",
        metrics=target / "metrics.jsonl",
        evaluation=target / "evaluation.json",
        provenance=target / "provenance.json",
        asked=TableEntry(
            key=run,
            names=(name,),
            dataset_names=(dataset,),
            varied={"optim.lr": lr, "model": model, "seed": seed},
        ),
    )


def real_runs(folder: Path) -> list[RunFiles]:
    return [
        *(
            digits_run(folder, f"digits-mlp_lr=0.1_seed={seed}", lr=0.1, hidden=(64,), seed=seed)
            for seed in (1, 2, 3)
        ),
        digits_run(folder, "digits-mlp_lr=0.3", lr=0.3, hidden=(64,)),
        digits_run(folder, "digits-mlp_lr=0.01", lr=0.01, hidden=(64,)),
        digits_run(folder, "digits-linear", lr=0.1, hidden=()),
        digits_run(folder, HOSTILE, lr=0.001, hidden=(16,), epochs=2),
        diabetes_run(folder, "diabetes-mlp_lr=0.01", lr=0.01, hidden=(32,)),
        diabetes_run(folder, "diabetes-mlp_lr=0.1", lr=0.1, hidden=(32,)),
    ]
