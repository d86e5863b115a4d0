"""Code that reads the length of a training is found where it can be reached, and nowhere else."""

import pytest

from shardline.identity import CodeIndex
from shardline.identity.length_reads import length_reads


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("n = self.trainer.max_epochs", ["self.trainer.max_epochs"]),
        ("n = trainer.estimated_stepping_batches", ["trainer.estimated_stepping_batches"]),
        ("n = getattr(trainer, 'max_steps')", ["getattr(trainer, 'max_steps')"]),
        ("n = trainer.fit_loop.epoch_progress", ["trainer.fit_loop"]),
        ("n = trainer.datamodule.total_steps", ["trainer.datamodule"]),
        ("n = len(self.trainer.datamodule.loader)", ["self.trainer.datamodule"]),
        ("n = self.datamodule.size", []),
        ("n = helper(trainer)", ["of.max_steps"]),
        ("n = self.max_epochs + self.hparams.max_epochs", []),
        ("self.max_epochs = 3", []),
        ("n = trainer.current_epoch + schedule.total_steps", []),
        ("n = 'max_epochs'", []),
    ],
)  # fmt: skip
def test_reads_of_the_length_are_found_where_they_are_reached(tmp_path, lines, found):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").write_text("")
    (tmp_path / "own/models.py").write_text(
        "from own.tools import helper\n"
        "class Base:\n"
        f"    def step(self, trainer, schedule):\n        {lines}\n"
        "class Net(Base):\n    pass\n"
        "class Other:\n    def step(self, trainer):\n        return trainer.max_epochs\n"
    )
    (tmp_path / "own/tools.py").write_text("def helper(of):\n    return of.max_steps\n")
    read = length_reads(CodeIndex([tmp_path]), ["own.models:Net", "installed.models:Net"])
    reached = [] if "helper" in lines else ["own.tools:helper reads of.max_steps"]
    assert [one for one in read if one not in reached] == [
        f"own.{'tools:helper' if 'helper' in lines else 'models:Base'} reads {one}" for one in found
    ]
