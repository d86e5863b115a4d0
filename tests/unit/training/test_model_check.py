"""Mistakes of model and data, each found by one step on two rows: what is told of it, and that it is told once."""

import importlib
import re
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from shardline.config.resolved import InitWeights, RunSpec, as_type
from shardline.config.settings import fill, schema_of
from shardline.config.settings.run_settings import RunSettings
from shardline.core.nested import with_values
from shardline.training.rank_task import CheckedDataset, ModelResult
from tests.support.rank_tasks import checked

REPOSITORY = Path(__file__).parents[3]
PROJECT = REPOSITORY / "config" / "project" / "mypkg"
MODEL, SOURCE = (PROJECT / "models.py").read_text(), (PROJECT / "sources.py").read_text()
LAST, FORWARD = "torch.nn.Linear(width, num_classes)", "    def forward(self, features)"
PLATEAU = """optimizer = torch.optim.SGD(self.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_lss"}}"""
UNSAFE = """    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = type(self)"""
COUNTED = """        self.val_loss = MeanMetric()
        Net.made = getattr(Net, "made", 0) + 1
        self.add_module(f"part{Net.made}", torch.nn.Linear(1, 1))
"""


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Check a model and a source of the project that `init` writes, changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    data = tmp_path / "rings.csv"
    data.write_bytes((REPOSITORY / "config/project/data/rings.csv").read_bytes())

    def run(
        *changes: tuple[str, str],
        file: Path = data,
        model: str = MODEL,
        source: str = SOURCE,
        is_elsewhere: bool = False,
        callbacks: Sequence[Any] = (),
        init: InitWeights | None = None,
        **settings,
    ):
        for old, new in changes:
            assert old in model + source, old
            model, source = model.replace(old, new), source.replace(old, new)
        for name, text in (("checked_models", model), ("checked_sources", source)):
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        given = with_values({}, {"global_batch": 32, "nodes": 1, "devices": 2, **settings})
        wanted = RunSpec(
            run="0123456789ab",
            name="net",
            model="mypkg.models:Net",
            model_class="checked_models:Net",
            settings=as_type(fill(given, schema_of(RunSettings)), RunSettings),
            init=init,
        )
        dataset = CheckedDataset(
            id="ba9876543210", name="rings", manifest=tmp_path / "none", shards=tmp_path / "none",
            source_class="checked_sources:Rings", source={"options": {}}, num_shards=4, files=[file],
        )  # fmt: skip
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        return checked(
            wanted, dataset, folder, set_by_row=tuple(settings), is_elsewhere=is_elsewhere,
            callbacks=callbacks,
        )  # fmt: skip

    return run


def test_a_model_that_is_well_is_found_well_with_its_sizes(check):
    found = check(**{"model_args.width": 16})
    assert found == ModelResult(
        weights_bytes=found.weights_bytes,
        state_bytes=found.state_bytes,
        num_rows=800,
        inferred=found.inferred,
    )
    assert (found.inferred["rings"]["rows"], found.inferred["rings"]["files"]) == (800, 1)
    assert found.weights_bytes == 4 * (2 * 16 + 16 + 16 * 2 + 2)
    assert found.state_bytes > 3 * found.weights_bytes, "Adam has two values for each weight"


OPTIMIZER = """    def configure_optimizers(self):
        {}

    def forward(self, features)"""
