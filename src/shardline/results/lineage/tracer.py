"""Following a file to what made it, from sealed files alone: no config, no Snakemake."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from shardline.config.accepted import describe_acceptance
from shardline.config.dataset import order_of_part, shards_of_part
from shardline.config.layout import Kind, ResultsLayout
from shardline.config.scripts import is_script
from shardline.core.canonical import short_digest
from shardline.core.digests import file_blake3, file_sha256
from shardline.core.errors import ConfigError, DataError
from shardline.results import forms
from shardline.results.lineage.graph import Action, File, Lineage
from shardline.results.lineage.records import Records, expect_name, record_of
from shardline.results.recorded import accepted_of

_ID = r"[0-9a-f]{12}"
_SEALED = {"model.safetensors", "metrics.jsonl", "provenance.json"}  # of a training


def trace(path: Path, layout: ResultsLayout) -> Lineage:
    """Find out what made a file of the results or the store.

    Args:
        path: the file; a link stands for what it points at.
        layout: where results and store lie.

    Raises:
        ConfigError: no record names what made such a file.
        DataError: it is not there, or a sealed file that it was made from is not.
    """
    tracer = _Tracer(Records(layout))
    name = tracer.records.name_of(path)
    if not path.exists():
        raise DataError(f"{path} is not there, expected a file; check the path")
    tracer.add(name)
    found = tracer.lineage
    found.file = name
    found.problem = _problem(path, found.files[name])
    return found


def _problem(path: Path, file: File) -> str:
    kind, _, expected = file.digest.partition(":")
    if not expected:
        return ""
    digest = {"sha256": file_sha256, "blake3": file_blake3}[kind](path)
    if digest == expected:
        return ""
    return (
        f"{file.name} is not what {file.made_by} wrote: its {kind.upper()} is {digest[:12]}..., recorded is "
        f"{expected[:12]}...; run `shardline verify` for the remedy"
    )


class _Tracer:
    """Follows files to their actions, each once."""

    def __init__(self, records: Records) -> None:
        self.lineage = Lineage(file="")
        self.records, self._names = records, records.names
        runs, datasets, reports, shards, work = (
            re.escape(str(folder))
            for folder in (
                self._names.folder_of("run"),
                self._names.folder_of("dataset"),
                self._names.folder_of("report"),
                self._names.all_shards,
                self._names.all_work,
            )
        )
        self._rules: list[tuple[re.Pattern[str], Callable[..., File]]] = [
            (re.compile(pattern), rule)
            for pattern, rule in (
                (rf"{runs}/(?P<run>{_ID})/(run|identity)\.json", self._resolved),
                (rf"{runs}/(?P<run>{_ID})/[^/]+", self._trained),
                (rf"{runs}/(?P<run>{_ID})/evaluations/[^/]+\.json", self._evaluated),
                (rf"{datasets}/(?P<dataset>{_ID})/[^/]+", self._sealed),
                (rf"{reports}/(?P<report>[0-9a-f]{{12}})/.+", self._reported),
                (rf"{shards}/(?P<dataset>{_ID})/parts/(?P<part>[^/]+)\.json", self._listed),
                (rf"{shards}/(?P<dataset>{_ID})/shard-\d+\.safetensors", self._shard),
                (rf"{work}/(?P<run>{_ID})/.+", self._checkpoint),
            )
        ]  # fmt: skip

    def add(self, name: str) -> str:
        """Add a file with all that is behind it, and return its name."""
        if name not in self.lineage.files:
            for pattern, rule in self._rules:
                if match := pattern.fullmatch(name):
                    self.lineage.files[name] = File(name=name)
                    self.lineage.files[name] = rule(name, **match.groupdict())
                    return name
            raise ConfigError(
                f"nothing is recorded of {name}, expected a file of a run, a dataset or a report in "
                f"{self._names.results}, or a shard or training checkpoint in the store ({self._names.store}); name "
                "one of these"
            )
        return name

    def _act(
        self, action: str, inputs: Callable[[], Iterable[str]], *,
        identity: Mapping[str, Any] | None = None, record: Mapping[str, Any] | None = None,
    ) -> str:  # fmt: skip
        """Add an action with its inputs, once, and return its id."""
        if action not in self.lineage.actions:
            made_by = {
                key: identity[key] for key in ("versions", "code") if identity and key in identity
            }
            code = short_digest(made_by) if made_by else ""
            made = Action(id=action, code=code, record=record or {})
            self.lineage.actions[action] = made  # before its inputs: damaged files may form a loop
            made.inputs = list(dict.fromkeys(inputs()))
        return action

    # --- runs -----------------------------------------------------------------------------------

    def _resolved(self, name: str, run: str) -> File:
        spec = self.records.read(self._names.run(run) / "run.json", forms.RunSpec)
        action = self._act(
            f"resolve_run/{run}",
            lambda: [
                self._source(f"{self.records.rows(run)} of the run table, the config's defaults")
            ],
            record=spec.get("action"),
        )
        return File(name=name, made_by=action)

    def _trained(self, name: str, run: str) -> File:
        expect_name(name, _SEALED)
        folder = self._names.run(run)
        provenance = self.records.read(folder / "provenance.json", forms.Provenance)
        sha256 = provenance.get("files", {}).get(Path(name).name)
        if accepted := accepted_of(self.records.at(folder)):
            action = self._accept("run", run, Path(name).name, accepted)
        else:
            action = self._train(run, record_of(provenance))
        return File(name=name, digest=f"sha256:{sha256}" if sha256 else "", made_by=action)

    def _accept(self, kind: Kind, identity: str, file: str, accepted: Mapping[str, Any]) -> str:
        """Add the acceptance of an earlier result, and that result as far as it is still there."""
        earlier = self._names.result(kind, str(accepted["from"]["id"])) / file
        deleted = f"{earlier}, deleted since: {describe_acceptance(accepted)}"
        return self._act(
            f"accept/{identity}/{file}",
            lambda: [
                self.add(str(earlier))
                if self.records.at(earlier).exists()
                else self._source(deleted)
            ],
            record=accepted["action"],
        )

    def _checkpoint(self, name: str, run: str) -> File:
        # there is none before the training's end
        provenance = self.records.read_if_there(
            self._names.run(run) / "provenance.json", forms.Provenance
        )
        record = record_of(provenance) if provenance else None
        return File(name=name, made_by=self._train(run, record))

    def _train(self, run: str, record: Mapping[str, Any] | None) -> str:
        folder = self._names.run(run)
        return self._act(
            f"train/{run}",
            lambda: [self.add(str(folder / "run.json")), self._manifest_of(folder)],
            identity=self.records.read(folder / "identity.json", forms.TrainingIdentity),
            record=record,
        )

    def _evaluated(self, name: str, run: str) -> File:
        folder, evaluation = self._names.run(run), self.records.read(name, forms.Evaluation)
        by_script = is_script(self.records.read(folder / "run.json", forms.RunSpec)["model_class"])
        # a script's own figures are in the provenance
        own = "provenance.json" if by_script else "model.safetensors"
        action = self._act(
            f"evaluate/{run}/{Path(name).stem}",
            lambda: [
                self.add(str(folder / own)), self.add(str(folder / "run.json")),
                self._manifest_of(folder),
            ],
            identity=evaluation.get("identity"),
            record=evaluation.get("action"),
        )  # fmt: skip
        return File(name=name, made_by=action)

    def _manifest_of(self, folder: Path) -> str:
        dataset = self.records.read(folder / "run.json", forms.RunSpec)["dataset"]["id"]
        return self.add(str(self._names.manifest(dataset)))

    # --- datasets -------------------------------------------------------------------------------

    def _sealed(self, name: str, dataset: str) -> File:
        expect_name(name, {"manifest.json", "provenance.json"})
        path = self._names.manifest(dataset)
        provenance = self.records.read_if_there(
            path.with_name("provenance.json"), forms.DatasetProvenance
        )
        manifest = self.records.read(path, forms.Manifest)
        sha256 = provenance.get("files", {}).get(Path(name).name)
        if accepted := accepted_of(self.records.at(path.parent)):
            taken = self._accept("dataset", dataset, Path(name).name, accepted)
            return File(name=name, digest=f"sha256:{sha256}" if sha256 else "", made_by=taken)
        action = self._act(
            f"seal_dataset/{dataset}",
            lambda: self._parts(dataset, manifest, provenance),
            identity=manifest["identity"],
            record=provenance.get("action"),
        )
        return File(name=name, digest=f"sha256:{sha256}" if sha256 else "", made_by=action)

    def _parts(
        self, dataset: str, manifest: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> list[str]:
        """Add the lists of shards, as the store has them or the provenance names their actions."""
        folder = self.records.layout.parts(dataset)
        parts = {Path(item["id"]).name: item for item in provenance.get("parts", [])}
        parts |= {file.stem: parts.get(file.stem, {}) for file in folder.glob("*.json")}
        found = []
        for part in sorted(parts, key=order_of_part):
            name = self.records.name_of(folder / f"{part}.json")
            action = self._build(dataset, part, manifest, parts[part])
            self.lineage.files[name] = File(name=name, made_by=action)
            found.append(name)
        return found or self._sources(dataset, manifest)

    def _listed(self, name: str, dataset: str, part: str) -> File:
        listed = self.records.read(self._names.parts(dataset) / f"{part}.json", forms.Part)
        return File(
            name=name,
            made_by=self._build(
                dataset, part, self.records.manifest(dataset), listed.get("action")
            ),
        )

    def _shard(self, name: str, dataset: str) -> File:
        file, number = Path(name).name, int(Path(name).stem.partition("-")[2])
        lists = self._names.parts(dataset)
        listed = self.records.at(lists).glob("*.json")
        for part in sorted(listed, key=lambda path: order_of_part(path.stem)):
            if number not in shards_of_part(part.stem):
                continue
            document = self.records.read(part, forms.Part)
            digests = {record["file"]: record["blake3"] for record in document["shards"]}
            if file not in digests:
                continue
            action = self._build(
                dataset, part.stem, self.records.manifest(dataset), document.get("action")
            )
            return File(name=name, digest=f"blake3:{digests[file]}", made_by=action)
        raise DataError(
            f"{name} stands in no list of {lists}, so no job is known to have "
            "finished it; run the pipeline to its end"
        )

    def _build(
        self, dataset: str, part: str, manifest: Mapping[str, Any], record: Mapping[str, Any] | None
    ) -> str:
        return self._act(
            f"build_shards/{dataset}/{part}",
            lambda: self._sources(dataset, manifest),
            identity=manifest.get("identity"),
            record=record,
        )

    def _sources(self, dataset: str, manifest: Mapping[str, Any]) -> list[str]:
        """Add the dataset's source, with the files that it read and their digests of then."""
        identity = manifest.get("identity", {})
        kind = identity.get("settings", {}).get("source", {}).get("type")
        name = (
            f"source {kind} of {dataset}"
            if kind
            else f"source of {dataset}, known once the dataset is sealed"
        )
        members = []
        for key, sha256 in identity.get("source", {}).items():
            members.append(f"{name}: {key.partition('/')[2]}")
            self.lineage.files[members[-1]] = File(name=members[-1], digest=f"sha256:{sha256}")
        self.lineage.files[name] = File(name=name, members=tuple(members))
        return [name]

    def _source(self, name: str) -> str:
        self.lineage.files[name] = File(name=name)
        return name

    # --- reports --------------------------------------------------------------------------------

    def _reported(self, name: str, report: str) -> File:
        path = self._names.report(report).with_name("report.json")
        data = self.records.read(path, forms.Report)
        action = self._act(
            f"render_report/{report}",
            lambda: [file for run in data["runs"] for file in self._reported_run(run)],
            record=data.get("action"),
        )
        return File(name=name, made_by=action)

    def _reported_run(self, run: Mapping[str, Any]) -> list[str]:
        folder = self._names.run(str(run["id"]))
        evaluation = str(run["headline"]["action"]).rpartition("/")[2]
        names = ("run.json", "metrics.jsonl", "provenance.json", f"evaluations/{evaluation}.json")
        return [self.add(str(folder / name)) for name in names]
