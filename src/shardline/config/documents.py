"""The identity documents of datasets, trainings, evaluations, predictions and reports."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardline.config import combined, scripts
from shardline.config.callbacks import CALLBACKS, counted_callbacks
from shardline.config.checked_sources import SHIPPED_SOURCES, WITH_TOKENS
from shardline.config.code_paths import (
    EVALUATED,
    METRIC,
    SHIPPED_MODELS,
    SHIPPED_TRANSFORMS,
    counted_data,
)
from shardline.config.objects import counted_objects
from shardline.config.resolved import settings_of, without_legacy_values
from shardline.config.schedules import is_of_training
from shardline.config.settings import Plain
from shardline.core.canonical import short_digest
from shardline.core.one_lightning import DISTRIBUTIONS, Package
from shardline.core.package import report_folder
from shardline.identity import CodeIndex, Lock
from shardline.identity.class_kind import PYTHON_DATA, Kind, kind_in_project, kind_of
from shardline.identity.code_index import OURS
from shardline.identity.resolution import has_method
from shardline.identity.user_code import UserCode, reach
from shardline.identity.versions import HISTORIES, PACKAGES, PUBLIC, exported_by, versions_of
from shardline.records.identities import IdentityDocument


@dataclass(frozen=True, kw_only=True)
class StageProgram:
    """A program that a stage runs: a model, a source, a script or other code that a run names.

    Attributes:
        named: Name in the identity document: the name of a shipped class, the import path of a class of
            an installed package, or a script with its arguments. None for a class of the user, which
            may move.
        history: History of the shipped class.
        reached: Histories of the public parts of Shardline that the program uses.
        code: Code of the user in the program.
        imports: Packages that this code imports, by import name.
    """

    named: str | None
    history: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    code: UserCode | None = None
    imports: frozenset[str] = frozenset()


def find_program(code: CodeIndex, workdir: Path, path: str) -> StageProgram:
    """Return the program of a resolved model, source or other path.

    Args:
        code: Index of the modules of the project.
        workdir: Folder of the project.
        path: Import path, or a script.
    """
    if scripts.is_file(path):
        shown = {"__main__": scripts.split_script(path)[0]}
        index = script_index(code, workdir, path)
        if scripts.is_script(path):
            return _users(path, index, "__main__", shown)
        # the script may use any name in it, as in a config in Python
        return _users(None, index, "__main__", shown, whole="an argument of the script")
    shipped = {found: name for name, found in (SHIPPED_MODELS | SHIPPED_SOURCES).items()}
    if path in shipped:
        return StageProgram(named=shipped[path], history=(shipped[path],))
    if path in SHIPPED_TRANSFORMS.values():  # named in the settings
        return StageProgram(named=None, history=("transforms",))
    module = path.partition(":")[0]
    if code.find(module) is None:  # in an installed package, which counts by version
        return StageProgram(named=path, imports=frozenset({module.partition(".")[0]}))
    return _users(None, code, path, {})


def _users(
    named: str | None, index: CodeIndex, entry: str, shown: Mapping[str, str],
    whole: str = "",
) -> StageProgram:  # fmt: skip
    """Return a program of the user.

    Args:
        shown: Names of modules in definitions, if they differ from the module names.
        whole: Reason why the whole module of the entry counts, if it does.
    """
    found = reach(index, entry, whole)
    definitions = {}
    for name, digest in found.definitions.items():
        module, colon, definition = name.partition(":")
        definitions[f"{shown.get(module, module)}{colon}{definition}"] = digest
    imported, _ = index.closure(entry.partition(":")[0])
    reached = {PUBLIC[module] for module in imported if module in PUBLIC}
    reached |= exported_by(found.shipped) | _io_of_users(index, imported)
    return StageProgram(
        named=named,
        reached=tuple(sorted(filter(None, reached))),
        code=replace(
            found,
            definitions=definitions,
            whole={shown.get(module, module): why for module, why in found.whole.items()},
        ),
        imports=found.third_party,
    )


def _io_of_users(index: CodeIndex, modules: Iterable[str]) -> set[str]:
    """Return the history `io` if a module of the user imports `shardline_io`."""
    own = (name for name in modules if name.partition(".")[0] not in OURS and index.find(name))
    imports = (name for module in own for name in index.module(module).imports)
    return {"io"} if "shardline_io" in {name.partition(".")[0] for name in imports} else set()


def script_index(code: CodeIndex, workdir: Path, path: str) -> CodeIndex:
    """Return the index of the modules of a script, or of a Python file among its arguments.

    Args:
        path: Path for which `scripts.is_file` is true.
    """
    words = scripts.split_script(path)
    files = [workdir / word for word in (words[:1] if scripts.is_script(path) else words)]
    # Python looks beside the script first
    beside = dict.fromkeys(file.parent for file in files)
    return CodeIndex((*beside, *code.roots), main=files[0], workdir=workdir)


# Keys of `checkpoint` that change no result.
NOT_COUNTED = {"milestones", "keep_last"}

# Keys of a dataset that only divide the work; all others decide what is built.
_NOT_IN_DATASET = {"shards_per_job"}


@dataclass(kw_only=True)
class Documents:
    """The writer of the identity documents of a project.

    Attributes:
        workdir: Folder of the project.
        code: Index of the modules of the project.
        lock: Pins of all packages.
    """

    workdir: Path
    code: CodeIndex
    lock: Lock
    _programs: dict[str, StageProgram] = field(default_factory=dict)
    _environments: dict[frozenset[str], IdentityDocument] = field(default_factory=dict)
    _methods: dict[tuple[str, str], bool | None] = field(default_factory=dict)
    _kinds: dict[str, Kind] = field(default_factory=dict)

    def program(self, path: str) -> StageProgram:
        """Return the program of an import path or script, cached."""
        if path not in self._programs:
            self._programs[path] = find_program(self.code, self.workdir, path)
        return self._programs[path]

    def has_method(self, path: str, method: str) -> bool | None:
        """Return the result of `identity.resolution.has_method` for a model that is not a script."""
        if (path, method) not in self._methods:
            self._methods[path, method] = has_method(self.code, path, method)
        return self._methods[path, method]

    def kind_of(self, path: str) -> Kind:
        """Return the kind of the object that a dataset's source names, see `identity.class_kind`."""
        if path not in self._kinds:
            is_shipped = path in SHIPPED_SOURCES.values()
            self._kinds[path] = "source" if is_shipped else kind_of(self.code, path)
        return self._kinds[path]

    def _is_python_data(self, path: str) -> bool:
        """Return whether the result version `python` counts for a dataset.

        A class whose kind depends on installed packages counts from the second version on. Its documents do not name
        the first one.
        """
        if path in SHIPPED_SOURCES.values():
            return False
        kind = kind_in_project(self.code, path)
        is_open = kind == "unknown" or self.kind_of(path) in PYTHON_DATA
        return kind in PYTHON_DATA or (is_open and len(HISTORIES["python"]) > 1)

    def definitions(self, paths: Mapping[str, str]) -> dict[str, dict[str, dict[str, str]]]:
        """Return digests of the definitions in the code of the user, by part of the document.

        Args:
            paths: Import paths or a script, by key of `code` in the document, such as `model`.

        Returns:
            For each part `definitions`, and `whole`: modules that count as a whole, with the reason.
        """
        programs = self.programs_of(paths)
        return {
            part: {"definitions": one.code.definitions, "whole": one.code.whole}
            for part, one in programs.items()
            if one.code
        }

    def programs_of(self, paths: Mapping[str, str]) -> dict[str, StageProgram]:
        """Return the programs of resolved paths, by part of the document."""
        return {part: self.program(path) for part, path in paths.items()}

    def lightning_of(self, paths: Mapping[str, str]) -> tuple[Package, ...]:
        """Return the packages of Lightning that code imports, see `core.one_lightning`; ranks load the first.

        Shipped models, and models that import neither, train with `pytorch_lightning`.

        Args:
            paths: Import paths by part of the document, with the model.
        """
        if scripts.is_script(
            paths["model"]
        ):  # which imports what it likes, in a process of its own
            return ()
        reached = {
            part: self.lock.reached(one.imports, ends={"lightning"})
            for part, one in self.programs_of(paths).items()
        }
        of_model, anywhere = reached["model"], set[str]().union(*reached.values())
        is_own = "lightning" in of_model and "pytorch-lightning" not in of_model
        first: Package = "lightning" if is_own else "pytorch_lightning"
        others = (name for name, one in DISTRIBUTIONS.items() if name != first and one in anywhere)
        return (first, *others)

    def use_io(self, paths: Mapping[str, str]) -> bool:
        """Return whether a script, or a Python file among its arguments, imports `shardline_io`.

        Args:
            paths: Resolved paths by part of the document.
        """
        return any("io" in one.reached for one in self.programs_of(paths).values())

    def dataset(
        self, settings: Plain, source_class: str, content: Mapping[str, str]
    ) -> IdentityDocument:
        """Return the document of a dataset.

        Args:
            settings: Entry in the config; `source` contains only what counts, and the type.
            content: Digests of the content that the source reads.
        """
        program = self.program(source_class)
        source = settings["source"]
        if (
            source["type"] in WITH_TOKENS and "tokenizer" not in source
        ):  # a file, which is in the content
            program = replace(program, history=(*program.history, "tokenizer"))
        if self._is_python_data(source_class):
            program = replace(program, history=(*program.history, "python"))
        if source.get("preprocess") is not None:
            program = replace(program, history=(*program.history, "preprocess"))
        splits = settings.get("splits", {})
        if splits.get("group") and (splits.get("stratify") or splits.get("balanced")):
            # see `data.split_plans`
            program = replace(program, imports=program.imports | {"sklearn"})
        counted = {key: value for key, value in settings.items() if key not in _NOT_IN_DATASET}
        counted = without_legacy_values(counted, settings_of("dataset"))
        source = {key: value for key, value in counted["source"].items() if key != "type"}
        counted["source"] = {**_named("type", program), **source}
        return {
            "stage": "dataset",
            "settings": counted,
            "source": dict(content),
            **self.made_by("data", {"source": program}, settings),
        }

    def training(
        self, settings: Plain, paths: Mapping[str, str], datasets: Mapping[str, str],
        files: Mapping[str, str] | None = None, environment: Mapping[str, object] | None = None,
        bases: Sequence[Mapping[str, str]] = (),
    ) -> IdentityDocument:  # fmt: skip
        """Return the document of a training.

        Args:
            settings: Resolved settings of the run.
            paths: Paths of the model, of Python files among the arguments of a script, see
                `script_files.code_of_arguments`, of objects, see `objects.paths_of_objects`, of transforms and
                collate function, see `code_paths.paths_of`, and of metrics, which count only in the evaluation.
            datasets: Weight of each dataset by digest, in the order of the mix.
            files: Digests of the files of `code_files` and of arguments, by position and name.
            environment: Counted part of the environment of the script, if it has its own.
            bases: What counts of the bases of the run, see `Base.counted`.
        """
        is_script = scripts.is_script(paths["model"])
        trained = {part: path for part, path in paths.items() if not part.startswith(METRIC)}
        programs = self.programs_of(trained)
        counted = counted_settings(settings, is_script=is_script)
        evaluation = counted.pop("evaluation", None)
        # a script evaluates its model while it trains
        own = {"evaluation": evaluation} if is_script and evaluation else {}
        if environment:
            own["environment"] = environment
        if files:
            own["code_files"] = dict(files)
        if named := {
            part: one.named for part, one in programs.items() if part != "model" and one.named
        }:
            own["sample_code"] = named
        mixed = [[key, weight] for key, weight in datasets.items()]
        return {
            "stage": "train",
            "settings": counted,
            **_named("model", programs["model"]),
            "inputs": {
                **({"datasets": mixed} if len(mixed) > 1 else {"dataset": mixed[0][0]}),
                **({"bases": [*map(dict, bases)]} if bases else {}),
            },
            **self.made_by("script" if is_script else "training", programs, settings),
            **own,
        }

    def evaluation(self, settings: Plain, paths: Mapping[str, str], run: str) -> IdentityDocument:
        """Return the document of an evaluation.

        Args:
            settings: Resolved settings of the run.
            paths: Paths as in `training`.
            run: Digest of the training.
        """
        own = {"evaluation": settings.get("evaluation", {})}
        return {
            "stage": "evaluate",
            "settings": counted_settings(own).get("evaluation", {}),
            "inputs": {"run": run},
            **self.evaluated_by(settings, paths),
        }

    def evaluated_by(self, settings: Plain, paths: Mapping[str, str]) -> IdentityDocument:
        """Return the part of the document of an evaluation that depends on its programs."""
        if scripts.is_script(paths["model"]):  # its own metrics are copied
            return self.made_by("script", {}, settings)
        read = {
            part: path
            for part, path in paths.items()
            if part.startswith(("model", METRIC, *EVALUATED))
        }
        programs = self.programs_of(read)
        if settings.get("evaluation", {}).get("headline"):  # its interval is bootstrapped
            programs["headline"] = StageProgram(named=None, imports=frozenset({"scipy"}))
        steps: IdentityDocument = {}
        if self.has_method(paths["model"], "test_step"):  # its metrics sum over ranks
            steps = {"measured_by": "test_step", "ranks": _ranks_of_steps(settings)}
            if self.has_method(paths["model"], "describe_sample"):
                programs["samples"] = StageProgram(named=None, history=("samples",))
        return self.made_by("evaluation", programs, settings) | steps

    def report(
        self,
        settings: Plain,
        evaluations: Mapping[str, str],
        outcomes: Sequence[Any] = (),
    ) -> IdentityDocument:
        """Return the document of a report.

        Args:
            settings: Names, notes and studies that the page shows.
            evaluations: Id of each run by digest of its evaluation.
            outcomes: Outcomes of runs without a result; empty for a complete report.
        """
        inputs: IdentityDocument = {"evaluations": dict(evaluations)}
        if outcomes:
            inputs["outcomes"] = list(outcomes)
        return {
            "stage": "report",
            "settings": without_legacy_values(settings, settings_of("report")),
            "inputs": inputs,
            "template": short_digest(_page_files()),
            **self.made_by("report", {}, settings),
        }

    def made_by(
        self, stage: str, programs: Mapping[str, StageProgram], settings: Plain
    ) -> IdentityDocument:
        """Return versions, code and environment of a stage with its programs."""
        own = {stage, *(name for one in programs.values() for name in one.history)}
        reached = {name for one in programs.values() for name in one.reached}
        packages = {name for one in own | reached for name in PACKAGES[one]}
        imports = packages.union(*(one.imports for one in programs.values()))
        return {
            "versions": versions_of(own, settings, reached),
            "code": {part: one.code.digest for part, one in programs.items() if one.code},
            "environment": self._environment(imports),
        }

    def _environment(self, imports: Iterable[str]) -> IdentityDocument:
        key = frozenset(imports)
        if key not in self._environments:
            self._environments[key] = self.lock.environment(sorted(key))
        return self._environments[key]


