"""Callbacks in a run's settings: names, spellings and what counts in the identity."""

from typing import Any

import pytest
from pytorch_lightning import callbacks as lightning

from shardline.config.callbacks import LIGHTNING_CALLBACKS
from shardline.errors import ConfigError
from tests.support.fake_project import FakeProject

OWN = """
from pytorch_lightning import Callback

class EMA(Callback):
    def __init__(self, decay=0.99):
        self.decay = decay

class Other(Callback):
    pass
"""


@pytest.fixture
def own(fake: FakeProject) -> FakeProject:
    fake.workspace.write("mypkg/callbacks.py", OWN)
    del fake.rows[1]
    return fake


def document(own: FakeProject, *callbacks: Any) -> Any:
    own.config["defaults"]["callbacks"] = list(callbacks)
    return own.run("net").document


def test_a_callback_has_one_identity_in_each_spelling_and_place(own: FakeProject) -> None:
    first = document(own, {"type": "mypkg.callbacks:EMA", "decay": 0.9})
    assert first["settings"]["callbacks"] == [{"decay": 0.9}]
    assert first["code"].keys() == {"model", "callbacks.0"}
    assert document(own, {"_target_": "mypkg.callbacks.EMA", "decay": 0.9}) == first
    own.workspace.write("elsewhere.py", OWN)
    assert document(own, {"class_path": "elsewhere.EMA", "init_args": {"decay": 0.9}}) == first
    assert document(own, {"type": "mypkg.callbacks:EMA", "decay": 0.8}) != first
    assert document(own, "mypkg.callbacks:Other", {"type": "mypkg.callbacks:EMA", "decay": 0.9}) != first  # fmt: skip


def test_code_of_a_callback_counts(own: FakeProject) -> None:
    first = document(own, "mypkg.callbacks:EMA")
    own.workspace.write("mypkg/callbacks.py", OWN + "\nclass More(Callback):\n    pass\n")
    assert own.run("net").document == first, "a class that no callback reaches"
    own.workspace.write("mypkg/callbacks.py", OWN.replace("self.decay = decay", "self.d = decay"))
    assert own.run("net").document != first


def test_lightning_s_callbacks_have_their_names(own: FakeProject) -> None:
    assert {*lightning.__all__} == {*LIGHTNING_CALLBACKS}
    first = document(own, "LearningRateMonitor")
    assert first["sample_code"] == {"callbacks.0": "pytorch_lightning.callbacks:LearningRateMonitor"}  # fmt: skip
    for path in (
        "pytorch_lightning.callbacks:LearningRateMonitor", "lightning.pytorch.callbacks:LearningRateMonitor",
    ):  # fmt: skip
        assert document(own, {"type": path}) == first
    assert document(own, {"_target_": "lightning.pytorch.callbacks.LearningRateMonitor"}) == first


def test_callbacks_of_the_runtime_do_not_count(own: FakeProject) -> None:
    first = own.run("net").document
    assert document(own) == first
    named = ["DeviceStatsMonitor", {"type": "mypkg.callbacks:EMA"}]
    own.config["runtime"] = {**own.config.get("runtime", {}), "callbacks": named, "check": True}
    assert own.run("net").document == first


@pytest.mark.parametrize(
    ("setting", "callbacks", "sentence"),
    [
        ("defaults", ["LearningRateMonitr"], r'callbacks.0=LearningRateMonitr is neither .*"LearningRateMonitor"'),
        ("defaults", [{"type": "mypkg.callbacks:EMa"}], r'callbacks.0.type=.* has no EMa; did you mean "EMA"'),
        ("defaults", [{"decay": 1}], r'run "net".*callbacks.0.type is missing, expected a callback of Lightning'),
        ("defaults", ["mypkg.callback:EMA", "nopkg:A"], r"no module mypkg.callback(.|\n)*nopkg:A: no module nopkg"),
        ("runtime", [{"_target_": "mypkg.callbacks.EMa"}], r"runtime.callbacks.0._target_=.* has no EMa"),
    ],
)  # fmt: skip
def test_an_unknown_callback_is_found_before_any_job(
    own: FakeProject, setting: str, callbacks: list[Any], sentence: str
) -> None:
    own.config.setdefault(setting, {})["callbacks"] = callbacks
    with pytest.raises(ConfigError, match=sentence):
        own.run("net")


def test_a_script_has_no_callbacks(own: FakeProject) -> None:
    own.workspace.write("train.py", "print(1)\n")
    own.rows[0]["model"] = "script: train.py"
    with pytest.raises(ConfigError, match=r"a training script trains by itself; set callbacks to"):
        document(own, "LearningRateMonitor")
