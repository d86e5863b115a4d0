"""Preprocessing of a table inside an exported model, as operations on tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from msgspec import UNSET, structs

from shardline.records.base import encode
from shardline.records.datasets import DatasetSchema, Manifest
from shardline.records.preprocessing import CODES, GAPS, NUMBERS, PreparedNumber, Preprocessing
from shardline_io.preprocessing import Preprocessor

INDICES = "category_indices"


class TableFeatures(torch.nn.Module):
    """Features and categories of raw numbers and indices of categories.

    Args:
        fitted: Fitted preprocessing.
    """

    clip: torch.Tensor
    fill: torch.Tensor
    shift: torch.Tensor
    divisor: torch.Tensor

    def __init__(self, fitted: Preprocessing) -> None:
        super().__init__()
        self.fitted = fitted
        numbers = fitted.numbers
        infinite = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64)
        limits = [
            [infinite[end].item() if of is None else of for end, of in enumerate(one.clip)]
            for one in numbers
        ]
        self.register_buffer("clip", torch.tensor(limits, dtype=torch.float64).reshape(-1, 2).T)
        for name in ("fill", "shift", "divisor"):
            values = torch.tensor([getattr(one, name) for one in numbers], dtype=torch.float64)
            self.register_buffer(name, values)
        for place, one in enumerate(numbers):
            if one.scale == "quantile":
                values = torch.tensor(one.quantiles, dtype=torch.float64)
                self.register_buffer(f"quantiles_{place}", values)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        given = {NUMBERS: self.fitted.numbers, INDICES: self.fitted.categories}
        return tuple(name for name, of in given.items() if of)

    def forward(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return `features` [B, F] float32 and `categories` [B, C] int64 of the inputs by name."""
        columns = []
        if NUMBERS in given:
            columns += self._numbers(given[NUMBERS])
        indexed = []
        for place, one in enumerate(self.fitted.categories):
            index = given[INDICES][:, place : place + 1]
            if one.encode == "onehot":
                places = torch.arange(1, len(one.values) + 1, device=index.device)
                columns.append((index == places).to(torch.float32))
            else:
                indexed.append(index)
        made = {"features": torch.cat(columns, dim=1)} if columns else {}
        return made | ({"categories": torch.cat(indexed, dim=1)} if indexed else {})

    def _numbers(self, numbers: torch.Tensor) -> list[torch.Tensor]:
        kind, is_gap = numbers.dtype, torch.isnan(numbers)
        low, high = self.clip.to(kind)
        values = torch.where(
            is_gap, self.fill.to(kind), torch.minimum(torch.maximum(numbers, low), high)
        )
        if any(one.scale in ("log", "quantile") for one in self.fitted.numbers):
            found = [
                self._curved(values[:, n], n, one) for n, one in enumerate(self.fitted.numbers)
            ]
            values = torch.stack(found, dim=1)
        values = (values - self.shift.to(kind)) / self.divisor.to(kind)
        flagged = [n for n, one in enumerate(self.fitted.numbers) if one.impute == "flag"]
        flags = [is_gap[:, n : n + 1].to(torch.float32) for n in flagged]
        return [values.to(torch.float32), *flags]

    def _curved(self, column: torch.Tensor, place: int, one: PreparedNumber) -> torch.Tensor:
        if one.scale == "log":
            return torch.sign(column) * torch.log1p(torch.abs(column))
        if one.scale == "quantile":
            quantiles = self.get_buffer(f"quantiles_{place}")
            return _ranks(column.to(torch.float64), quantiles).to(column.dtype)
        return column


def _ranks(values: torch.Tensor, quantiles: torch.Tensor) -> torch.Tensor:
    """Return the ranks of values [N], as `shardline_io.preprocessing` does, by comparisons that all formats have."""
    last = len(quantiles) - 1
    if last == 0:
        return (values >= quantiles[0]).to(values.dtype) * 0.0
    total = torch.zeros_like(values)
    for is_below in (values[:, None] >= quantiles, values[:, None] > quantiles):
        place = (is_below.sum(dim=1) - 1).clamp(0, last - 1)
        width = quantiles[place + 1] - quantiles[place]
        share = (values - quantiles[place]) / torch.where(width > 0, width, torch.ones_like(width))
        total = total + (place + share.clamp(0.0, 1.0)) / last / 2
    total = torch.where(values >= quantiles[-1], torch.ones_like(total), total)
    return torch.where(values <= quantiles[0], torch.zeros_like(total), total)


def raw_manifest(manifest: Manifest) -> Manifest:
    """Return a manifest by which a dataset is read as it is stored."""
    schema = structs.replace(
        manifest.schema, columns=manifest.schema.stored, stored=UNSET, categories=UNSET
    )
    return structs.replace(manifest, schema=schema, preprocessing=UNSET)


def raw_inputs(fitted: Preprocessing, stored: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the exported model's inputs of a batch of stored columns."""
    found: dict[str, torch.Tensor] = {}
    if fitted.numbers:
        numbers = stored[NUMBERS].numpy()
        bits = np.unpackbits(stored[GAPS].numpy(), axis=1, bitorder="little")
        is_gap = bits[:, : numbers.shape[1]].astype(bool)
        found[NUMBERS] = torch.from_numpy(np.where(is_gap, numbers.dtype.type(np.nan), numbers))
    if fitted.categories:
        all_indexed = [{**encode(one), "encode": "index"} for one in fitted.categories]
        made = Preprocessor({"numbers": [], "categories": all_indexed})(
            {CODES: stored[CODES].numpy()}
        )
        found[INDICES] = torch.from_numpy(made["categories"])
    return found


def inputs_are_prepared(schema: DatasetSchema, names: tuple[str, ...]) -> bool:
    """Return whether all inputs of a model are made by preprocessing."""
    return bool(schema.stored) and set(names) <= {"features", "categories"}
