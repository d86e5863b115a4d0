"""Exports of models of any columns: inputs, what is inside the file, and the card's lines from raw input."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import pytorch_lightning as pl
import torch
from msgspec import structs
from PIL import Image
from safetensors.torch import load_file, save_file

from shardline.config.settings.run_settings import Data, Pack
from shardline.core.files import write_json
from shardline.data.sources.image_folder import ImageFolder
from shardline.data.transforms.transform_steps import TransformSpec
from shardline.errors import ConfigError
from shardline.records.base import encode
from shardline.results.export.calls import find_call, named_outputs
from shardline.results.export.onnx_program import program
from shardline.training.models.classifier_base import Classifier
from shardline.training.models.gpt import GPT
from shardline.training.models.tabular import Tabular
from shardline.training.models.unet import UNet
from shardline.transforms import Resize
from tests.support.exported import Model, predicted, sealed
from tests.support.rotation import rotating
from tests.support.tokenizers import END, byte_level

CLASSES = ['a "b"', "```", "ü|<b>"]
NORMALIZE = {"type": "normalize", "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}


class Small(Classifier):
    """A few convolutions on an image, of any size or number of channels."""

    column = "image"

    def __init__(self, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(channels, 8, 3)
        self.head = torch.nn.Linear(8, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.first(images).relu().mean(dim=(2, 3)))


def photo(seed: int, height: int, width: int, mode: str = "RGB") -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return smooth.convert(mode)


def photos(folder: Path, *, turned: bool = False, count: int = 18) -> dict[str, Any]:
    """Write a folder for each class, and return the source."""
    for number in range(count):
        path = folder / "photos" / "abc"[number % 3] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        if turned:
            exif[0x0112] = 1 + number % 8
        photo(number, 60 + number, 50 + 2 * number).save(path, quality=90, exif=exif)
    return {"type": "image_folder", "files": ["photos"], "decode": "at_read"}


def named(model: Model, classes: list[str]) -> None:
    """Give the sealed dataset's classes other names."""
    schema = structs.replace(model.manifest.schema, classes=classes)
    model.manifest = structs.replace(model.manifest, schema=schema)
    write_json(model.sealed / "manifest.json", encode(model.manifest))


def inputs_of(config: dict[str, Any]) -> list[tuple[str, str, list[Any]]]:
    return [(one["name"], one["dtype"], one["shape"]) for one in config["inputs"]]


def steps_of(config: dict[str, Any], key: str = "steps") -> list[str]:
    return [step["step"] for step in config["preprocessing"][key]]


# --- images ---------------------------------------------------------------------------------------


def test_a_photo_is_predicted_by_the_cards_lines_as_the_original_predicts_it(tmp_path):
    steps = [{"type": "resize", "size": 40}, {"type": "center_crop", "size": [32, 36]}, NORMALIZE]
    model = sealed(
        tmp_path, photos(tmp_path, turned=True), Small,
        Data(normalize="none", transform=steps, eval_transform=steps),
    )  # fmt: skip
    named(model, CLASSES)
    folder, config, check = model.exported()
    assert inputs_of(config) == [("image", "uint8", ["batch", 32, 36, 3])]
    assert config["outputs"][0]["shape"] == ["batch", 3]
    assert (steps_of(config), steps_of(config, "inside_the_model")) == (
        ["resize", "center_crop"],
        ["normalize"],
    )
    assert config["preprocessing"]["inside_the_model"][0]["mean"] == NORMALIZE["mean"]
    assert check.rows == model.manifest.splits["test"]
    for file in sorted((tmp_path / "photos").rglob("*.jpg"))[:4]:
        outputs, shown = predicted(folder, program(config), str(file))
        sample: Any = {"image": file.read_bytes()}
        for transform in model_steps(steps):
            sample = transform(sample)
        expected = model.model(torch.from_numpy(sample["image"])[None]).detach().numpy()
        # a pixel differs by 1 of 255 at most, and few do
        assert np.abs(outputs - expected).max() < 0.02
        assert shown == CLASSES[int(expected.argmax())]


