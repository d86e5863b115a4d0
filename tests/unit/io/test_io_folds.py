"""A program that reads by `shardline_io` has the rows, statistics and order of its fold, as a Lightning run."""

from pathlib import Path

import numpy as np
import pytest

import shardline_io as io
from shardline.config.resolved import DatasetPlace
from shardline.config.settings.run_settings import Data, RunSettings, Trainer
from shardline.data.run_batches import RunBatches
from shardline_io import batches as io_batches
from shardline_io.errors import DataError
from tests.support.columns import manifest_of
from tests.support.script_rank import as_rank, world_of, write_run
from tests.unit.data.test_folds import Grouped, Rows

RANDOM = np.random.default_rng(1)
ROWS = Rows(
    RANDOM.normal(size=(120, 2)),
    RANDOM.integers(0, 2, 120),
    np.arange(120),
    {"folds": 3, "validation": 0.2},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("folds")
    manifest_of(Grouped(ROWS), made, ROWS.splits)
    return made


@pytest.mark.parametrize("weights", [None, "balanced"], ids=["own", "by shardline"])
@pytest.mark.parametrize("fold", [0, 2])
def test_batches_of_a_fold_are_those_of_a_lightning_run(
    folder: Path, fold: int, weights: str | None
) -> None:
    wanted = RunSettings(
        global_batch=8, fold=fold, data=Data(class_weights=weights), trainer=Trainer(max_epochs=2)
    )
    write_run(folder, wanted)
    place = DatasetPlace(manifest=folder / "manifest.json", shards=folder, fold=fold)
    of_run = RunBatches([place], wanted, verify="off")
    stream, _ = of_run.train(world_of(0, 1), num_epochs=2)
    expected = [stream.batch_ids.tolist() for epoch in range(2) for _ in stream.batches(epoch)]
    held, _ = of_run.held_out("test", batch=32, num_epochs=1)
    tested = [i for _ in held.batches() for i in held.batch_ids.tolist()]
    with as_rank(folder, WINDOW_ROWS=str(of_run.datasets[0].window_rows(wanted.data.window_bytes))):
        assert [batch.ids.tolist() for batch in io.train(0)] == expected
        assert [i for batch in io.test() for i in batch.ids.tolist()] == tested
        manifest = io.manifest()
        assert manifest["splits"] == of_run.manifest.splits
        train = ROWS.features[sorted({i for ids in expected for i in ids})] if not weights else None
        if train is not None and len(train) == manifest["splits"]["train"]:
            found = manifest["statistics"]["features"]["mean"]
            np.testing.assert_allclose(found, train.mean(axis=0))
    assert not {*tested} & {i for ids in expected for i in ids}


def test_a_run_of_all_folds_has_no_test_rows_without_a_fixed_set(folder: Path) -> None:
    write_run(folder, RunSettings(global_batch=8, trainer=Trainer(max_epochs=1)))
    with as_rank(folder):
        assert io.manifest()["splits"]["test"] == 0
        with pytest.raises(DataError, match="no rows in the split 'test'"):
            next(io_batches.test())
