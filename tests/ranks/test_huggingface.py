"""A sharded model of transformers under the real launcher: killed and stopped, it ends as if nothing had been."""

import json
import os
import random
import signal
from dataclasses import replace
from typing import Any

import pytest

from shardline.checkpoints.folder import last_step, list_saved
from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.ledger import read_ledger
from shardline.records.base import encode, read_record
from shardline.records.runs import ResolvedRun
from shardline.training.evaluate import evaluate
from tests.support.processes import end_of_ranks, wait_until
from tests.support.ranks import Ranks

SOURCE = {
    "type": "jsonl", "files": ["rows.jsonl"], "tokenize": {"tokens": "text"}, "label": "label",
    "num_classes": 3,
}  # fmt: skip
ROW = {
    "dataset": "texts", "model": "hf:AutoModelForSequenceClassification", "devices": 2, "strategy": "fsdp",
    "global_batch": 8, "trainer.max_epochs": 5, "optim.lr": 0.01, "model_args.config.model_type": "gpt2",
    "model_args.config.vocab_size": 256, "model_args.config.n_embd": 16, "model_args.config.n_layer": 1,
    "model_args.config.n_head": 2,
}  # fmt: skip


def _evaluation(ranks: Ranks, name: str) -> dict[str, Any]:
    spec = RunSpec.of(read_record(ranks.run_json, ResolvedRun, remedy=""))
    found = evaluate(
        spec, model_file=ranks.results(name) / "model.safetensors", has_test_step=True,
        datasets=[DatasetPlace(manifest=ranks.manifest, shards=ranks.shards)],
    )  # fmt: skip
    return encode(found)


def _records(ranks: Ranks, name: str, killed: int) -> list[dict[str, Any]]:
    """Return the records without seconds, and without those of a step that may be saved and not yet recorded."""
    lines = (ranks.root / name / "work/metrics.jsonl").read_text().splitlines()
    records = [{**json.loads(line), "wall_s": 0} for line in lines]
    return [record for record in records if record["step"] != killed]


@pytest.mark.rotating
def test_a_model_of_transformers_ends_as_if_nothing_had_killed_or_stopped_it(prepare, tmp_path):
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcdefgh", k=1 + n % 12)) for n in range(100)]
    rows = [{"text": text, "label": n % 3} for n, text in enumerate(texts)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ranks = prepare(3, datasets={"texts": {"source": SOURCE, "shards": 2}}, **ROW)
    ranks.train("whole")
    folder = ranks.root / "broken/work/checkpoints"
    killed = ranks.kill_after("broken", 6)
    assert len([*list_saved(folder)[0].path.glob("shard-*")]) == 2, "each rank writes a shard"
    process = replace(ranks, is_by_torchrun=True).start("broken")
    wait_until(lambda: last_step(folder) >= killed + 6, process)
    os.kill(process.pid, signal.SIGTERM)
    assert f"resuming from step {killed}" in end_of_ranks(process)
    assert process.returncode != 0
    stopped = last_step(folder)
    assert f"resuming from step {stopped}" in ranks.train("broken")

    assert ranks.provenance("broken")["attempts"] == 3
    assert ranks.model("broken") == ranks.model("whole")
    assert _records(ranks, "broken", killed) == _records(ranks, "whole", killed)
    ledgers = [read_ledger(ranks.root / name / "work/ledger") for name in ("broken", "whole")]
    assert ledgers[0] == ledgers[1], "every step of both has the same samples"
    evaluations = [_evaluation(ranks, name) for name in ("broken", "whole")]
    assert evaluations[0] == evaluations[1]
    assert "test_accuracy" in evaluations[0]["metrics"]