MANUAL = """        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
"""
COLUMNS = """
class Rings(Source):
    @property
    def schema(self):
        return Schema(columns={"tokens": "int32[*]", "mask": "bool[*]", "name": "text?"})

    def iter_tables(self, shard):
        rows = range(shard * 9, shard * 9 + 9)
        yield Table(ids=np.array(rows), columns={
            "tokens": [np.arange(row % 4, dtype=np.int32) for row in rows],
            "mask": [np.ones(row % 4, bool) for row in rows],
            "name": [None if row % 2 else f"größe {row}" for row in rows],
        })
"""
PACKED = """
import torch
from pytorch_lightning import LightningModule

class Net(LightningModule):
    def __init__(self, sample_columns):
        super().__init__()
        assert sample_columns["tokens"] == "int32[7]"
        self.table = torch.nn.Embedding(9, 1)

    def training_step(self, batch, batch_idx):
        assert batch["tokens"].shape == batch["mask"].shape == (2, 7)
        return self.table(batch["tokens"]).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.table(batch["tokens"]).mean())
"""
LAYER = "        self.val_loss = MeanMetric()"
OLD = f"{LAYER}\n        self.old = torch.nn.Linear(1, 1)"
GAN = [
    (LAYER, f"{LAYER}\n        self.automatic_optimization = False\n        self.critic = torch.nn.Linear(2, 1)"),
    (FORWARD, OPTIMIZER.format("return [torch.optim.SGD(one.parameters(), 0.1) for one in (self.net, self.critic)]")),
    ("        return loss\n", """        losses = loss, self.critic(features).square().mean()
        for optimizer, one in zip(self.optimizers(), losses):
            self.toggle_optimizer(optimizer)
            self.manual_backward(one)
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)
"""),
]  # fmt: skip
WELL = {
    "a batch that is filled up": (
        [("features, labels = batch", "features, labels, *_ = batch")], {"data.last_batch": "pad"}
    ),
    "double precision": ([], {"precision": "64-true"}),
    "mixed precision": ([], {"precision": "bf16-mixed"}),
    "arguments of the Trainer": (
        [],
        {"precision": "bf16-true", "trainer.max_epochs": -1, "trainer.max_steps": 7, "trainer.val_check_interval": 3,
         "trainer.limit_train_batches": 0.5, "trainer.min_steps": 5, "trainer.sync_batchnorm": True,
         "trainer.compile": {"backend": "eager"}, "ddp.static_graph": True, "trainer.inference_mode": False},
    ),
    "classes that are balanced": ([], {"data.class_weights": "balanced"}),
    "a weight of one class": ([], {"data.class_weights": {"outer": 2}, "data.epoch_samples": 5000}),
    "steps that the model takes itself": (
        [("self.val_loss =", "self.automatic_optimization = False\n        self.val_loss ="),
         ("        return loss\n", MANUAL)],
        {},
    ),
    "many streams and parts": (
        [], {"data.streams": 4, "data.epoch": "partition", "trainer.accumulate": 4, "elastic": True}
    ),
    "a schedule that computes with the length": (
        [(FORWARD, OPTIMIZER.format(
            "optimizer = torch.optim.SGD(self.parameters(), 0.1)\n        return [optimizer], [torch.optim.lr_scheduler"
            ".OneCycleLR(optimizer, 0.1, total_steps=self.trainer.estimated_stepping_batches)]"
        ))],
        {},
    ),
    "processes and threads": ([], {"data.workers": "processes:2"}),
    "a layer that no loss uses, and is not trained": (
        [(LAYER, f"{LAYER}\n        self.old = torch.nn.Linear(1, 1).requires_grad_(False)")], {}
    ),
    "a layer that no loss uses, and may be left out": (
        [(LAYER, OLD)], {"ddp.find_unused_parameters": True}
    ),
    "a layer that no loss uses, on one rank": ([(LAYER, OLD)], {"devices": 1}),
    "two nets that are trained in turn": (GAN, {"ddp.find_unused_parameters": True}),
    "ranks are asked for": ([("        return loss", "        return loss * torch.distributed.get_world_size()")], {}),
    "no early stopping": ([("val_loss\"", "val_x\"")], {"early_stopping.patience": 0, "checkpoint.monitor": "val_x"}),
}  # fmt: skip
MISTAKES = {
    "an unknown argument": ([], {"model_args.wdth": 16}),
    "an argument that nothing is like": ([], {"model_args.zzz": 16}),
    "a size of the dataset by another name": ([("num_classes", "n_classes")], {}),
    "a package that is not there": ([("import torch\n", "import torch\nimport timmm\n")], {}),
    "no LightningModule": ([("class Net(LightningModule)", "class Net(torch.nn.Module)")], {}),
    "no training_step": ([("def training_step", "def train_step")], {}),
    "no validation_step": ([("def validation_step", "def valid_step")], {}),
    "a monitor that is not logged": ([], {"checkpoint.monitor": "val_lss"}),
    "early stopping by what is not logged": ([], {"early_stopping.monitor": "accuracy"}),
    "nothing is logged": (
        [('self.log("train_loss", loss)', "..."), ('self.log("val_loss", self.val_loss)', "...")], {}
    ),
    "layers that do not fit": ([(LAST, "torch.nn.Linear(width + 1, num_classes)")], {}),
    "one logit for two classes": ([(LAST, "torch.nn.Linear(width, 1)")], {}),
    "three logits for two classes": ([(LAST, "torch.nn.Linear(width, 3)")], {}),
    "a loss for each row": ([('labels)\n        self.log("train_loss", loss)', "labels, reduction='none')")], {}),
    "a loss that is infinite": ([("        return loss", "        return loss + (loss * 0).log()")], {}),
    "no loss": ([("        return loss", "        pass")], {}),
    "a loss without gradient": ([("        return loss", "        return loss.detach()")], {}),
    "an optimiser that fails": ([(FORWARD, OPTIMIZER.format("return torch.optim.SGD(self.parameter(), 0.1)"))], {}),
    "no optimiser": ([(FORWARD, OPTIMIZER.format("return 3"))], {}),
    "a schedule by a metric that is not logged": ([(FORWARD, OPTIMIZER.format(PLATEAU))], {}),
    "settings of an optimiser that is not used": (
        [(FORWARD, OPTIMIZER.format("return torch.optim.SGD(self.parameters(), 0.1)"))], {"optim.lr": 0.1}
    ),
    "a state that cannot be loaded": ([("        return loss", f"        return loss\n\n{UNSAFE}")], {}),
    "weights of other names each time": ([("        self.val_loss = MeanMetric()\n", COUNTED)], {"devices": 1}),
    "a layer that no loss uses": ([(LAYER, OLD)], {}),
    "a copy that is not trained": ([(LAYER, f"{LAYER}\n        self.ema = __import__('copy').deepcopy(self.net)")], {}),
    "two nets that are trained in turn": (GAN, {}),
    "clipping where the model takes its steps itself": (GAN, {"trainer.gradient_clip": 0.5}),
    "parts of a batch where the model takes its steps itself": (GAN, {"trainer.accumulate": 2}),
    "numbers that ranks cannot send": (
        [(LAYER, f"{LAYER}\n        self.register_buffer('seen', torch.zeros(3, dtype=torch.int16))")], {}
    ),
    "a NaN in the data": ([("points + noise,", "points + noise + np.where(ids == 1, np.nan, 0)[:, None],")], {}),
    "a label beyond the classes": ([("labels=radius[ids] > 1.5", "labels=(radius[ids] > 0) * 7")], {}),
    "a label below the classes": ([("labels=radius[ids] > 1.5", "labels=(radius[ids] > 0) * -1")], {}),
    "an option that the source lacks": ([("*, noise=0.1, **arguments", "*, nois, **arguments")], {}),
    "a source that fails": ([("radius, angle = np", "radius, angle = nonsense and np")], {}),
    "a column to be packed that is none": ([], {"data.pack": {"column": "tokens", "length": 4}}),
    "a class that has a weight and is none": ([], {"data.class_weights": {"innr": 1.0}}),
    "a metric that takes other arguments": ([], {"evaluation.metrics": [{"type": "CohenKappa", "task": "multiclass"}]}),
    "a headline that is not measured": ([], {"evaluation.headline": {"metric": "accuracies", "mode": "max"}}),
}  # fmt: skip


