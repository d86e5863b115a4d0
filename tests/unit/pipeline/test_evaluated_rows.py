"""A run that cannot be evaluated is not trained."""

import json
from pathlib import Path

import pytest

from shardline.core.errors import DataError
from shardline.core.files import write_json
from shardline.pipeline import training
from tests.support.fake_project import FakeProject


def test_a_run_without_rows_to_evaluate_is_not_trained(
    fake: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.seal_all()
    dataset = fake.run("net").dataset
    manifest = json.loads(dataset.manifest.read_text())
    write_json(dataset.manifest, manifest | {"splits": {**manifest["splits"], "test": 0}})
    monkeypatch.setattr(training, "start_ranks", None)
    sentence = "the test split has no rows to evaluate net; .*evaluation.split: validation"
    with pytest.raises(DataError, match=sentence):
        training.train(fake.plan("net"), Path("log"), str(fake.run("net").model), {})
