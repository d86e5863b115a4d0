"""Plans of packs: computed once, stored next to the shards, and verified whenever they are opened.

A plan is a safetensors file `packs/{column}-{length}-v{n}-{split}.safetensors` in the dataset's folder
of the store; of a run's fold, `{split}` is such as `train_fold0`. Its metadata has the purpose of the
plan and the BLAKE3 digest of its tensors:

| tensor | |
| --- | --- |
| `packs` [S + 1] int64 | piece s of the split has packs [packs[s], packs[s + 1]) |
| `firsts` [P + 1] int64 | pack p has segments [firsts[p], firsts[p + 1]) |
| `used` [P] uint32 | number of values in each pack |
| `rows` [M] uint32 | row of each segment, counted from the first row of its piece |
| `parts` [M] uint32 | number of each segment's part in its row; parts have the pack's length |
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from msgspec import structs
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from shardline.core.canonical import canonical_json
from shardline.core.errors import DataError
from shardline.core.files import write_bytes
from shardline.data.integrity import locked
from shardline.data.shard_map import ShardMap
from shardline.records.base import encode
from shardline.records.datasets import PlanSeal
from shardline_io.order.best_fit import PLAN_VERSION, plan_packs
from shardline_io.order.folds import SPLITS
from shardline_io.order.pieces import Piece, split_pieces

_NAME = re.compile(
    r"(?P<column>.+)-(?P<length>\d+)-v(?P<version>\d+)-"
    r"(?P<name>(?P<split>[a-z]+)(_fold(?P<fold>\d+))?)"
)
_TENSORS = {"packs": "I64", "firsts": "I64", "used": "U32", "rows": "U32", "parts": "U32"}
_CHUNK = 1 << 20  # entries digested at a time


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """Plan of the packs of a split.

    Attributes:
        path: file of the plan.
        packs: piece s of the split has packs [packs[s], packs[s + 1]); [S + 1] int64.
        firsts: pack p has segments [firsts[p], firsts[p + 1]); [P + 1] int64.
        used: number of values in each pack [P] uint32.
        tensors: tensors of the file; slices of `rows` and `parts` [M] are read from it.
    """

    path: Path
    packs: np.ndarray
    firsts: np.ndarray
    used: np.ndarray
    tensors: Any

    def segments(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the row and the part [m] int64 of each segment of packs [first, last)."""
        begin, end = int(self.firsts[first]), int(self.firsts[last])
        rows, parts = (self.tensors[name][begin:end].astype(np.int64) for name in ("rows", "parts"))
        return rows, parts

    def bad(self, what: str) -> DataError:
        """Return the error of a plan that does not match the dataset's rows."""
        return DataError(
            f"{self.path} {what}, expected a plan of the dataset's rows; delete the file, which Shardline then writes "
            "again, and run `shardline verify` for the dataset"
        )


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """File of a plan, by the purpose of the plan.

    Attributes:
        shards: shards of the dataset.
        name: name of the split, with its fold if there is one.
        split: the split's rows in each shard.
        column: column that is packed.
        length: maximum number of values in a pack.
    """

    shards: ShardMap
    name: str
    split: Sequence[Piece]
    column: str
    length: int

    @property
    def path(self) -> Path:
        """Path of the file."""
        name = f"{self.column}-{self.length}-v{PLAN_VERSION}-{self.name}.safetensors"
        return self.shards.folder / "packs" / name

    def plan(self) -> PackPlan:
        """Return the plan; write the file if it is missing or damaged.

        Raises:
            DataError: a shard cannot be read, or its offsets do not rise.
        """
        if found := self._read():
            return found
        with locked(self.path):
            if found := self._read():
                return found  # another rank was faster
            tensors = self._made()
            content = save(tensors, {"plan": self._sealed(tensors)})
            with suppress(DataError):  # in a read-only store, each rank computes the plan
                write_bytes(self.path, content)
        return self._plan(tensors)

    def problem(self, *, deep: bool) -> str | None:
        """Return what is wrong with the existing file, as a sentence; None if nothing is.

        Args:
            deep: pack the rows again and compare.

        Raises:
            DataError: a shard cannot be read, or its offsets do not rise.
        """
        found = self._read()
        if found is None:
            return f"{self.path} is not a plan of packs for these shards, or is damaged"
        if deep:
            made = self._made()
            other = [n for n in _TENSORS if not np.array_equal(found.tensors[n][:], made[n])]
            if other:
                return (
                    f"{self.path} differs in {', '.join(other)} from a new plan of the shards' rows"
                )
        return None

    @cached_property
    def _purpose(self) -> PlanSeal:
        """Purpose of the plan, without the digest of its tensors."""
        manifest = self.shards.manifest
        contents = blake3("".join(record.blake3 for record in manifest.shards).encode())
        pieces = np.array([(p.shard, p.first, p.last) for p in self.split], np.int64)
        return PlanSeal(
            dataset=manifest.dataset, shards=contents.hexdigest(), column=self.column,
            length=self.length, split=self.name, version=PLAN_VERSION,
            rows=blake3(pieces.tobytes()).hexdigest(),
        )  # fmt: skip

    def _made(self) -> dict[str, np.ndarray]:
        plans = [
            plan_packs(self.shards.lengths(self.column, [piece]), self.length)
            for piece in self.split
        ]
        segments = np.cumsum([0, *(len(plan.rows) for plan in plans)])
        firsts = [plan.firsts[:-1] + n for plan, n in zip(plans, segments[:-1], strict=True)]
        return {
            "packs": np.cumsum([0, *(len(plan.used) for plan in plans)]).astype(np.int64),
            "firsts": np.concatenate([*firsts, segments[-1:]]).astype(np.int64),
            **{
                name: np.concatenate([np.empty(0, np.uint32), *(getattr(p, name) for p in plans)])
                for name in ("used", "rows", "parts")
            },
        }

    def _read(self) -> PackPlan | None:
        """Return the plan in the file; None if the file is missing, damaged or of another purpose."""
        if self.path.is_symlink() or not self.path.is_file():
            return None
        try:
            file: Any = safe_open(self.path, framework="numpy")  # its methods have no types
            if set(file.keys()) != _TENSORS.keys():
                return None
            tensors = {name: file.get_slice(name) for name in _TENSORS}
            shapes = {name: tensor.get_shape() for name, tensor in tensors.items()}
            if any(tensors[name].get_dtype() != dtype for name, dtype in _TENSORS.items()):
                return None
            if (file.metadata() or {}).get("plan") != self._sealed(tensors):
                return None
            found = self._plan(tensors)
        except (OSError, SafetensorError):
            return None
        num_packs, num_segments = len(found.used), math.prod(shapes["rows"])
        wanted = [len(self.split) + 1, num_packs + 1, num_packs, num_segments, num_segments]
        if list(shapes.values()) != [[size] for size in wanted]:
            return None
        is_whole = (
            _rise(found.packs, num_packs)
            and _rise(found.firsts, num_segments)
            and (found.firsts[1:] > found.firsts[:-1]).all()
            and found.used.max(initial=0) <= self.length
        )
        return found if is_whole else None

    def _plan(self, tensors: Any) -> PackPlan:
        packs, firsts, used = (tensors[name][:] for name in ("packs", "firsts", "used"))
        return PackPlan(path=self.path, packs=packs, firsts=firsts, used=used, tensors=tensors)

    def _sealed(self, tensors: Any) -> str:
        """Return the metadata of a plan: its purpose and the digest of its tensors."""
        digest = blake3()
        for name in _TENSORS:
            tensor = tensors[name]
            shape = tensor.shape if isinstance(tensor, np.ndarray) else tensor.get_shape()
            digest.update(f"{name}{list(shape)}".encode())
            for first in range(0, shape[0], _CHUNK):
                digest.update(tensor[first : min(first + _CHUNK, shape[0])].tobytes())
        return canonical_json(encode(structs.replace(self._purpose, blake3=digest.hexdigest())))


def problems_of_plans(shards: ShardMap, *, deep: bool) -> Iterator[str]:
    """Verify the plans next to a dataset's shards, and yield a sentence for each bad one.

    Args:
        deep: see `PlanFile.problem`.
    """
    for path in sorted((shards.folder / "packs").glob("*.safetensors")):
        name = _NAME.fullmatch(path.stem)
        if name and int(name["version"]) != PLAN_VERSION:
            continue  # no longer used
        if not name or name["split"] not in SPLITS:
            yield f"{path} is not the name of a plan of packs"
            continue
        fold = None if name["fold"] is None else int(name["fold"])
        plan = PlanFile(
            shards=shards, name=name["name"],
            split=split_pieces((one.rows for one in shards.manifest.shards), name["split"], fold),
            column=name["column"], length=int(name["length"]),
        )  # fmt: skip
        try:
            problem = plan.problem(deep=deep)
        except (DataError, LookupError):  # the dataset lacks the column
            problem = f"{path}: the column in its name cannot be packed"
        if problem:
            yield problem


def _rise(values: np.ndarray, end: int) -> bool:
    """Return whether offsets rise from 0 to an end."""
    return bool(values[0] == 0 and values[-1] == end and (values[1:] >= values[:-1]).all())