def counted_settings(settings: Plain, *, is_script: bool = False) -> dict[str, Any]:
    """Return the settings of a run that count in identity documents.

    Args:
        is_script: Whether a script reads the settings, so that they name no objects.
    """
    counted = without_legacy_values(settings, settings_of("train"))
    if not is_script:
        counted = counted_objects(counted)
        counted = _without_own_horizon(counted, settings)
    if CALLBACKS in counted:
        counted[CALLBACKS] = counted_callbacks(counted[CALLBACKS])
    counted = combined.counted(counted)
    if counted.pop("init_from", None) is None:  # the identity of the base counts, not its name
        counted.pop("init", None)
    counted.pop("code_files", None)  # the bytes count, not the paths
    counted.pop("uncounted_args", None)  # it decides what counts, but changes no result
    counted.pop("environment", None)  # its packages count
    if "checkpoint" in counted:  # training checkpoints that stay change no result
        counted["checkpoint"] = {
            key: value for key, value in counted["checkpoint"].items() if key not in NOT_COUNTED
        }
    if "data" in counted:
        counted["data"] = counted_data(counted["data"])
    return counted


def _without_own_horizon(counted: dict[str, Any], settings: Plain) -> dict[str, Any]:
    """Return counted settings without a horizon of the schedule that is the length of the training."""
    schedule = counted.get("schedule", {})
    ends = {"epochs", "steps"} & schedule.keys()
    if not ends or not is_of_training(settings["schedule"], settings["trainer"]):
        return counted
    left = {key: value for key, value in schedule.items() if key not in ends}
    return {**counted, "schedule": left}


def _ranks_of_steps(settings: Plain) -> int:
    """Return the number of ranks that evaluate with `test_step`, see `evaluates_on_ranks`."""
    if settings["elastic"] or settings["strategy"] == "fsdp":
        return 1
    return int(settings["nodes"] * settings["devices"])


def _named(key: str, program: StageProgram) -> dict[str, str]:
    return {} if program.named is None else {key: program.named}


def _page_files() -> dict[str, str]:
    """Return the text of each file of the template of the report, by name."""
    files = sorted(path for path in report_folder().iterdir() if path.is_file())
    return {path.name: path.read_text(encoding="utf-8") for path in files}