def test_every_mistake_is_one_sentence_that_comes_once(check, golden, tmp_path):
    lines = []
    for name, (changes, settings) in MISTAKES.items():
        found = check(*changes, **settings)
        assert len(found.problems) == 1, name
        assert not found.not_checked, name
        assert "site-packages" not in found.problems[0], "frames are the user's own"
        lines += [name, f"  {found.problems[0]}".replace(str(tmp_path), "PROJECT"), ""]
    golden(REPOSITORY / "tests/golden/messages/models.txt", "\n".join(lines))


@pytest.mark.parametrize("name", WELL)
def test_what_is_well_elsewhere_is_well(name, check):
    changes, settings = WELL[name]
    assert not (found := check(*changes, **settings)).problems + found.not_checked


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_rows_are_repeated_until_they_fill_packs(method, check):
    pack = {"column": "tokens", "length": 7, "method": method, "with": ["mask"]}
    source = SOURCE + COLUMNS
    found = check(source=source, model=PACKED, **{"data.pack": pack, "early_stopping.patience": 0})
    assert not found.problems + found.not_checked
    found = check(
        source=source,
        model=PACKED,
        **{"data.pack": {**pack, "with": ["msk"]}, "early_stopping.patience": 0},
    )
    assert found.problems == [
        "data.pack.with names 'msk', which does not exist in dataset rings-ba9876543210, expected a column whose first "
        'dimension varies (tokens, mask, name); did you mean "mask"?'
    ]


def test_one_row_and_no_row(check, tmp_path):
    few = tmp_path / "few.csv"
    few.write_text("1,2\n2,3\n1,2\n2,3\n")
    assert not check(file=few).problems, "a shard has one row"
    found = check(("yield Table", "return\n        yield Table"))
    assert found.problems == [
        "source Rings has no rows, expected at least one; check what it reads"
    ]


