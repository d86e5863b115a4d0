"""Writing a model in a format, and computing with what was written."""

import itertools
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from safetensors.torch import load_file, save

from shardline.config.run_spec import RunSpec
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import write_bytes
from shardline.data.datamodule import Normalizer
from shardline.data.feed import Feed
from shardline.results.recorded import Recorded
from shardline.training.model import make_model

_ROWS = 512
_INPUT, _OUTPUT = "features", "outputs"
_EXTERNAL_BYTES = 1 << 30  # an ONNX file holds 2 GiB at most; larger weights go beside it
NORMALIZATION = "normalization.safetensors"


class Deployed(torch.nn.Module):
    """A model that takes features as batches hold them, its first step being the normalisation.

    Args:
        model: the sealed model.
        constants: shift and scale [*feature_shape] float32; None where nothing is normalised.
    """

    shift: torch.Tensor | None
    scale: torch.Tensor | None

    def __init__(
        self, model: torch.nn.Module, constants: tuple[torch.Tensor, torch.Tensor] | None
    ) -> None:
        super().__init__()
        self.model = model
        shift, scale = constants or (None, None)
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, features: torch.Tensor) -> Any:
        """Return the model's outputs for features [B, *feature_shape] in the stored type."""
        features = features.to(torch.float32)
        if self.shift is not None and self.scale is not None:
            features = (features - self.shift) * self.scale
        return self.model(features)


@dataclass(frozen=True, kw_only=True)
class Original:
    """The sealed model, held-out rows, and what it makes of them.

    Attributes:
        spec: the run.
        schema: the dataset's.
        weights: the sealed weights.
        model: in evaluation mode.
        constants: shift and scale of the normalisation [*feature_shape] float32.
        features: rows [n, *feature_shape] of `split`, as `data.eval_transform` leaves them.
        outputs: of the model on these, computed as an evaluation does [n, ...] float32.
    """

    spec: RunSpec
    schema: dict[str, Any]
    weights: Path
    model: pl.LightningModule
    constants: tuple[torch.Tensor, torch.Tensor] | None
    split: str
    features: torch.Tensor
    outputs: torch.Tensor

    @property
    def deployed(self) -> Deployed:
        """The model that takes stored features."""
        return Deployed(self.model, self.constants).eval()

    @property
    def sample(self) -> torch.Tensor:
        """Two rows to trace with: from one alone a batch of 1 would be taken for fixed."""
        return (
            self.features[:2] if len(self.features) > 1 else self.features.repeat_interleave(2, 0)
        )

    def difference(self, outputs: torch.Tensor) -> float:
        """Return the largest absolute difference of outputs from the original's; inf for another shape."""
        if outputs.shape != self.outputs.shape:
            return float("inf")
        return float((outputs.double() - self.outputs.double()).abs().max())


