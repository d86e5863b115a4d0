"""Steps of an evaluation's transform: those before an exported model, and those inside."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardline.config.code_paths import COLLATE, SHIPPED_TRANSFORMS, transforms_of
from shardline.config.settings.run_settings import Data
from shardline.core.error_texts import import_class
from shardline.data.columns import columns_of
from shardline.data.transforms.image_transforms import Normalize
from shardline.records.datasets import DatasetSchema


@dataclass(frozen=True, kw_only=True)
class ExportStep:
    """One transform of `data.eval_transform`.

    Attributes:
        kind: Name of a shipped transform; empty for a class of the user.
        type: Type as written in the settings.
        arguments: Written arguments; for a shipped transform, with defaults.
    """

    kind: str
    type: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def column(self) -> str:
        """The column that a shipped transform changes."""
        return str(self.arguments.get("column", ""))

    @property
    def written(self) -> dict[str, Any]:
        """The step as in the settings."""
        return {"type": self.type, **self.arguments}


@dataclass(frozen=True, kw_only=True)
class ExportSteps:
    """Steps of a sample before `forward`.

    Attributes:
        before: Steps before the exported model.
        inside: Normalisations inside the exported model, each of another column.
        collate: Import path of the user's collate function, or empty.
    """

    before: tuple[ExportStep, ...] = ()
    inside: tuple[ExportStep, ...] = ()
    collate: str = ""

    @property
    def normalize(self) -> dict[str, Normalize]:
        """Normalisations inside the model, by column."""
        return {step.column: Normalize(**step.arguments) for step in self.inside}


def steps_of(data: Data, schema: DatasetSchema, *, with_inside: bool) -> ExportSteps:
    """Return the steps of a run's evaluation.

    Args:
        data: Data settings of the run.
        schema: Schema of the dataset.
        with_inside: Move normalisations at the end into the model. With a collate function of the
            user they stay outside, since the function may change their result.
    """
    before = [_step(one) for one in transforms_of(data.eval_transform)]
    collate = data.collate if isinstance(data.collate, str) and data.collate not in COLLATE else ""
    inside: list[ExportStep] = []
    while with_inside and not collate and before and _is_last(before[-1], inside):
        inside.insert(0, before.pop())
    for step in inside:
        if not any(step.column == other.column for other in before) and _is_file(step, schema):
            decode = {key: step.arguments[key] for key in ("column", "mode")}
            before.append(ExportStep(kind="decode", type="decode", arguments=decode))
    return ExportSteps(before=tuple(before), inside=tuple(inside), collate=collate)


def _step(written: Mapping[str, Any]) -> ExportStep:
    arguments = {key: value for key, value in written.items() if key != "type"}
    name = str(written["type"])
    cls = import_class(SHIPPED_TRANSFORMS.get(name, name), "data.eval_transform")
    path = f"{cls.__module__}:{cls.__qualname__}"
    kind = next((known for known, of in SHIPPED_TRANSFORMS.items() if of == path), "")
    kind = "" if kind == "callable" else kind  # which calls code of the user
    if kind:
        bound = inspect.signature(cls).bind(**arguments)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
    return ExportStep(kind=kind, type=name, arguments=arguments)


def _is_last(step: ExportStep, inside: list[ExportStep]) -> bool:
    return step.kind == "normalize" and step.column not in {one.column for one in inside}


def _is_file(step: ExportStep, schema: DatasetSchema) -> bool:
    column = columns_of(schema).get(step.column)
    return column is None or column.kind == "bytes"