def test_all_monitors_that_are_wrong_come_at_once(check):
    found = check(**{"checkpoint.monitor": "a", "early_stopping.monitor": "b"})
    assert [one.partition("=")[0] for one in found.problems] == [
        "checkpoint.monitor",
        "early_stopping.monitor",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "torch.ones(1, device='cuda')",
        "assert features.is_cuda, 'this kernel needs a GPU'",
        "raise RuntimeError('expected CUDA tensor')",
        "raise NotImplementedError('\"scaled_mm\" not implemented for \\'CPU\\'')",
        "raise ImportError('libcuda.so.1: cannot open shared object file')",
        "raise OSError('Max retries exceeded with url')",
    ],
)
def test_what_another_machine_can_do_is_not_checked_and_no_mistake(line, check):
    forward = "        return self.net(features)"
    found = check((forward, f"        {line}\n{forward}"))
    assert not found.problems
    (sentence,) = found.not_checked
    assert "was not checked when it does a training step on two rows: it needs " in sentence


def test_ranks_that_the_check_does_not_have_are_no_mistake(check):
    forward = "        return self.net(features)"
    found = check(
        (forward, f"        torch.distributed.get_world_size()\n{forward}"), strategy="fsdp"
    )
    assert not found.problems
    assert "it needs several ranks, and this check has one" in found.not_checked[0]


def test_a_run_that_asks_for_the_cpu_needs_no_gpu(check):
    forward = "        return self.net(features)"
    found = check((forward, f"        torch.ones(1, device='cuda')\n{forward}"), accelerator="cpu")
    assert "CUDA" in found.problems[0]


@pytest.mark.parametrize("file", ["import torch\n", "import numpy as np\n"])
def test_a_package_that_only_the_jobs_have_is_no_mistake_where_they_run_elsewhere(file, check):
    found = check((file, f"{file}import timmm\n"), is_elsewhere=True)
    assert not found.problems
    assert "it needs packages that only the environment of its jobs has" in found.not_checked[0]


def test_memory_that_is_not_there_is_no_mistake(check):
    found = check(
        (
            "super().__init__()\n        self.net",
            "super().__init__()\n        raise MemoryError\n        self.net",
        )
    )
    assert not found.problems
    assert "it needs more memory than is free on this machine" in found.not_checked[0]


TRANSFORM = textwrap.dedent(
    """
    import random
    class Noise:
        def __call__(self, sample, generator):
            return {**sample, "features": sample["features"] + np.float32(DRAWN)}
    """
)


@pytest.mark.parametrize(
    ("drawn", "named"),
    [
        ("random.random()", "random"),
        ("np.random.rand()", "numpy.random"),
        ("__import__('torch').rand(()).item()", "torch"),
    ],
)
def test_a_transform_that_draws_from_a_global_generator_is_found(drawn, named, check):
    source = SOURCE + TRANSFORM.replace("DRAWN", drawn)
    found = check(source=source, **{"data.transform": "checked_sources:Noise"})
    assert (
        f"draws random numbers from the global generator of {named}, expected" in found.problems[0]
    )
    assert found.problems[0].startswith("dataset rings-ba9876543210, train split: row id ")


def test_a_transform_that_draws_from_its_own_generator_is_well(check):
    source = SOURCE + TRANSFORM.replace("DRAWN", "generator.random()")
    assert not check(source=source, **{"data.transform": "checked_sources:Noise"}).problems


def test_a_constructor_that_passes_its_arguments_on_gets_what_its_base_requires(check):
    derived = """

class Base(Net):
    pass


class Net(Base):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
"""
    assert not check(model=MODEL + derived, **{"model_args.width": 8}).problems


def test_a_method_of_a_tracker_is_one_sentence(check):
    step = 'self.log("train_loss", loss)'
    found = check((step, f'{step}\n        self.logger.experiment.add_scalar("x", 1.0, 0)'))
    (sentence,) = found.problems
    assert sentence.startswith(
        "the model uses self.logger.experiment.add_scalar, expected self.log"
    )
    assert "self.logger.log_image, log_table or log_text" in sentence
    (sentence,) = check((step, f"{step}\n        self.logger.watch(self)")).problems
    assert sentence.startswith("the model uses self.logger.watch, expected self.log")
    (sentence,) = check((step, f'{step}\n        self.logger.log_image("x", [loss])')).problems
    assert sentence.startswith("log_image('x') got an array of shape [], expected images of")
    asks = f'{step}\n        assert not hasattr(self.logger.experiment, "add_image")'
    assert not check((step, asks)).problems, "a model that asks first goes without"


