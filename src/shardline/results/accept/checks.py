"""What no acceptance may pass over: damage, another schema, another model."""

from pathlib import Path

from shardline.config.run import Run
from shardline.config.run_spec import RunSpec
from shardline.config.scripts import is_script
from shardline.core.errors import ConfigError, DataError
from shardline.records.base import encode, read_record
from shardline.records.runs import ResolvedRun
from shardline.results.accept.candidates import read_manifest
from shardline.results.findings import Verdict
from shardline.results.sealed_run import REMAKE


def refuse_damage(verdict: Verdict) -> None:
    """Refuse what a verification found fault with.

    Raises:
        DataError: names each damaged file.
    """
    if verdict.problems:
        raise DataError("\n".join(verdict.problems))


def check_schema(run: Run, earlier: Path) -> None:
    """Refuse a run whose rows have another form than those that the earlier one was trained on."""
    before = read_record(earlier / "run.json", ResolvedRun, remedy=REMAKE).mix
    if before.keys() == {part.dataset.id for part in run.parts}:
        return
    trained_on = next(iter(before))  # the datasets of a mix have one schema
    if not run.dataset.manifest.exists():
        raise ConfigError(
            f"{run.name} ({run.id}): its dataset {run.dataset.name} ({run.dataset.id}) is not sealed, so its schema is "
            f"not known; accept dataset:{run.dataset.names[0]} first, or make {run.dataset.manifest}"
        )
    if not run.layout.exists("dataset", trained_on):
        raise ConfigError(
            f"{run.name} ({run.id}): the dataset {trained_on} of {earlier} is not there any more, so its schema is not "
            "known; train the run again"
        )
    old, new = (encode(read_manifest(run.layout, i).schema) for i in (trained_on, run.dataset.id))
    if old != new:
        differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        raise ConfigError(
            f"{run.name} ({run.id}): the schema of {run.dataset.name} has another {', '.join(differing)} than that of "
            f"{earlier}, so its model cannot be taken over; train the run again"
        )


def check_model(run: Run, earlier: Path) -> None:
    """Refuse a model whose tensors are not those that the present model has."""
    if is_script(run.model_class):  # which alone knows its model
        return
    from safetensors import safe_open

    from shardline.training.model import make_model

    spec = RunSpec(run=run.id, model_class=run.model_class, settings=run.settings)
    model = make_model(spec, encode(read_manifest(run.layout, run.dataset.id).schema))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    with safe_open(earlier / "model.safetensors", framework="pt") as sealed:
        names = sealed.keys()
        shapes = {name: tuple(sealed.get_slice(name).get_shape()) for name in names}
    if shapes != expected:
        names = sorted(
            name for name in {**shapes, **expected} if shapes.get(name) != expected.get(name)
        )
        differences = ", ".join(
            f"{name} {shapes.get(name, 'missing')} -> {expected.get(name, 'missing')}"
            for name in names[:3]
        )
        raise ConfigError(
            f"{run.name} ({run.id}): the model has other tensors than that of {earlier} ({differences}), so it "
            "cannot be taken over; train the run again"
        )