def model_steps(written: list[Any]) -> list[Any]:
    made = TransformSpec(written=written, what="data.eval_transform", has_chance=False).make()
    return [lambda sample: made((0, 0, 0, 0), sample)]


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    ("size", "full"),
    [(16, (200, 240)), ([30, 40], (480, 640)), (224, (1000, 1500)), (64, (37, 41))],
)
def test_the_lines_give_pixels_that_differ_by_one_at_most(mode, size, full):
    content = io.BytesIO()
    photo(1, *full).save(content, "JPEG")
    for crop in ([], [{"step": "center_crop", "size": 20}], [{"step": "center_crop", "size": 300}]):
        steps = [{"step": "resize", "size": size}, *crop]
        config = image_config(steps, mode)
        *lines, _, _ = program(config)
        scope: dict[str, Any] = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["predict.py", io.BytesIO(content.getvalue())])
            exec("\n".join(lines), scope)
        sample = Resize(size, mode=mode)({"image": content.getvalue()})
        if crop:
            (sample,) = (
                one(sample)
                for one in model_steps(
                    [{"type": "center_crop", "size": crop[0]["size"], "mode": mode}]
                )
            )
        found, expected = np.asarray(scope["image"]), sample["image"]
        if mode == "L":
            found = found[:, :, None]
        assert found.shape == expected.shape
        assert np.abs(found.astype(int) - expected).max() <= 1


def image_config(steps: list[Any], mode: str) -> dict[str, Any]:
    shape = ["batch", 1, 1, 1 if mode == "L" else 3]
    return {
        "file": "model.onnx",
        "inputs": [{"name": "image", "dtype": "uint8", "shape": shape}],
        "outputs": [{"meaning": "what it is"}],
        "preprocessing": {"raw_input": "image", "columns": {"image": "bytes"}, "steps": steps},
    }


def test_a_normalisation_that_decodes_by_itself_leaves_the_decoding_outside(tmp_path):
    for number in range(12):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(number, 9, 7, "L").save(path)
    source = {"type": "image_folder", "files": ["photos"], "decode": "at_read"}
    steps = {"type": "normalize", "mode": "L", "std": 0.5}
    data = Data(normalize="none", transform=steps, eval_transform=steps)
    model = sealed(tmp_path, source, Small, data, channels=1)
    folder, config, _ = model.exported()
    assert inputs_of(config) == [("image", "uint8", ["batch", 9, 7, 1])]
    assert steps_of(config) == ["decode"]
    file = next((tmp_path / "photos").rglob("*.png"))
    outputs, _ = predicted(folder, program(config), str(file))
    (expected,) = (one({"image": file.read_bytes()})["image"] for one in model_steps([steps]))
    expected = model.model(torch.from_numpy(expected)[None]).detach().numpy()
    assert np.abs(outputs - expected).max() < 1e-5


@pytest.mark.rotating
def test_images_that_the_source_has_decoded_are_predicted_from_their_files(tmp_path):
    source = photos(tmp_path) | {"decode": "at_build", "size": [12, 20]}
    model = sealed(tmp_path, source, Small, Data(normalize="global"))
    folder, config, _ = model.exported()
    assert inputs_of(config) == [("features", "uint8", ["batch", 3, 12, 20])]
    assert steps_of(config) == ["decode", "fit", "channels_first"]
    file = next((tmp_path / "photos").rglob("*.jpg"))
    outputs, _ = predicted(folder, program(config), str(file))
    source = ImageFolder(num_shards=1, files=[file], size=(12, 20), classes=["a", "b", "c"])
    pixels = next(source.iter_tables(0)).features
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    assert np.array_equal(outputs, session.run(None, {"features": pixels})[0])