def load_original(recorded: Recorded) -> Original:
    """Load a sealed model, and evaluate it on held-out rows.

    Raises:
        DataError: a shard is damaged, or batches are no tables.
        ConfigError: the model cannot be made.
    """
    spec, settings = recorded.run_spec, recorded.run_spec.settings
    feed = Feed(recorded.datasets, settings, verify="always")
    schema = feed.manifest["schema"]
    model = make_model(spec, schema).eval()
    model.load_state_dict(load_file(recorded.model))
    split, mode = settings.evaluation.split, settings.data.normalize
    stream, _ = feed.held_out(split, batch=_ROWS // 4)
    features = torch.cat(
        [_features(batch, feed) for batch in itertools.islice(stream.batches(), 4)]
    )
    normalize = Normalizer(feed, mode, torch.float32)
    with torch.inference_mode():
        outputs = model(normalize(features)).float()
    return Original(
        spec=spec,
        schema=schema,
        weights=recorded.model,
        model=model,
        constants=normalize.constants,
        split=split,
        features=features,
        outputs=outputs.clone(),
    )


def _features(batch: Any, feed: Feed) -> torch.Tensor:
    if not isinstance(batch, tuple):
        raise DataError(
            f"dataset {feed.manifest['dataset']} gives batches of the columns {', '.join(batch)}, expected features "
            "and labels of a table; only models that take features can be exported yet"
        )
    features: torch.Tensor = batch[0].clone()
    return features


_Write = Callable[[Original, Path], None]
_Read = Callable[[Original, Path], torch.Tensor]

# --- formats ------------------------------------------------------------------------------------


def _write_onnx(original: Original, path: Path) -> None:
    size = original.weights.stat().st_size
    with _refusing(original, "onnx"):
        program = torch.onnx.export(
            original.deployed,
            (original.sample,),
            dynamo=True,
            dynamic_shapes={_INPUT: {0: torch.export.Dim("batch", min=1)}},
            input_names=[_INPUT],
            output_names=[_OUTPUT],
            verbose=False,
        )
        assert program is not None
        program.save(path, external_data=size > _EXTERNAL_BYTES)


def _read_onnx(original: Original, path: Path) -> torch.Tensor:
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(features: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.asarray(session.run([_OUTPUT], {_INPUT: features.numpy()})[0]))

    return _by_sizes(run, original.features)


def _write_torchscript(original: Original, path: Path) -> None:
    # deprecated since torch 2.9, and still what C++ programs load (`torch::jit::load`)
    with _refusing(original, "torchscript"), torch.inference_mode():
        normalize, sample = Deployed(torch.nn.Identity(), original.constants), original.sample
        # Lightning's own way around the properties that torch would read of its modules
        model = original.model.to_torchscript(method="trace", example_inputs=normalize(sample))
        assert isinstance(model, torch.jit.ScriptModule)
        whole = Deployed(model, original.constants).eval()
        traced = torch.jit.trace(whole, (sample,), check_trace=False)  # type: ignore[no-untyped-call]
        traced.save(str(path))


def _read_torchscript(original: Original, path: Path) -> torch.Tensor:
    with _quiet(), torch.inference_mode():
        model = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
        return _by_sizes(model, original.features)


def _write_safetensors(original: Original, path: Path) -> None:
    shutil.copyfile(original.weights, path)
    if original.constants:
        constants = dict(zip(("shift", "scale"), original.constants, strict=True))
        write_bytes(path.with_name(NORMALIZATION), save(constants))


def _read_safetensors(original: Original, path: Path) -> torch.Tensor:
    model = make_model(original.spec, original.schema)
    model.load_state_dict(load_file(path))
    beside, constants = path.with_name(NORMALIZATION), None
    if beside.exists():
        found = load_file(beside)
        constants = found["shift"], found["scale"]
    with torch.inference_mode():
        outputs: torch.Tensor = Deployed(model, constants).eval()(original.features).float()
    return outputs


def _by_sizes(run: Callable[[torch.Tensor], torch.Tensor], features: torch.Tensor) -> torch.Tensor:
    """Compute the first row alone and the others together: the size of a batch must be free."""
    return torch.cat([run(part).float() for part in (features[:1], features[1:]) if len(part)])


@contextmanager
def _refusing(original: Original, to: str) -> Iterator[None]:
    """Turn what a converter raises into one sentence."""
    try:
        with _quiet():
            yield
    except OSError:
        raise
    except Exception as error:  # converters raise of every kind
        cause = error.__cause__ or error
        reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
        raise ConfigError(
            f"{original.spec.model_class} cannot be exported to {to}: {type(cause).__name__}: {reason}; keep its "
            "forward to operations on tensors, or export it --to safetensors"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converters' notes to their developers from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


CONVERTERS: dict[str, tuple[_Write, _Read]] = {
    "onnx": (_write_onnx, _read_onnx),
    "torchscript": (_write_torchscript, _read_torchscript),
    "safetensors": (_write_safetensors, _read_safetensors),
}
