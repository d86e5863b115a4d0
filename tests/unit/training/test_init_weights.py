"""Initial weights by name: which keys are loaded, with which bits, and what is told of those that do not fit."""

import json
import pickle
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pytorch_lightning import LightningModule
from safetensors.torch import save_file
from torch import nn

from shardline.config.resolved import InitWeights, RunSpec
from shardline.errors import ConfigError, DataError
from shardline.training.init_weights import attach_init, load_init, read_loaded
from shardline.training.named_weights import fit, load
from shardline.training.weight_files import read_weights
from tests.support.killed_models import RecordedModel
from tests.support.simulated_kills import Case, Chain, Kill, Trainings, build_trainings

MODELS = "tests.support.killed_models"


class Net(nn.Module):
    """A model of a body and a head."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, classes)


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def loaded(model: nn.Module, path: Path, **changes: Any) -> Any:
    init = InitWeights(source="file", file=path, **changes)
    return load_init(model, init, "init_from", verify=True)


def saved(path: Path, content: Any) -> Path:
    if path.suffix == ".safetensors":
        save_file(content, path)
    else:
        torch.save(content, path)
    return path


# --- names, against a reference

NAMES = st.sampled_from(
    ["a.w", "a.b", "b.w", "body.a.w", "body.b.w", "head.w", "head.b", "x.head.w"]
)
PREFIXES = st.sampled_from(["a.", "b.", "body.", "head.", "x.", ""])
PATTERNS = st.sampled_from(["a.*", "*.w", "head.*", "head.w", "body.?.w", "*"])
SHAPES = st.sampled_from([(2,), (3,), (2, 3)])


def module_of(shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    root = nn.Module()
    for name, shape in shapes.items():
        part = root
        *path, last = name.split(".")
        for one in path:
            if one not in part._modules:
                part.add_module(one, nn.Module())
            part = part.get_submodule(one)
        part.register_parameter(last, nn.Parameter(torch.rand(shape)))
    return root


def expected(mine: Any, file: Any, rename: Mapping[str, str], ignore: list[str]) -> Any:
    """Return which key is loaded from which, or None if the settings are wrong: the reference."""
    target, used = {}, set()
    for name in file:
        for prefix in sorted((p for p in rename if name.startswith(p)), key=len)[-1:]:
            used.add(prefix)
            target[name] = rename[prefix] + name[len(prefix) :]
        target.setdefault(name, name)
    names = {*mine, *target.values()}
    if len({*target.values()}) < len(target) or used != {*rename}:
        return None
    if any(not any(fnmatchcase(n, p) for n in names) for p in ignore):
        return None
    kept = {n for n in names if any(fnmatchcase(n, p) for p in ignore)}
    return {t: n for n, t in target.items() if t in mine and mine[t] == file[n] and t not in kept}


@settings(max_examples=300, deadline=None)
@given(
    mine=st.dictionaries(NAMES, SHAPES, min_size=1), file=st.dictionaries(NAMES, SHAPES, min_size=1),
    rename=st.dictionaries(PREFIXES, PREFIXES, max_size=2), ignore=st.lists(PATTERNS, max_size=2, unique=True),
)  # fmt: skip
def test_the_loaded_keys_are_those_of_the_reference_with_the_bits_of_the_file(
    mine: Any, file: Any, rename: Any, ignore: Any
) -> None:
    model, weights = module_of(mine), {name: torch.rand(shape) for name, shape in file.items()}
    before, known = state(model), expected(mine, file, rename, ignore)
    if known is None:
        with pytest.raises(ConfigError, match=r"init\.(rename|ignore)"):
            fit(model, weights, rename=rename, ignore=ignore, where="x")
        return
    found = fit(model, weights, rename=rename, ignore=ignore, where="x")
    assert found.names == known
    load(model, weights, found, where="x")
    after = state(model)
    for name in mine:
        assert torch.equal(after[name], weights[known[name]] if name in known else before[name])
    # each name is in exactly one list
    changed = [
        one.split(" [")[0]
        for one in (*found.record.missing, *(s.split(" in the")[0] for s in found.record.shapes))
    ]
    assert sorted(
        [*found.names, *changed, *(n for n in found.record.ignored if n in mine)]
    ) == sorted(mine)
    assert len(found.names) + len(found.record.shapes) + len(found.record.unexpected) <= len(file)


def test_all_that_does_not_fit_is_one_error_with_both_shapes(tmp_path: Path) -> None:
    weights = state(Net(classes=5)) | {"extra.weight": torch.rand(1), "model_ema.w": torch.rand(1)}
    del weights["body.0.bias"]
    weights["body.1.bias"] = weights["body.1.bias"].to(torch.int64)
    path = saved(tmp_path / "w.safetensors", weights)
    before = state(model := Net())
    with pytest.raises(ConfigError) as error:
        loaded(model, path)
    assert str(error.value) == (
        f"init_from={path} does not fit the model: missing in the file (1): body.0.bias [4]; not in the model (2): "
        "extra.weight, model_ema.w; of another shape (2): head.bias [3] in the model, [5] in the file, head.weight "
        "[3, 4] in the model, [5, 4] in the file; of another kind (1): body.1.bias float32 in the model, int64 in the "
        "file (model_ema.w is of an average of weights); map prefixes with init.rename, name what keeps its initial "
        "values in init.ignore, or set init.strict to false"
    )
    assert all(torch.equal(before[name], value) for name, value in state(model).items())
    record = loaded(model, path, strict=False)
    assert (record.loaded, record.missing, record.unexpected) == (
        5, ["body.0.bias [4]"], ["extra.weight", "model_ema.w"],
    )  # fmt: skip
    assert [one.split()[0] for one in (*record.shapes, *record.kinds)] == [
        "head.bias", "head.weight", "body.1.bias",
    ]  # fmt: skip
    assert torch.equal(model.body[0].weight, weights["body.0.weight"])
    assert torch.equal(model.head.weight, before["head.weight"])


def test_a_prefix_that_would_fit_is_named(tmp_path: Path) -> None:
    outer = nn.ModuleDict({"net": Net()})
    inside = saved(tmp_path / "w.safetensors", state(Net()))
    with pytest.raises(ConfigError, match=re.escape('init.rename such as {"": "net."}')):
        loaded(outer, inside, strict=False)
    assert loaded(outer, inside, rename={"": "net."}).renamed == {"": 9}
    outside = saved(tmp_path / "o.safetensors", state(outer))
    with pytest.raises(ConfigError, match=re.escape('init.rename such as {"net.": ""}')):
        loaded(Net(), outside)
    assert loaded(Net(), outside, rename={"net.": ""}).loaded == 9


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rename": {"encoder.": "body."}}, 'has no name that begins with "encoder." (init.rename), but body.0.bias'),
        ({"ignore": ["heat.*"]}, 'init.ignore.0=heat.* matches no name of the model or of the file, which have '),
        ({"rename": {"body.0.": "head.", "head.": "head."}}, "which init.rename makes both head."),
        ({"sha256": "0" * 64}, "expected 000000000000... as when the project was loaded"),
        ({"part": "model"}, "has no part model, expected one of: none"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(tmp_path: Path, changes: Any, sentence: str) -> None:
    path = saved(tmp_path / "w.safetensors", state(Net()))
    with pytest.raises((ConfigError, DataError), match=re.escape(sentence)):
        loaded(Net(), path, **changes)


# --- models


class Tied(nn.Module):
    """A model whose output shares the weight of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 4), nn.Linear(4, 5)
        self.out.weight = self.embed.weight


