"""Export formats: write a model, and compute outputs with the written file."""

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from shardline.checkpoints.weights import load_weights
from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.files import write_bytes
from shardline.results.export.original import Original, deployed
from shardline.training.model import make_model

_EXTERNAL_BYTES = (
    1 << 30
)  # an ONNX file is limited to 2 GiB; larger weights go into a file beside it
_ONE_FILE = "1000GB"
NORMALIZATION = "normalization.safetensors"
AS_SEALED = (
    "safetensors",
    "huggingface",
)  # formats with the sealed weights only: same bits, no steps inside


Outputs = list[torch.Tensor]
Runner = Callable[[Sequence[torch.Tensor]], Outputs]
_Write = Callable[[Original, Path], bool]
_Read = Callable[[Original, Path], Runner]

# --- formats ------------------------------------------------------------------------------------


def _write_onnx(original: Original, path: Path) -> bool:
    """Write an ONNX file with variable lengths, or with fixed ones if `forward` does not allow that."""
    names = [*original.outputs[0]]
    is_free = bool(original.varying)
    try:
        program = _to_onnx(original, names, is_free)
    except Exception:
        if not is_free or not original.is_one_length:
            raise
        is_free = False
        program = _to_onnx(original, names, is_free)
    size = original.weights.stat().st_size
    program.save(path, external_data=size > _EXTERNAL_BYTES)
    return is_free


def _to_onnx(original: Original, names: Sequence[str], is_free: bool) -> torch.onnx.ONNXProgram:
    batch, lengths = torch.export.Dim("batch", min=1), original.lengths if is_free else {}
    dimensions: list[dict[int, Any]] = [
        {0: batch, **({1: lengths[name]} if name in lengths else {})} for name in original.names
    ]
    program = torch.onnx.export(
        original.deployed(),
        original.sample,
        dynamo=True,
        dynamic_shapes=(tuple(dimensions),),
        input_names=[*original.names],
        output_names=[*names],
        verbose=False,
    )
    assert program is not None
    return program


def _read_onnx(original: Original, path: Path) -> Runner:
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [*original.outputs[0]]
    taken = {one.name for one in session.get_inputs()}  # forward may read inputs without using them

    def run(tensors: Sequence[torch.Tensor]) -> Outputs:
        given = zip(original.names, tensors, strict=True)
        found = session.run(names, {name: of.numpy() for name, of in given if name in taken})
        return [torch.from_numpy(np.asarray(one)) for one in found]

    return run


def _write_torchscript(original: Original, path: Path) -> bool:
    # deprecated since torch 2.9, but C++ programs still load it (`torch::jit::load`)
    with torch.inference_mode():
        # Lightning's method avoids properties of modules that torch would read
        traced = original.deployed().to_torchscript(
            method="trace", example_inputs=original.sample, check_trace=False
        )
        assert isinstance(traced, torch.jit.ScriptModule)
        traced.save(str(path))
    return True


def _read_torchscript(original: Original, path: Path) -> Runner:
    model = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
    return lambda tensors: _listed(model(*tensors))


def _write_safetensors(original: Original, path: Path) -> bool:
    shutil.copyfile(original.weights, path)
    if original.constants and "features" in original.call.names:
        constants = dict(zip(("shift", "scale"), original.constants, strict=True))
        write_bytes(path.with_name(NORMALIZATION), save(constants))
    return True


def _read_safetensors(original: Original, path: Path) -> Runner:
    model = make_model(original.spec, original.schema)
    load_weights(model, load_file(path))
    beside, constants = path.with_name(NORMALIZATION), None
    if beside.exists():
        found = load_file(beside)
        constants = found["shift"], found["scale"]
    whole = deployed(model, original.call, original.steps, constants, is_raw=original.is_raw)
    return lambda tensors: _listed(whole(*tensors))


def _write_huggingface(original: Original, path: Path) -> bool:
    """Write weights and `config.json` for `from_pretrained` of transformers."""
    hub = _hub(original.model)
    if hub is None:
        raise ConfigError(
            f"--to huggingface needs a model of transformers, but the run has {original.spec.model_class}; export it "
            "--to safetensors, or train a model such as model=hf:AutoModelForCausalLM"
        )
    if original.schema.task == "classification":
        hub.config.id2label = dict(enumerate(original.schema.classes))
        hub.config.label2id = {name: place for place, name in hub.config.id2label.items()}
    hub.save_pretrained(path.parent, max_shard_size=_ONE_FILE)
    return True


def _read_huggingface(original: Original, path: Path) -> Runner:
    model = make_model(original.spec, original.schema)
    hub = _hub(model)
    assert hub is not None
    hub.load_state_dict(type(hub).from_pretrained(path.parent, local_files_only=True).state_dict())
    whole = deployed(model, original.call, original.steps, None, is_raw=original.is_raw)
    return lambda tensors: _listed(whole(*tensors))


def _hub(model: torch.nn.Module) -> Any:
    """Return the transformers model inside a shipped model, or None."""
    hub = getattr(model, "hub", None)
    return hub if hasattr(hub, "save_pretrained") else None


def _listed(found: Any) -> Outputs:
    return [*found] if isinstance(found, tuple) else [found]


def write(original: Original, to: str, path: Path) -> bool:
    """Write a model in a format.

    Returns:
        Whether the length of rows may differ from call to call.

    Raises:
        ConfigError: The format cannot represent the model.
    """
    with _refusing(original, to):
        return _CONVERTERS[to][0](original, path)


def outputs_of(original: Original, to: str, path: Path) -> list[Outputs]:
    """Compute the outputs of a written model for the original's rows.

    Computes the first row of each batch alone and the others together, since any batch size must work.
    With the sealed weights, it computes whole batches, to compare all bits.

    Raises:
        ConfigError: The written model does not run.
    """
    found = []
    with _refusing(original, to), torch.inference_mode():
        run = _CONVERTERS[to][1](original, path)
        for batch in original.batches:
            tensors, size = [*batch.values()], len(next(iter(batch.values())))
            parts = [[of[:1] for of in tensors]]
            if size > 1:
                parts.append([of[1:] for of in tensors])
            parts = [tensors] if to in AS_SEALED else parts
            computed = [run(part) for part in parts]
            found.append([_joined(of) for of in zip(*computed, strict=True)])
    return found


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    joined = torch.cat([*parts])
    return joined.float() if joined.is_floating_point() else joined


@contextmanager
def _refusing(original: Original, to: str) -> Iterator[None]:
    """Turn the errors of a converter into one sentence."""
    try:
        with _quiet():
            yield
    except (OSError, ShardlineError):
        raise
    except Exception as error:  # converters raise errors of all types
        cause = error.__cause__ or error
        reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
        raise ConfigError(
            f"{original.spec.model_class} cannot be exported to {to}: {type(cause).__name__}: {reason}; keep its "
            "forward to operations on tensors of any number of rows, or export it --to safetensors"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings and logs of the converters."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


_CONVERTERS: dict[str, tuple[_Write, _Read]] = {
    "onnx": (_write_onnx, _read_onnx),
    "torchscript": (_write_torchscript, _read_torchscript),
    "safetensors": (_write_safetensors, _read_safetensors),
    "huggingface": (_write_huggingface, _read_huggingface),
}