class Odd:
    """A transform of the user's own."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, sample: Any) -> Any:
        image = sample["image"]
        return {**sample, "image": image[:: self.by, :: self.by].copy()}


def test_what_comes_before_code_of_the_users_own_is_named_and_not_claimed(tmp_path):
    steps = [{"type": "resize", "size": [16, 16]}, {"type": f"{__name__}:Odd", "by": 2}, NORMALIZE]
    model = sealed(tmp_path, photos(tmp_path), Small, Data(normalize="none", eval_transform=steps))
    folder, config, _ = model.exported()
    assert inputs_of(config) == [("image", "uint8", ["batch", 8, 8, 3])]
    assert config["preprocessing"]["raw_input"] == "arrays"
    assert f"{__name__}:Odd" in config["preprocessing"]["reads"]
    pixels = np.random.default_rng(1).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / "rows.npz", image=pixels)
    outputs, _ = predicted(folder, program(config), "rows.npz")
    (made,) = (
        np.stack([one({"image": of})["image"] for of in pixels]) for one in model_steps([NORMALIZE])
    )
    expected = model.model(torch.from_numpy(made)).detach().numpy()
    assert np.abs(outputs - expected).max() < 1e-5


def masked(folder: Path) -> dict[str, Any]:
    """Write images with masks as JSON Lines, and return the source."""
    rng = np.random.default_rng(1)
    rows = [
        {
            "image": rng.integers(0, 256, (7, 6, 3)).tolist(),
            "mask": rng.integers(0, 2, (7, 6)).tolist(),
        }
        for _ in range(12)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = {"image": "uint8[7,6,3]", "mask": "uint8[7,6]"}
    return {"type": "jsonl", "files": ["rows.jsonl"], "columns": columns}


def test_a_unet_gives_each_pixel_of_a_file_its_class(tmp_path):
    data = Data(normalize="none", eval_transform=["normalize"], transform=["normalize"])
    model = sealed(tmp_path, masked(tmp_path), UNet, data, classes=2, depth=1, width=8)
    folder, config, _ = model.exported()
    assert inputs_of(config) == [("image", "uint8", ["batch", 7, 6, 3])]
    assert config["outputs"][0]["shape"] == ["batch", 2, 7, 6]
    photo(1, 7, 6).save(tmp_path / "photo.png")
    outputs, _ = predicted(folder, program(config), str(tmp_path / "photo.png"))
    pixels = torch.from_numpy(np.asarray(photo(1, 7, 6)).copy())[None]
    expected = model.model(pixels.permute(0, 3, 1, 2) / 255).detach().numpy()
    assert np.abs(outputs - expected).max() < 1e-4
    assert model.exported("torchscript")[1]["inputs"] == config["inputs"]
    weights, alone, _ = model.exported("safetensors")
    assert inputs_of(alone) == [("image", "float32", ["batch", 3, 7, 6])]
    assert steps_of(alone) == ["normalize"], "what the weights alone do not hold"
    assert not (weights / "normalization.safetensors").exists()


# --- texts ----------------------------------------------------------------------------------------


def texts(folder: Path, **settings: Any) -> dict[str, Any]:
    lines = ["the cat sat on the mat " * (1 + n % 4) + "x" * n for n in range(30)]
    (folder / "a.txt").write_text("\n".join(lines))
    return {"type": "text", "files": ["a.txt"], **settings}


@pytest.mark.parametrize("has_tokenizer", [True, *rotating(False)])
def test_a_language_model_is_given_a_text_of_any_length(tmp_path, has_tokenizer):
    settings: dict[str, Any] = {"end": "\n"}
    if has_tokenizer:
        tokenizer = byte_level(tmp_path / "tok.json")
        settings = {"tokenizer": "tok.json", "end": END, "special_tokens": True}
    model = sealed(
        tmp_path, texts(tmp_path, **settings), GPT,
        Data(pack=Pack(column="tokens", length=24, method="best_fit" if has_tokenizer else "concat")),
        layers=1, width=16, heads=2, vocab=300,
    )  # fmt: skip
    folder, config, _ = model.exported()
    dtype = "uint16" if has_tokenizer else "uint8"
    assert inputs_of(config) == [("tokens", dtype, ["batch", "length"])]
    assert config["outputs"][0]["shape"] == ["batch", "length", 300]
    text = "a cat and ä dog"
    outputs, shown = predicted(folder, program(config), text)
    tokens = list(text.encode())
    if has_tokenizer:
        assert (folder / "tokenizer.json").read_bytes() == (tmp_path / "tok.json").read_bytes()
        assert config["preprocessing"]["steps"][0]["sha256"] == config["sha256"]["tokenizer.json"]
        tokenizer.no_truncation(), tokenizer.no_padding()
        tokens = tokenizer.encode(text).ids
        assert tokens[0] == tokenizer.token_to_id(END)
    expected = model.model(torch.tensor([tokens])).detach().numpy()
    assert outputs.shape == expected.shape
    assert np.abs(outputs - expected).max() < 1e-5
    assert shown
    longer, _ = predicted(folder, program(config), "ab" * 40)
    assert longer.shape[1] == 24, "the model takes no more"
    if not has_tokenizer:
        assert inputs_of(model.exported("torchscript")[1]) == inputs_of(config)


class Bag(pl.LightningModule):
    """The mean of a text's tokens, which padding does not count in."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(256, num_classes)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        tokens, lengths = batch["tokens"], batch.get("tokens.lengths")
        counts = (torch.arange(tokens.shape[1]) < lengths[:, None]).float()
        return (self.embed(tokens.long()) * counts[:, :, None]).sum(dim=1) / lengths[:, None]