def test_a_model_that_logs_images_tables_and_texts_passes(check):
    step = 'self.log("train_loss", loss)'
    logs = """
        self.logger.log_image("weights", [next(self.parameters())])
        self.logger.log_table("table", columns=["a"], data=[[loss]])
        self.logger.log_text("text", "two words")"""
    assert not check((step, step + logs)).problems


CALLBACKS = """    def configure_callbacks(self):
        from pytorch_lightning import callbacks
        return [{}]

    def forward(self, features)"""


@pytest.mark.parametrize(
    "callback",
    [
        'callbacks.ModelCheckpoint(monitor="val_loss", filename="{epoch}-{val/loss:.2f}", save_last=True)',
        "callbacks.ModelCheckpoint(), callbacks.EMAWeightAveraging(decay=0.9)",
        "callbacks.StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)",
        'callbacks.EarlyStopping("val_loss", mode="max"), callbacks.GradientAccumulationScheduler({1: 2})',
    ],
)
def test_callbacks_of_a_model_that_trains_with_them_pass(check, callback):
    assert check((FORWARD, CALLBACKS.format(callback))).problems == []


@pytest.mark.parametrize(
    ("callback", "settings", "message"),
    [
        ("callbacks.StochasticWeightAveraging(swa_lrs=0.1)", {"strategy": "fsdp"}, "Stochastic.*strategy: ddp"),
        ("callbacks.WeightAveraging()", {"strategy": "fsdp"}, "WeightAveraging needs .* strategy=fsdp .*strategy: ddp"),
        ("callbacks.WeightAveraging(), callbacks.EMAWeightAveraging()", {}, "WeightAveraging and EMAWeightA.* would "),
    ],
)  # fmt: skip
def test_averages_that_could_not_be_resumed_or_sealed_are_refused(
    check, callback, settings, message
):
    (problem,) = check((FORWARD, CALLBACKS.format(callback)), **settings).problems
    assert re.search(f"^the callbacks? .*{message}", problem), problem


OWN = "tests.support.called_back_models"
UNCOUNTED = [
    (["LearningRateMonitor", f"{OWN}:Looks"], {}, None),
    ([f"{OWN}:Looks", f"{OWN}:Counts"], {}, f"^runtime.callbacks.1={OWN}:Counts changes weight .* behind step 1,"),
    ([f"{OWN}:Draws"], {}, "changes the random numbers of python behind the validation at step 1, .* `callbacks`"),
    ([{"type": f"{OWN}:Stops", "epoch": 1}], {}, "changes trainer.should_stop behind the validation at step 2"),
    (["EMAWeightAveraging"], {}, "EMAWeightAveraging of runtime.callbacks changes the result"),
    ([{"type": f"{OWN}:Stops", "epochs": 1}], {}, "epochs.*epoch"),
    (["datetime:timedelta"], {}, "makes an object of timedelta, expected a callback"),
]  # fmt: skip


@pytest.mark.parametrize(("callbacks", "settings", "message"), UNCOUNTED)
def test_callbacks_that_do_not_count_change_no_result(check, callbacks, settings, message):
    found = check(callbacks=callbacks, **settings)
    assert found.not_checked == []
    assert bool(found.problems) == bool(message)
    assert all(re.search(message, one) for one in found.problems), found.problems


CLOCK = """        import time
        return loss + 0 * loss.detach() + time.perf_counter() * next(self.parameters()).sum()
"""


def test_callbacks_of_a_model_that_does_not_repeat_itself_are_not_checked(check):
    found = check(("        return loss\n", CLOCK), callbacks=[f"{OWN}:Counts"])
    assert found.problems == []
    (sentence,) = found.not_checked
    assert "was not compared: two trainings without them differ in" in sentence


