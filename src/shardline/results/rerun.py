"""Reruns: train a sealed run again, and compare weights and metrics."""

from dataclasses import dataclass
from pathlib import Path

from shardline.config.plans import RunPlan
from shardline.core.errors import ConfigError, LaunchError
from shardline.core.files import read_json_lines
from shardline.core.package import remake
from shardline.results.accept.first_steps import differences, values_of

_ALL_STEPS = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """Comparison of a rerun with the result.

    Attributes:
        run: Id of the run.
        title: Name and id of the run.
        folder: Folder of the rerun.
        tensors: Number of tensors of the model.
        other_tensors: Names of the tensors that differ in bits, shape or type, or that one side lacks.
        largest: Largest absolute difference of a weight; None if no tensor can be compared.
        values: Number of values in the result's metrics.jsonl.
        other_values: Sentence for each value that differs, in the order of steps.
    """

    run: str
    title: str
    folder: Path
    tensors: int
    other_tensors: tuple[str, ...]
    largest: float | None
    values: int
    other_values: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether the weights are bit-identical."""
        return not self.other_tensors


def rerun(run: RunPlan, *, config: Path, profile: str, arguments: list[str]) -> Rerun:
    """Train a sealed run again into `results/reruns/ID/N`, and compare it with the result.

    An interrupted rerun resumes from its training checkpoint.

    Args:
        config: Config file of the project.
        profile: Snakemake profile, which decides where the ranks start.
        arguments: Further arguments for Snakemake.

    Raises:
        ConfigError: The run is not trained yet.
        LaunchError: The rerun failed. Snakemake has printed the reason.
    """
    title = f"{run.name} ({run.id})"
    if not run.model.exists():
        raise ConfigError(
            f"{title} is not trained yet, so there is nothing to compare; run `snakemake`"
        )
    layout, number = run.layout.declared, 1
    while run.layout.rerun(run.id, number).exists():
        number += 1
    path = layout.rerun(run.id, number)
    if not remake([path], config=config, profile=profile, arguments=arguments):
        log = layout.log("train_again", f"{run.id}-{number}")
        raise LaunchError(
            f"{title} could not be trained again; the reason is printed above and recorded in {log}; the "
            "result is unchanged"
        )
    return compare(run, title, run.layout.rerun(run.id, number).parent)


def compare(run: RunPlan, title: str, folder: Path) -> Rerun:
    """Compare the files of a rerun with those of the result."""
    others, largest, count = _other_tensors(run.model, folder / "model.safetensors")
    recorded, again = (
        values_of(read_json_lines(one / "metrics.jsonl"), _ALL_STEPS)
        for one in (run.folder, folder)
    )
    return Rerun(
        run=run.id, title=title, folder=folder, tensors=count, other_tensors=tuple(others), largest=largest,
        values=len(recorded), other_values=tuple(differences(recorded, again)),
    )  # fmt: skip


def _other_tensors(one: Path, two: Path) -> tuple[list[str], float | None, int]:
    """Return the tensors that differ, by name, the largest difference, and how many tensors there are."""
    import torch
    from safetensors.torch import load_file  # NumPy has no bfloat16

    old, new = load_file(one), load_file(two)
    others: list[str] = []
    differences: list[float] = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if (
            before is None
            or after is None
            or (before.dtype, before.shape) != (after.dtype, after.shape)
        ):
            others.append(name)
            continue
        bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (before, after)]
        if not torch.equal(*bits):
            others.append(name)
            apart = after.to(torch.complex128) - before.to(torch.complex128)  # of any type
            differences.append(float(apart.abs().max()))
    return others, max(differences, default=None), len(old)
