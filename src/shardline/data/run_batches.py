"""Batches of a run for one rank: of one dataset or a mix, as its settings define them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

from msgspec import UNSET, structs

from shardline.config.code_paths import COLLATE, COLLATE_EXPECTED
from shardline.config.resolved import DatasetPlace, as_type
from shardline.config.settings.run_settings import Pack, Pad, RunSettings
from shardline.core.construct import make_object
from shardline.core.error_texts import import_class
from shardline.core.errors import ConfigError, DataError
from shardline.core.objects import read_object
from shardline.core.world import World
from shardline.data.capacity import LABEL_BYTES
from shardline.data.classes import rows_of_classes, weights_of_classes
from shardline.data.collate import Collate, Mode
from shardline.data.dataset import Dataset
from shardline.data.integrity import Policy
from shardline.data.moments import FeatureSummary, Moments, RunningMoments
from shardline.data.packing import Packed, describe_packs, packed
from shardline.data.python.applied import OwnTransforms, calls_of
from shardline.data.repeats import Repeater, Repeats
from shardline.data.sample_index import RowUnits, SampleIndex
from shardline.data.sample_stream import SampleStream, StreamPart
from shardline.data.shard_map import ShardMap
from shardline.data.statistics import ByColumn, pooled
from shardline.data.transforms.repeat_check import check_samples
from shardline.data.transforms.transform_steps import TransformSpec, Where
from shardline.data.trial_samples import trial_samples
from shardline.data.window_stream import WindowStream
from shardline.data.workers import make_pool
from shardline.records.datasets import DatasetSchema, Manifest
from shardline.records.trainings import PackedSamples
from shardline_io.order.chance import Key
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.lengths import Lengths, first_rows
from shardline_io.order.mix import MixOrder, MixPart, joined
from shardline_io.order.pieces import num_rows
from shardline_io.order.sampling import TrainOrder

# Window of a split that is read once in order: more rows would only use memory for their places.
_ONCE_ROWS = 1 << 18
_CHECK_S = 5.0  # to try a transform, per split


class _Parts(NamedTuple):
    """Parts of a stream, and the same parts of a mix."""

    streamed: tuple[StreamPart, ...]
    mixed: tuple[MixPart, ...]


class RunBatches:
    """Batches of a run, from datasets with one schema.

    Args:
        places: manifests and shards of the datasets, in the order of the mix.
        settings: resolved settings of the run.
        verify: when shards are verified against their checksums.
        num_sharing: number of ranks that share this machine's CPU cores.
        read_as: manifest whose schema and preprocessing apply instead, for rows to predict.
        with_own_transforms: whether to apply the transforms that datasets have of their own.

    Attributes:
        datasets: the sealed datasets.

    Raises:
        DataError: a dataset is missing, or its schema differs from the first dataset's.
    """

    def __init__(
        self, places: Sequence[DatasetPlace], settings: RunSettings, *,
        verify: Policy = "first", num_sharing: int = 1, read_as: Manifest | None = None,
        with_own_transforms: bool = True,
    ) -> None:  # fmt: skip
        self._objects = [one.python for one in places]
        self._with_own = with_own_transforms
        self.datasets = [
            Dataset(one.manifest, one.shards, verify=verify, fold=one.fold, read_as=read_as)
            for one in places
        ]
        self._weights = [one.share for one in places]
        self._settings, self._num_sharing = settings, num_sharing
        self._packs: dict[tuple[str, str], Packed] = {}
        self._checked: set[Any] = set()
        self._repeater = Repeater()
        first = self.datasets[0].manifest
        if len(places) > 1 and any(one.manifest.preprocessing for one in self.datasets):
            raise DataError(
                f"dataset {first.dataset} is in a mix, but source.preprocess fits each dataset alone; make one dataset "
                "of the files, or remove source.preprocess from the mix's datasets"
            )
        for dataset in self.datasets[1:]:
            if dataset.manifest.schema != first.schema:
                raise DataError(
                    f"dataset {dataset.manifest.dataset} has {_described(dataset.manifest.schema)}, expected "
                    f"{_described(first.schema)} like {first.dataset} in the same mix; build both datasets with "
                    "the same columns and classes"
                )

    @property
    def manifest(self) -> Manifest:
        """Manifest of the first dataset; all datasets have its schema."""
        return self.datasets[0].manifest

    @cached_property
    def statistics(self) -> ByColumn:
        """Statistics of the train rows of all datasets by column.

        Raises:
            DataError: a file of statistics is missing or damaged.
        """
        return pooled([dataset.statistics for dataset in self.datasets])

    @cached_property
    def label_statistics(self) -> FeatureSummary:
        """Statistics of the train rows' labels of all datasets.

        They are sealed with a dataset of named columns. For a table they are computed here, in a pass
        over its labels.
        """
        if "labels" in self.statistics:
            return self.statistics["labels"]
        return pooled([{"labels": _of_labels(one.shards)} for one in self.datasets])["labels"]

    def train(
        self, world: World, **options: Any
    ) -> tuple[WindowStream[Any], TrainOrder | MixOrder]:
        """Return this rank's training batches and their order.

        Args:
            options: options of `ShardStream`.

        Raises:
            DataError: a dataset has too few rows.
            ConfigError: a transform or a user's function cannot be created, or draws from a global
                generator.
        """
        data, settings = self._settings.data, self._settings
        first = self.datasets[0]
        if not (self._is_mix or data.pack) and self._is_by_columns(data.transform, "train"):
            plain = first.train_order(settings, world)
            return first.stream(plain, **options), plain
        order: TrainOrder | MixOrder
        parts = self._classes() if data.class_weights is not None else self._parts("train")
        if self._is_mix:
            rows = sum(num_rows(part.pieces) for part in parts.mixed)
            order = MixOrder(
                parts=parts.mixed,
                global_batch=settings.global_batch,
                seed=settings.seed,
                window_rows=self._window_units(parts.streamed),
                epoch_samples=data.epoch_samples or rows,
                rank=world.rank,
                world_size=world.world_size,
                accumulate=settings.trainer.accumulate,
                lengths=Lengths.of(structs.asdict(settings.trainer)),
            )
        else:
            rows_in_memory = self._window_units(parts.streamed)
            order = first.train_order(settings, world, parts.mixed[0].pieces, rows_in_memory)
        return self._stream(parts.streamed, order, data.transform, "train", **options), order

    def held_out(
        self, split: str, *, batch: int, rank: int = 0, world_size: int = 1,
        kind: Callable[..., HeldOutOrder] = HeldOutOrder, limit: int | float = 1.0, **options: Any,
    ) -> tuple[WindowStream[Any], HeldOutOrder]:  # fmt: skip
        """Return this rank's batches of a held-out split of all datasets, and their order.

        Args:
            batch: rows of a batch over all ranks.
            kind: class of the order, which decides how ranks share the rows.
            limit: number of the split's first samples to visit, or a share of the split.
            options: options of `ShardStream`.

        Raises:
            DataError: there are fewer rows than ranks.
        """
        data, first = self._settings.data, self.datasets[0]
        if len(self.datasets) == 1 and not data.pack:
            order = first.held_out_order(
                split,
                batch=batch,
                window_bytes=data.window_bytes,
                rank=rank,
                world_size=world_size,
                kind=kind,
                limit=limit,
            )
            order = _at_once(order, options.get("num_epochs"))
            if self._is_by_columns(data.eval_transform, split):
                return first.stream(order, **options), order
        parts = self._parts(split)
        if not any(num_rows(part.pieces) for part in parts.mixed):
            names = ", ".join(one.manifest.dataset for one in self.datasets)
            raise DataError(
                f"the {split} split of {names} has no rows, expected at least one for each rank; give it a share in "
                "the dataset's `splits`, or let the run use another split"
            )
        order = kind(
            pieces=first_rows(joined([part.pieces for part in parts.mixed]), limit),
            global_batch=batch,
            window_rows=self._window_units(parts.streamed),
            rank=rank,
            world_size=world_size,
        )
        order = _at_once(order, options.get("num_epochs"))
        return self._stream(parts.streamed, order, data.eval_transform, split, **options), order

    @property
    def _is_mix(self) -> bool:
        return len(self.datasets) > 1 or self._settings.data.class_weights is not None

    def _is_by_columns(self, transform: object, split: str) -> bool:
        """Return whether batches consist of whole columns, without work on single samples."""
        is_plain = transform is None and self._settings.data.collate in (None, "pad")
        return is_plain and not any(self._has_own(one, split) for one in self.datasets)

    def _has_own(self, dataset: Dataset, split: str) -> bool:
        return self._with_own and bool(calls_of(dataset.manifest, split))

    def _own(
        self, parts: Sequence[StreamPart], split: str, *, has_chance: bool
    ) -> dict[int, OwnTransforms]:
        """Return the transforms that the datasets have of their own, by key of the part.

        Raises:
            ConfigError: the object with the transforms is not known here.
        """
        own = {}
        for part in parts:
            dataset = self._owner(part)
            if self._has_own(dataset, split):
                given = self._objects[self.datasets.index(dataset)]
                if given is None:
                    raise ConfigError(
                        f"dataset {dataset.manifest.dataset} has transforms of its own for the {split} split, and its "
                        "class is not known here, expected the class to apply them; use a config that contains the "
                        "dataset, or set the transform to None and name it in data.transform and data.eval_transform"
                    )
                assert dataset.manifest.samples is not UNSET
                own[part.key] = OwnTransforms(
                    given=given, form=dataset.manifest.samples, split=split, has_chance=has_chance
                )
        return own

    def _parts(self, split: str) -> _Parts:
        streamed = [self._part(dataset, self._units(dataset, split)) for dataset in self.datasets]
        mixed = [
            MixPart(
                key=dataset.key,
                pieces=part.units.pieces,
                weight=weight,
                name=f"dataset {dataset.manifest.dataset}",
            )
            for dataset, part, weight in zip(self.datasets, streamed, self._weights, strict=True)
        ]
        return _Parts(tuple(streamed), tuple(mixed))

    def _units(self, dataset: Dataset, split: str) -> SampleIndex:
        if self._settings.data.pack:
            return self._packed(dataset, split, self._settings.data.pack)
        return RowUnits(shards=dataset.shards, pieces=dataset.shards.pieces(split))

    def _packed(self, dataset: Dataset, split: str, pack: Pack) -> Packed:
        key = dataset.key, split
        if key not in self._packs:
            self._packs[key] = packed(dataset, split, pack)
        return self._packs[key]

    def packs(self) -> PackedSamples | None:
        """Return the record of the train split's blocks or packs; None without `data.pack`.

        Raises:
            ConfigError, DataError: the blocks or packs cannot be created.
        """
        if (pack := self._settings.data.pack) is None:
            return None
        of = [(dataset, self._packed(dataset, "train", pack)) for dataset in self.datasets]
        return describe_packs(pack, of)

    def _classes(self) -> _Parts:
        """Return the rows of each class with a weight, as parts."""
        dataset, wanted = self.datasets[0], self._settings.data.class_weights
        weights = weights_of_classes(wanted, dataset.manifest)
        names = [str(name) for name in dataset.manifest.schema.classes]
        chosen = rows_of_classes(dataset.shards, dataset.shards.pieces("train"), len(names))
        streamed, mixed = [], []
        for name, units in zip(names, chosen, strict=True):
            weight = Fraction(str(weights.get(name, 0)))
            if weight > 0 and (units.pieces or not isinstance(wanted, str)):
                key, of = (
                    f"{dataset.key}/{name}",
                    f"class {name} of dataset {dataset.manifest.dataset}",
                )
                streamed.append(self._part(dataset, units))
                mixed.append(MixPart(key=key, pieces=units.pieces, weight=weight, name=of))
        return _Parts(tuple(streamed), tuple(mixed))

    def _part(self, dataset: Dataset, units: SampleIndex) -> StreamPart:
        return StreamPart(
            units=units,
            shards=dataset.shards,
            key=number_of(dataset.key),
            check=dataset.verifier.check,
        )

    def _window_units(self, parts: Sequence[StreamPart]) -> int:
        largest = max(part.units.unit_bytes for part in parts)
        return self._settings.data.window_bytes // (largest + LABEL_BYTES)

    def _stream(
        self, parts: Sequence[StreamPart], order: Any, transform: Any, split: str, **options: Any
    ) -> SampleStream:
        is_training = not isinstance(order, HeldOutOrder)
        own = self._own(parts, split, has_chance=is_training)
        if transform is not None or own:
            key = "data.transform" if is_training else "data.eval_transform"
            spec = TransformSpec(written=transform, what=key, has_chance=is_training, own=own)
            where = partial(self._where, split)
            self._check(spec, parts, where)
            workers = self._settings.data.workers
            options |= {
                "pool": make_pool(workers, spec, where=where, num_sharing=self._num_sharing),
                "repeats": Repeats(self._repeater, spec, where),
            }
        for part in parts:
            rows = part.units.rows([p for p in part.units.pieces if p.first < p.last])
            self._owner(part).claim(rows, order.global_batch, self._settings.data.window_bytes)
        return SampleStream(parts, order, self._collate(parts), seed=self._settings.seed, **options)

    def _check(self, spec: TransformSpec, parts: Sequence[StreamPart], where: Where) -> None:
        """Check a transform for randomness with some samples of each part, for a few seconds at most."""
        asked = spec.what, tuple((part.key, part.units.pieces) for part in parts)
        if asked in self._checked:
            return
        self._checked.add(asked)
        samples = trial_samples(
            parts,
            self._settings.seed,
            num_datasets=len(self.datasets),
            has_chance=spec.has_chance,
        )
        number = check_samples(spec, samples, where, limit_s=_CHECK_S)
        if next(samples, None):
            print(
                f"{spec.what}: {number} samples were transformed twice before the start, with equal results; "
                f"the check ended after {_CHECK_S:.0f} s",
                flush=True,
            )

    def _where(self, split: str, key: Key) -> str:
        """Return the description of a sample in messages."""
        return f"dataset {self._names.get(key[1], '')}, {split} split: row id {key[3]}"

    @cached_property
    def _names(self) -> Mapping[int, str]:
        return {number_of(one.key): one.manifest.dataset for one in self.datasets}

    def _owner(self, part: StreamPart) -> Dataset:
        return next(one for one in self.datasets if one.shards is part.shards)

    def _collate(self, parts: Sequence[StreamPart]) -> Collate:
        columns, collate = parts[0].units.columns, self._settings.data.collate
        if isinstance(collate, dict):
            if Pad.fits(collate):
                pad = as_type(collate, Pad)
                return Collate(columns, lengths=pad.lengths, multiple=pad.multiple)
            named = read_object(collate, "data.collate", expected=COLLATE_EXPECTED)
            return Collate(columns, function=make_object(named, ""))
        if collate is None or collate in COLLATE:
            return Collate(columns, mode=cast("Mode", collate or "pad"))
        return Collate(columns, function=import_class(collate, "data.collate"))


def _of_labels(shards: ShardMap) -> FeatureSummary:
    """Return the statistics of a table's train labels."""
    found = RunningMoments().moments()
    for piece in shards.pieces("train"):
        with shards.opened(piece.shard) as file:
            labels = shards.read(file, "labels", piece.shard, piece.first, piece.last)
        found = found.merge(Moments.exactly(labels[:, None]))
    return found.summary()


def number_of(key: str) -> int:
    """Return a part's number in the keys of random numbers, a function of the part's key alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")


def _described(schema: DatasetSchema) -> str:
    columns = schema.columns or {"features": f"{schema.feature_dtype}{schema.feature_shape}"}
    text = ", ".join(f"{name}: {column}" for name, column in columns.items())
    return f"the columns {text} and {len(schema.classes)} classes"


def _at_once(order: HeldOutOrder, num_epochs: int | None) -> HeldOutOrder:
    """Return an order with smaller windows but the same batches if each row is read once."""
    rows = min(order.window_rows, _ONCE_ROWS)
    return replace(order, window_rows=rows) if num_epochs == 1 else order
