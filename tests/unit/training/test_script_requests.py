"""What a script asks its rank by `shardline_io`: whether shards are damaged; and tells it: where it resumes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import shardline_io as io
from shardline.data.dataset import Dataset
from shardline.records.attempts import Attempt
from shardline.training.script_requests import answered, kept_until
from shardline_io import batches
from shardline_io.errors import DataError
from tests.support.script_rank import Project, as_rank


@pytest.mark.parametrize("verify", ["first", "always", "off"])
def test_a_flipped_byte_of_a_shard_is_found_before_its_rows_are_used(
    tmp_path: Path, verify: Any
) -> None:
    project = Project(tmp_path)
    dataset = Dataset(tmp_path / "manifest.json", tmp_path, verify=verify)
    (shard,) = tmp_path.glob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    message = rf"shard {shard} is damaged: its BLAKE3 digest is .*; .*shardline verify"
    with answered({"shard": dataset.verifier.check}) as descriptor:
        variables = {"REQUESTS": str(os.dup(descriptor)), "READS": json.dumps({"verify": verify})}
        with as_rank(project.folder, **variables):
            for reading in (io.train(), io.held_out("validation", batch=4)):
                if verify == "off":
                    assert list(reading)
                    continue
                with pytest.raises(DataError, match=message):
                    next(reading)


def test_a_rank_that_cannot_answer_does_not_leave_its_script_waiting(tmp_path: Path) -> None:
    told: list[Any] = []

    def fails(of: Any) -> None:
        told.append(of)
        raise RuntimeError("no space")

    project = Project(tmp_path)
    with (
        answered({"resumed": fails}) as descriptor,
        as_rank(project.folder, REQUESTS=str(os.dup(descriptor))),
    ):
        with io.checkpoint(3):
            pass
        with pytest.raises(DataError, match="RuntimeError: no space"):
            next(io.train())
        ((folder, step),) = [(saved.folder, saved.step) for saved in [io.resume()] if saved]
        assert told == [{"step": step, "saved_s": folder.stat().st_mtime}]
        batches.ask("of a later version", 1)
    with (
        answered({}) as descriptor,
        as_rank(project.folder, 1, 2, REQUESTS=str(os.dup(descriptor))),
    ):
        rank = batches._rank()
        assert next(io.train()).step == 4
    with pytest.raises(DataError, match="the rank that started this script does not answer"):
        assert rank is None or rank.ask("shard", 0)


def test_the_seconds_that_a_checkpoint_keeps_are_counted_by_attempt() -> None:
    def attempt(started: str, ended: str, lost_s: float | None = None) -> Attempt:
        hour = "2026-01-01T00:"
        return Attempt(
            host="n1", started=f"{hour}{started}Z", ended=f"{hour}{ended}Z", lost_s=lost_s
        )

    first = attempt("00:00", "01:00", 5.0)
    log = [first, attempt("02:00", "03:00"), attempt("04:00", "04:30"), attempt("05:00", "05:00")]
    saved_s = log[1].started_s + 40
    assert kept_until(log, 7, saved_s) == {1: 55.0, 2: 40.0, 3: 0.0}
    assert kept_until(log, 0, None) == {1: 0.0, 2: 0.0, 3: 0.0}
    assert kept_until(log, 7, None) == {1: 55.0, 2: 60.0, 3: 30.0}
