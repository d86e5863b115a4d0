"""Messages of other tools: what is printed of them names settings that a config has."""

import ast
import contextlib
import importlib.util
import inspect
import json
import re
from pathlib import Path

import lightning_fabric
import pytest
import pytorch_lightning as pl
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from shardline.config.settings import keys_of, schema_of
from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings
from shardline.core.error_texts import describe, short_traceback, without_arguments
from shardline.core.errors import CODE_ERROR, exit_code_of
from shardline.core.trainer_arguments import REASONS, SETTINGS

ARGUMENTS = set(inspect.signature(pl.Trainer.__init__).parameters) - {"self"}


def text_of(node: ast.expr) -> str:
    """Return the text that an expression makes, X for what is known at run time alone."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(one.value if isinstance(one, ast.Constant) else "X" for one in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return text_of(node.func.value)
    return ""


def messages() -> list[str]:
    """Return what the installed Lightning raises."""
    found = []
    for package in (pl, lightning_fabric):
        for file in Path(package.__file__).parent.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    found += filter(None, map(text_of, node.exc.args))
    return found


def test_every_argument_of_the_trainer_is_a_setting_or_known_to_be_none():
    assert set(SETTINGS) | set(REASONS) == ARGUMENTS
    keys = keys_of(schema_of(RunSettings).tables[0])
    for name in SETTINGS.values():
        table, _, key = name.rpartition(".")
        known = keys_of(schema_of(Runtime).tables[0]) if table == "runtime" else keys
        assert key in (keys_of(keys[table].schema.tables[0]) if table in keys else known), name


def test_the_trainer_of_the_other_package_has_the_same_arguments():
    spec = importlib.util.find_spec(
        "lightning"
    )  # which one process cannot import beside pytorch_lightning
    path = Path(spec.submodule_search_locations[0], "pytorch/trainer/trainer.py")
    (trainer,) = (
        one
        for one in ast.parse(path.read_text()).body
        if isinstance(one, ast.ClassDef) and one.name == "Trainer"
    )
    (init,) = (
        one for one in trainer.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"
    )
    assert {one.arg for one in (*init.args.args, *init.args.kwonlyargs)} - {"self"} == ARGUMENTS


def test_no_message_of_lightnings_names_an_argument_that_a_config_lacks():
    named = re.compile(rf"Trainer\(|\b({'|'.join(one for one in REASONS if '_' in one)})\b")
    found = messages()
    assert len(found) > 300, "the walk over Lightning's sources finds its messages"
    before = [one for one in found if named.search(one)]
    assert len(before) > 20
    for message in found:
        shown = without_arguments(message)
        assert not named.search(shown), message
        assert shown.strip(), message
        if not any(name in message for name in (*ARGUMENTS, "limit_X", "Fabric(", "ddp_")):
            assert shown == message.strip()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gradient_clip_val": 1.0}, "set trainer.gradient_clip to 0"),
        ({"accumulate_grad_batches": 2}, "set trainer.accumulate to 1"),
    ],
)
def test_errors_that_lightning_really_raises_are_in_our_words(settings, words, tmp_path):
    class Manual(pl.LightningModule):
        automatic_optimization = False

        def training_step(self, batch, batch_idx): ...

        def configure_optimizers(self): ...

    trainer = pl.Trainer(default_root_dir=tmp_path, accelerator="cpu", logger=False, **settings)
    with pytest.raises(MisconfigurationException) as raised:
        trainer.fit(Manual(), [0])
    shown = short_traceback(raised.value)
    assert words in shown
    assert "Trainer(" not in shown
    assert exit_code_of(raised.value) == CODE_ERROR, "a retry would end alike"


@given(st.text() | st.sampled_from(["max_steps must be 3", "Trainer(max_epochs=2) is mine"]))
def test_an_error_of_the_users_own_code_keeps_its_text(text):
    try:
        raise ValueError(text)
    except ValueError as error:
        known = describe(error)
    assert known == f"ValueError: {text}" or "ValueError" not in known


def test_a_traceback_has_the_users_frames_alone():
    @contextlib.contextmanager
    def nothing():
        yield

    @nothing()
    def read():
        json.loads("no json")

    with pytest.raises(json.JSONDecodeError) as raised:
        read()
    first, *frames = short_traceback(raised.value).split("\n  ")
    assert first.startswith("JSONDecodeError: ")
    assert {frame.partition(", line ")[0].rpartition("/")[2] for frame in frames} == {
        Path(__file__).name
    }
