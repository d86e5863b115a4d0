"""Sampling by class weight: the rows of each class as one part of a mix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardline.core.errors import ConfigError, DataError
from shardline.data.sample_index import LoadedRows, StoredRows
from shardline.data.shard_map import ShardMap
from shardline.data.transforms.transform_steps import Sample
from shardline.data.windowmap import WindowMap
from shardline.records.datasets import Manifest
from shardline_io.order.pieces import Piece


@dataclass(frozen=True, kw_only=True)
class SelectedRows(StoredRows):
    """Some rows of a dataset; unit u of a shard is its u-th chosen row.

    Attributes:
        chosen: chosen rows [units] in each shard's file, ascending, by shard.
    """

    chosen: Mapping[int, np.ndarray]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Units of each shard that has any."""
        return tuple(Piece(shard, 0, len(rows)) for shard, rows in self.chosen.items())

    def rows(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """Return all rows from the first to the last unit of each piece."""
        return tuple(self._span(piece) for piece in pieces)

    def load(self, memory: WindowMap, pieces: Sequence[Piece]) -> "LoadedSelection":
        """Return chosen rows of a window that is in memory."""
        places, before = [], 0
        spans = self.rows(pieces)
        for piece, span in zip(pieces, spans, strict=True):
            places.append(self._rows(piece) - span.first + before)
            before += span.last - span.first
        return LoadedSelection(LoadedRows(self.shards, memory, spans), np.concatenate(places))

    def lengths(self, name: str, pieces: Sequence[Piece]) -> np.ndarray:
        """Return the number of values of a varying column in each row [n] int64."""
        found = []
        for piece in pieces:
            span = self._span(piece)
            found.append(self.shards.lengths(name, [span])[self._rows(piece) - span.first])
        return np.concatenate(found)

    def _rows(self, piece: Piece) -> np.ndarray:
        return self.chosen[piece.shard][piece.first : piece.last]

    def _span(self, piece: Piece) -> Piece:
        rows = self._rows(piece)
        return Piece(piece.shard, int(rows[0]), int(rows[-1]) + 1)


class LoadedSelection:
    """Chosen rows in memory."""

    def __init__(self, rows: LoadedRows, places: np.ndarray) -> None:
        self._rows, self._places = rows, places

    @property
    def ids(self) -> np.ndarray:
        """Row ids [n] int64."""
        ids: np.ndarray = self._rows.ids[self._places]
        return ids

    def sample(self, place: int) -> Sample:
        """Return a row."""
        return self._rows.sample(int(self._places[place]))

    def batch(self, places: np.ndarray) -> dict[str, np.ndarray] | None:
        """Return rows as columns [n, *shape]; None if a column varies or is optional."""
        return self._rows.batch(self._places[places])


def rows_of_classes(
    shards: ShardMap, pieces: Sequence[Piece], num_classes: int
) -> list[SelectedRows]:
    """Return the rows of each class in some pieces, by the column `labels`; reads each label once.

    Raises:
        DataError: a label is not the index of a class.
    """
    chosen: list[dict[int, list[np.ndarray]]] = [{} for _ in range(num_classes)]
    for piece in pieces:
        with shards.opened(piece.shard) as file:
            labels = shards.read(file, "labels", piece.shard, piece.first, piece.last)
        if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
            raise DataError(
                f"shard {shards.path(piece.shard)} has labels from {labels.min()} to {labels.max()}, expected 0 to "
                f"{num_classes - 1}, the indices of the classes; build the dataset again"
            )
        order = np.argsort(labels, kind="stable")
        ends = np.searchsorted(labels[order], np.arange(num_classes + 1))
        for number, of_class in enumerate(chosen):
            rows = order[ends[number] : ends[number + 1]]
            if len(rows):
                of_class.setdefault(piece.shard, []).append(rows + piece.first)
    return [
        SelectedRows(shards=shards, chosen={key: np.concatenate(of) for key, of in by.items()})
        for by in chosen
    ]


def weights_of_classes(
    wanted: str | Mapping[str, float] | None, manifest: Manifest
) -> dict[str, float]:
    """Return the weights of classes by name.

    Args:
        wanted: the setting `data.class_weights`.
        manifest: manifest of the dataset.

    Raises:
        ConfigError: a name is not a class of the dataset.
    """
    names = [str(name) for name in manifest.schema.classes]
    weights = dict.fromkeys(names, 1.0) if isinstance(wanted, str) else dict(wanted or {})
    if unknown := weights.keys() - set(names):
        raise ConfigError(
            f"data.class_weights={wanted} names {min(unknown)}, expected classes of dataset "
            f"{manifest.dataset}: {', '.join(names) or 'none'}; use these names, or `balanced`"
        )
    return weights