@pytest.mark.parametrize("left_out", ["out.weight", "embed.weight", ""])
def test_a_tied_weight_needs_one_of_its_names(left_out: str) -> None:
    weights = state(Tied())
    weights.pop(left_out, None)
    found = fit(model := Tied(), weights, rename={}, ignore=[], where="x")
    assert found.record.differences == {}
    load(model, weights, found, where="x")
    assert torch.equal(
        model.out.weight, weights["embed.weight" if left_out != "embed.weight" else "out.weight"]
    )
    assert model.out.weight is model.embed.weight


def test_a_tied_weight_with_two_values_is_named_and_one_ignored_name_keeps_it() -> None:
    weights = state(Tied())
    weights["out.weight"] = torch.rand(5, 4)
    found = fit(Tied(), weights, rename={}, ignore=[], where="x")
    assert (found.record.untied, [*found.names]) == (["embed.weight and out.weight"], ["out.bias"])
    found = fit(Tied(), weights, rename={}, ignore=["out.weight"], where="x")
    assert (found.record.ignored, [*found.names], found.record.differences) == (
        ["embed.weight", "out.weight"], ["out.bias"], {},
    )  # fmt: skip


def test_frozen_and_compiled_parts_and_other_precisions_get_the_weights() -> None:
    weights = state(Net())
    model = Net().to(torch.bfloat16)
    model.head.requires_grad_(False)
    model.body = nn.ModuleDict({"_orig_mod": model.body})  # as torch.compile names it
    found = fit(model, weights, rename={}, ignore=[], where="x")
    load(model, weights, found, where="x")
    assert found.record.differences == {}
    assert not model.head.weight.requires_grad
    assert torch.equal(model.head.weight, weights["head.weight"].bfloat16())
    assert torch.equal(
        model.state_dict()["body._orig_mod.0.weight"], weights["body.0.weight"].bfloat16()
    )