STEP = '        self.log("val_loss", self.val_loss)'
HIDDEN = """        self.offset = 0.0

    def on_train_batch_end(self, *_):
        self.offset += 1.0
"""
SAVING = """    def configure_callbacks(self):
        from pytorch_lightning.callbacks import LambdaCallback
        save = lambda trainer, _: trainer.save_checkpoint("mine.ckpt")
        return [LambdaCallback(on_train_epoch_end=save)]

    def forward(self, features)"""


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        # by the sealed model's own check, by the strategy, and by what a model with its own steps cannot follow
        ([(LAYER, f"{LAYER}\n{HIDDEN}"), (STEP, f"{STEP}\n        self.log(\"val_offset\", self.offset)")], {},
         "a fresh model with the best weights does not repeat its validation"),
        ([(FORWARD, SAVING)], {"strategy": "fsdp"}, "strategy=fsdp: the model saves training checkpoints itself"),
        (WELL["steps that the model takes itself"][0], {"elastic": True}, "elastic=true, but Net uses manual optim"),
    ],
)  # fmt: skip
def test_what_callbacks_and_the_strategy_of_a_training_refuse_is_refused(
    check, changes, settings, message
):
    (problem,) = check(*changes, **settings).problems
    assert message in problem


# --- objects among the arguments -----------------------------------------------------------------

TEMPLATE = """import torch
from pytorch_lightning import LightningModule
from torch.nn.functional import cross_entropy


class Dense(torch.nn.Module):
    def __init__(self, in_size, out_size, act, width=32):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(in_size, width), act, torch.nn.Linear(width, out_size))

    def forward(self, rows):
        return self.layers(rows)


class Net(LightningModule):
    def __init__(self, net, optimizer, scheduler=None):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.net = net

    def forward(self, features):
        return self.net(features)

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", cross_entropy(self(batch[0]), batch[1]), on_epoch=True)

    def configure_optimizers(self):
        optimizer = self.hparams.optimizer(params=self.trainer.model.parameters())
        return {"optimizer": optimizer, "lr_scheduler": self.hparams.scheduler(optimizer=optimizer)}
"""
NESTED = {
    "model_args.net": {"_target_": "checked_models.Dense", "in_size": 2, "out_size": 2,
                       "act": {"class_path": "torch.nn.Tanh"}},
    "model_args.optimizer": {"_target_": "torch.optim.Adam", "_partial_": True, "lr": 0.01},
    "model_args.scheduler": {"type": "torch.optim.lr_scheduler:StepLR", "partial": True, "step_size": 1},
}  # fmt: skip


def test_a_model_of_nested_objects_and_partials_trains_resumes_and_is_sealed(check):
    found = check(model=TEMPLATE, **NESTED)
    assert (found.problems, found.not_checked) == ([], [])
    assert found.weights_bytes == 4 * (2 * 32 + 32 + 32 * 2 + 2)


def test_a_wrong_argument_of_an_object_is_one_sentence_of_the_check(check):
    net = {**NESTED["model_args.net"], "widths": 3}
    (problem,) = check(model=TEMPLATE, **NESTED | {"model_args.net": net}).problems
    assert problem == (
        "model_args.net._target_=checked_models.Dense takes in_size, out_size, act, width=32, but not widths; did you "
        'mean "width"?'
    )


RADAM = {
    "optim.name": "torch.optim:RAdam",
    "optim.groups": [{"match": "net.1.*", "lr": 0.1}],
    "freeze": ["net.3.*"],
}
PLATEAU_BY_PATH = {
    "schedule.name": "torch.optim.lr_scheduler:ReduceLROnPlateau", "schedule.interval": "epoch",
    "schedule.monitor": "val_lss",
}  # fmt: skip


def test_optimisers_schedules_groups_and_frozen_parameters_are_checked(check):
    schedule = {
        "schedule.name": "torch.optim.lr_scheduler:OneCycleLR",
        "schedule.args": {"max_lr": 0.1},
    }
    found = check(**RADAM, **schedule)
    assert (found.problems, found.not_checked) == ([], [])
    (problem,) = check(**RADAM, **PLATEAU_BY_PATH).problems
    assert problem.startswith(
        "schedule.monitor=val_lss is not logged by the model's validation, which logs"
    )
    (problem,) = check(**RADAM | {"freeze": ["nett.*"]}).problems
    assert problem.startswith(
        "freeze.0=nett.* matches no parameter of the model, which has net.1.weight,"
    )


def test_initial_weights_are_tried_where_their_file_exists(check, tmp_path):
    file = tmp_path / "base.safetensors"
    init = InitWeights(source="run", name="run:base", file=file)
    found = check(init=init)
    assert (found.problems, found.not_checked) == ([], [])
    save_file({"net.weight": torch.rand(2)}, file)
    (problem,) = check(init=init).problems
    assert problem.startswith(
        "init_from=run:base has no weight that fits the model: missing in the file ("
    )