@pytest.mark.parametrize(
    "collate",
    [None, *rotating({"type": "pad", "lengths": {"tokens": 64}})],
    ids=["longest", "padded"],
)
def test_a_classifier_of_texts_takes_the_batch_with_its_lengths(tmp_path, collate):
    rows = [{"text": "ab" * (1 + n % 9), "label": n % 2} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = {
        "type": "jsonl", "files": ["rows.jsonl"], "tokenize": {"tokens": "text"}, "label": "label",
        "num_classes": 2, "end": 7,
    }  # fmt: skip
    model = sealed(tmp_path, source, Bag, Data(collate=collate))
    folder, config, _ = model.exported()
    assert inputs_of(config) == [
        ("tokens", "uint8", ["batch", "length"]), ("tokens.lengths", "int64", ["batch"]),
    ]  # fmt: skip
    outputs, shown = predicted(folder, program(config), "abba")
    tokens = torch.tensor([[*b"abba", 7]])
    expected = model.model({"tokens": tokens, "tokens.lengths": torch.tensor([5])}).detach().numpy()
    assert np.abs(outputs - expected).max() < 1e-6
    assert shown == str(expected.argmax())


# --- other columns --------------------------------------------------------------------------------


class Two(pl.LightningModule):
    """Two columns by the names of the parameters, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor, scale: float = 2.0) -> Any:
        return {"near": self.layer(left) * scale, "far": [right - left, right.sum(dim=1)]}


def test_a_model_of_two_columns_has_two_inputs_and_named_outputs(tmp_path):
    rng = np.random.default_rng(1)
    rows = [{"left": rng.random(3).tolist(), "right": rng.random(3).tolist()} for _ in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = dict.fromkeys(("left", "right"), "float32[3]")
    model = sealed(tmp_path, {"type": "jsonl", "files": ["rows.jsonl"], "columns": columns}, Two)
    folder, config, _ = model.exported()
    assert [one[0] for one in inputs_of(config)] == ["left", "right"]
    assert [one["name"] for one in config["outputs"]] == ["near", "far.0", "far.1"]
    left, right = rng.random((2, 4, 3)).astype(np.float32)
    np.savez(folder / "rows.npz", left=left, right=right)
    lines = [line.replace("print(outputs)", "outputs = outputs[1]") for line in program(config)]
    outputs, _ = predicted(folder, lines, "rows.npz")
    assert np.allclose(outputs, right - left)


class Row(pl.LightningModule):
    def __init__(self, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(feature_shape[0], 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features)


@pytest.mark.rotating
def test_a_row_of_a_table_is_predicted_from_its_numbers(tmp_path):
    rng = np.random.default_rng(1)
    rows = [",".join(map(str, row)) for row in rng.normal(3, 5, (30, 4)).tolist()]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,y", *rows]))
    source = {"type": "csv", "files": ["rows.csv"], "label": "y", "task": "regression"}
    model = sealed(tmp_path, source, Row, Data(normalize="standard"))
    folder, config, _ = model.exported()
    assert inputs_of(config) == [("features", "float32", ["batch", 3])]
    outputs, _ = predicted(folder, program(config), "1,2.5,-3")
    constants = model.exported("safetensors")[0] / "normalization.safetensors"
    found = load_file(constants)
    row = (torch.tensor([[1, 2.5, -3]]) - found["shift"]) * found["scale"]
    assert np.abs(outputs - model.model(row).detach().numpy()).max() < 1e-5


def test_several_numbers_are_exported_in_the_units_of_the_labels(tmp_path):
    rows = [",".join(map(str, row)) for row in np.random.default_rng(1).uniform(1, 5, (30, 6))]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,y,z,w", *rows]))
    source = {
        "type": "csv",
        "files": ["rows.csv"],
        "label": ["y", "z"],
        "task": "regression",
        "weight": "w",
    }
    model = sealed(tmp_path, source, Tabular, Data(normalize="standard"), width=8, members=2)
    weights = load_file(model.sealed / "model.safetensors")
    weights |= {"target_mean": torch.tensor([100.0, -200]), "target_std": torch.tensor([3.0, 4])}
    save_file(weights, model.sealed / "model.safetensors")
    folder, config, check = model.exported()
    assert check.max_difference <= check.allowed < 1
    assert inputs_of(config) == [("features", "float32", ["batch", 3])]
    assert config["outputs"][0]["meaning"] == "the predicted values y, z"
    outputs, _ = predicted(folder, program(config), "1,2.5,-3")
    np.testing.assert_allclose(outputs[0], [100, -200], atol=20)


class Prepared(pl.LightningModule):
    """Takes features and indices of categories."""

    def __init__(self, feature_shape: tuple[int, ...], category_sizes: Sequence[int]) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(n, 2) for n in category_sizes)
        self.layer = torch.nn.Linear(feature_shape[0] + 2 * len(category_sizes), 1)

    def forward(self, features: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        parts = [table(categories[:, n]) for n, table in enumerate(self.tables)]
        return self.layer(torch.cat([features, *parts], dim=1))


def test_a_raw_row_with_gaps_is_preprocessed_inside_the_model(tmp_path):
    rng = np.random.default_rng(2)
    lines = ["a,b,c,d,e,colour,place,y"]
    for _ in range(60):
        a, b, c, d, e = ("" if rng.random() < 0.2 else str(n) for n in rng.normal(3, 5, 5).round(2))
        lines.append(f"{a},{b},{c},{d},{e},{rng.choice(['x', 'y'])},{rng.integers(0, 4)},1.5")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    columns = {
        "a": {"impute": "median", "scale": "quantile"},
        "b": {"impute": "flag", "clip": [0.0, 6.0]},
        "c": {"impute": "constant", "fill": 7.0, "scale": "log"},
        "d": {"scale": "minmax"},
        "place": {"encode": "index"},
    }
    source = {
        "type": "csv", "files": ["rows.csv"], "label": "y", "task": "regression",
        "preprocess": {"columns": columns},
    }  # fmt: skip
    model = sealed(tmp_path, source, Prepared, Data(normalize="standard"))
    folder, config, check = model.exported()
    assert inputs_of(config) == [
        ("numbers", "float32", ["batch", 5]),
        ("category_indices", "int64", ["batch", 2]),
    ]
    assert check.rows > 20
    (step,) = config["preprocessing"]["inside_the_model"]
    assert step["categories"] == {"colour": ["x", "y"], "place": ["0", "1", "2", "3"]}
    numbers = np.array([[np.nan, 2, np.nan, 1, 0], [1, np.nan, 3, np.nan, np.nan]], np.float32)
    np.savez(folder / "rows.npz", numbers=numbers, category_indices=np.array([[1, 0], [0, 4]]))
    outputs, _ = predicted(folder, program(config), "rows.npz")
    assert outputs.shape == (2, 1)
    assert np.isfinite(outputs).all()
    model.exported("safetensors")
    model.exported("torchscript")


class Fixed(pl.LightningModule):
    """Takes rows of one length alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(tokens.float())


def test_a_length_that_forward_does_not_leave_free_is_fixed_and_said_to_be(tmp_path):
    data = Data(pack=Pack(column="tokens", length=8, method="concat"))
    _, config, _ = sealed(tmp_path, texts(tmp_path), Fixed, data).exported()
    assert inputs_of(config) == [("tokens", "uint8", ["batch", 8])]
    assert config["fixed_length"] == ["tokens"]


# --- what cannot be exported ----------------------------------------------------------------------


class ByName(pl.LightningModule):
    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return batch["text"]


class OfList(pl.LightningModule):
    def forward(self, image: torch.Tensor, *, scale: float = 1.0) -> Any:
        return ["a"]


class Nothing(pl.LightningModule):
    def forward(self, images: torch.Tensor) -> Any:
        return images.mean(dim=0)


@pytest.mark.parametrize(
    ("model", "batch", "told"),
    [
        (ByName(), {"text": ["a"]}, "reads the column text, which is a list in a batch"),
        (Nothing(), {"image": torch.ones(2, 3), "y": torch.ones(2)}, "image, y (forward has the parameters images"),
        (Two(), {"left": torch.ones(2, 3)}, "forward has the parameters left, right"),
        (OfList(), [torch.ones(2)], "batches of type list"),
        (OfList(), {"image": torch.tensor(1.0)}, "one number of the whole batch"),
        (
            OfList(),
            {"image": torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)},
            "a nested tensor",
        ),
    ],
)  # fmt: skip
def test_a_forward_that_no_batch_can_be_given_to_is_refused_by_name(model, batch, told):
    with pytest.raises(ConfigError) as error:
        find_call(model, batch)
    assert told in str(error.value)


def test_what_is_no_tensor_is_no_output():
    with pytest.raises(ConfigError, match="returns a str as outputs.0, expected a tensor"):
        named_outputs(OfList(), ["a"])
    with pytest.raises(ConfigError, match="returns a NoneType"):
        named_outputs(OfList(), None)


def test_a_batch_that_is_spread_into_keywords_is_read_whole():
    class Spread(pl.LightningModule):
        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            return dict(**batch)["left"]

    batch = {"left": torch.ones(2), "right": torch.ones(2)}
    assert find_call(Spread(), batch).names == ("left", "right")