def test_a_parameter_without_memory_is_named() -> None:
    with torch.device("meta"):
        model = Net()
    found = fit(model, weights := state(Net()), rename={}, ignore=[], where="x")
    with pytest.raises(ConfigError, match=r"cannot be loaded into .*, which is on the meta device"):
        load(model, weights, found, where="x")


class Late(LightningModule):
    """Makes its layers in a hook."""

    def build(self) -> None:
        if not hasattr(self, "net"):
            self.net = Net()


class Configured(Late):
    def configure_model(self) -> None:
        self.build()


class SetUp(Late):
    def setup(self, stage: str) -> None:
        self.build()


@pytest.mark.parametrize(("cls", "hook"), [(Configured, "configure_model"), (SetUp, "setup")])
def test_layers_that_a_hook_makes_get_their_weights_behind_it(
    tmp_path: Path, capsys: Any, cls: Any, hook: str
) -> None:
    path = saved(tmp_path / "w.safetensors", weights := state(Net()))
    init = InitWeights(source="file", file=path, rename={"": "net."})
    spec: Any = SimpleNamespace(init=init, title="late")
    looked: list[list[str]] = []
    attach_init(
        model := cls(), spec, tmp_path, look=lambda one: looked.append([*one.state_dict()]), is_first=True,
        is_verified=True,
    )  # fmt: skip
    assert looked == []
    getattr(model, hook)(*(["fit"] if hook == "setup" else []))
    assert looked == [[f"net.{name}" for name in weights]]
    assert torch.equal(model.net.head.weight, weights["head.weight"])
    record = read_loaded(tmp_path)
    assert record is not None
    assert (record.loaded, record.renamed, len(record.sha256)) == (9, {"": 9}, 64)
    assert f"initial weights: 9 tensors of {path}" in capsys.readouterr().out


# --- files


def test_each_kind_of_file_gives_the_same_weights(tmp_path: Path) -> None:
    weights = state(Net())
    wrapped = {f"module._orig_mod.{name}": value for name, value in weights.items()}
    compiled = {name.replace("body.", "body._orig_mod."): value for name, value in weights.items()}
    lightning = {
        "pytorch-lightning_version": "2.6", "epoch": 3, "state_dict": weights, "extras": {"x": torch.rand(1)},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.rand(2)}}, "param_groups": []}],
    }  # fmt: skip
    contents = {
        "a.safetensors": (weights, []),
        "a.pt": (weights, []),
        "a.bin": (compiled, ["names without _orig_mod."]),
        "a.pth": (wrapped, ["names without module. and _orig_mod."]),
        "a.ckpt": (lightning, ["its state_dict"]),
        "b.pt": ({"model": wrapped, "step": 3}, ["its model", "names without module. and _orig_mod."]),
        "c.pt": ({**wrapped, "n_averaged": torch.tensor(3)}, [
            "averages of torch's AveragedModel", "names without module. and _orig_mod.",
        ]),
        "d.pt": ({**weights, "body._extra_state": None}, ["without body._extra_state, which is no tensor"]),
    }  # fmt: skip
    for name, (content, understood) in contents.items():
        found = read_weights(saved(tmp_path / name, content))
        assert found.understood == understood, name
        assert found.tensors.keys() == weights.keys(), name
        assert all(torch.equal(found.tensors[key], weights[key]) for key in weights), name
    old = tmp_path / "old.pt"
    torch.save(weights, old, _use_new_zipfile_serialization=False)
    assert read_weights(old).tensors.keys() == weights.keys()


