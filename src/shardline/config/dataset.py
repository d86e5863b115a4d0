"""A dataset that the config asks for, and the parts that its shards are written in."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardline.config.layout import ResultsLayout
from shardline.config.settings.datasets import DatasetSettings


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset to be built.

    Attributes:
        names: its names in the config; entries that give the same rows are one dataset.
        id: its identity's digest; names its folders.
        layout: where its files lie.
        settings: its entry in the config, with the number of shards.
        source_class: import path of the source.
        source: the entry's `source`, with what the class gets of its files: their names and splits.
        files: external files that the source reads, absolute.
        document: the identity document.
        definitions: what tells a change of the user's code, see `Documents.definitions`.
        read_as: the dataset by whose source these are read, where they are files to be predicted.
    """

    names: tuple[str, ...]
    id: str
    layout: ResultsLayout
    settings: DatasetSettings
    source_class: str
    source: dict[str, Any]
    files: tuple[Path, ...]
    document: dict[str, Any]
    definitions: dict[str, Any] = field(default_factory=dict)
    read_as: "Dataset | None" = None

    @property
    def name(self) -> str:
        """Its names as people read them."""
        return ", ".join(self.names)

    @property
    def manifest(self) -> Path:
        """The sealed manifest."""
        return self.layout.manifest(self.id)

    @property
    def provenance(self) -> Path:
        """How shards and manifest were made."""
        return self.manifest.with_name("provenance.json")

    @property
    def asset(self) -> Path:
        """What it is as a data asset of Azure ML, where it is registered as one."""
        return self.manifest.with_name("data_asset.json")

    @property
    def num_shards(self) -> int:
        """Files that it is cut into, which `shards: auto` stands for no longer."""
        return int(self.settings.shards)

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer's file, which the source reads beside `files`; most have none."""
        found = Path(self.source.get("tokenizer", ""))
        return found if found.is_absolute() else None

    @property
    def parts(self) -> dict[str, range]:
        """The shards that each job writes, by part name."""
        shards, step = self.num_shards, self.settings.shards_per_job
        ranges = [range(first, min(first + step, shards)) for first in range(0, shards, step)]
        return {f"{part.start:05d}-{part.stop - 1:05d}": part for part in ranges}


def order_of_part(name: str) -> tuple[int, int, str]:
    """Return what parts are sorted by: their shards' numbers, whose names' order is no text's."""
    shards = shards_of_part(name)
    return shards.start, shards.stop, name


def shards_of_part(name: str) -> range:
    """Return the shards of a part by its name; none if it is no part's."""
    first, _, last = name.partition("-")
    return range(int(first), int(last) + 1) if first.isdecimal() and last.isdecimal() else range(0)