def test_folders_of_transformers_are_read_whole_and_in_parts(tmp_path: Path) -> None:
    weights = state(Net())
    (tmp_path / "config.json").write_text("{}")
    first = {name: weights[name] for name in [*weights][:4]}
    second = {name: weights[name] for name in [*weights][4:]}
    names = {**dict.fromkeys(first, "1.safetensors"), **dict.fromkeys(second, "2.safetensors")}
    saved(tmp_path / "1.safetensors", first)
    saved(tmp_path / "2.safetensors", second)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert read_weights(tmp_path).tensors.keys() == weights.keys()
    assert loaded(Net(), tmp_path).loaded == 9
    (tmp_path / "2.safetensors").unlink()
    with pytest.raises(DataError, match=r"2\.safetensors cannot be read"):
        read_weights(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../2.safetensors"}}))
    with pytest.raises(
        DataError, match=r"names \.\./2\.safetensors, which is outside of its folder"
    ):
        read_weights(tmp_path)
    saved(tmp_path / "model.safetensors", weights)
    assert read_weights(tmp_path).tensors.keys() == weights.keys()
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    with pytest.raises(
        DataError, match=r"has quantised weights \(quant_method=gptq in config.json\)"
    ):
        read_weights(tmp_path)


class Ran:
    """Runs when it is unpickled."""

    has_run = False

    def __reduce__(self) -> Any:
        return setattr, (Ran, "has_run", True)


AVERAGED = {"state_dict": {"w": torch.rand(1)}, "model_ema": {"w": torch.rand(1)}}
OF_LIGHTNING = {
    "pytorch-lightning_version": "2.6", "state_dict": {"w": torch.rand(1)}, "current_model_state": {"w": torch.rand(1)},
}  # fmt: skip
BAD = {
    "has several sets of weights, expected one of: state_dict, model_ema (averages of weights); set": AVERAGED,
    "expected one of: state_dict (averages of weights), current_model_state; set": OF_LIGHTNING,
    "has no tensors by name (keys epoch, args), expected a state_dict": {"epoch": 3, "args": {}},
    "has no tensors by name (a Tensor)": torch.rand(3),
    "that bitsandbytes has quantised (a.weight.absmax), expected floating": {"a.weight.absmax": torch.rand(1)},
    "that GPTQ or AWQ has quantised (a.qweight, a.qzeros)": {
        "a.qweight": torch.ones(1), "a.qzeros": torch.ones(1), "a.scales": torch.ones(1),
    },
    "contains Python objects (": {"model": Net()},
}  # fmt: skip


@pytest.mark.parametrize("sentence", BAD)
def test_what_is_no_plain_set_of_weights_is_one_sentence(tmp_path: Path, sentence: str) -> None:
    path = saved(tmp_path / "w.pt", BAD[sentence])
    with pytest.raises(DataError, match=re.escape(sentence)):
        read_weights(path)


def test_a_part_of_a_checkpoint_is_chosen_by_its_key(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.pt", AVERAGED)
    for part, content in AVERAGED.items():
        assert torch.equal(read_weights(path, part=part).tensors["w"], content["w"])
    with pytest.raises(
        DataError, match=re.escape("has no part ema, expected one of: state_dict, model_ema")
    ):
        read_weights(path, part="ema")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    for write in (lambda: torch.save(Ran(), path), lambda: path.write_bytes(pickle.dumps(Ran()))):
        write()
        with pytest.raises(DataError, match=re.escape(str(path))):
            read_weights(path)
        assert not Ran.has_run


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    whole = saved(tmp_path / name, state(Net())).read_bytes()
    for size in (0, 1, 7, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises(
            DataError, match=r"(is no complete file of weights|contains Python objects)"
        ):
            read_weights(tmp_path / name)


def test_an_unknown_ending_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.gguf").write_bytes(b"GGUF")
    with pytest.raises(DataError, match=r"expected \.safetensors, \.pt, \.pth, \.ckpt, \.bin"):
        read_weights(tmp_path / "w.gguf")


# --- trainings


class Started(RecordedModel):
    """Loads weights by hand if it is told to."""

    by_hand: dict[str, torch.Tensor] | None = None

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        if self.by_hand is not None:
            self.load_state_dict(self.by_hand)


class Begun(Trainings):
    """Trainings that begin with weights."""

    init: InitWeights | None = None

    def spec_of(self, case: Case) -> RunSpec:
        return replace(super().spec_of(case), init=self.init)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


def test_a_training_has_the_bits_of_one_that_loads_by_hand_and_resumes_with_them(
    trainings: Trainings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Chain(trainings, Case(name="base", model=f"{MODELS}:RecordedModel"), tmp_path / "base")
    base.run([])
    states = base.root / "work" / "checkpoints"
    of = Case(
        name="begun", model=f"{__name__}:Started", settings={"freeze": ["body.0.*"], "seed": 7}
    )
    begun = Begun(trainings._spec, trainings._data)
    begun.init = InitWeights(source="run", file=states)
    unbroken, _ = begun.unbroken(of)
    content = torch.load(next(states.glob("step-00000016")) / "state.pt", weights_only=True)
    with monkeypatch.context() as patch:
        patch.setattr(Started, "by_hand", content["state_dict"])
        by_hand, _ = trainings.unbroken(of)
    assert unbroken.model == by_hand.model
    init = unbroken.trained.pop("init")
    assert (init["source"], init["loaded"], init["understood"]) == (
        "run", 9, ["the training checkpoint of step 16", "its state_dict"],
    )  # fmt: skip
    assert [line for line in unbroken.differences(by_hand) if not line.startswith("state")] == []
    kills = [Kill(place="model.training_step", step=step) for step in (0, 5, 9)]
    resumed = begun.killed(of, kills, every_steps=1)
    assert resumed.trained.pop("init") == init
    assert resumed.differences(unbroken) == []
