"""The identity documents of datasets, trainings, evaluations, predictions and reports."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardline.config import scripts
from shardline.config.checked_sources import SHIPPED_SOURCES, WITH_TOKENS
from shardline.config.code_paths import (
    EVALUATED,
    METRIC,
    SHIPPED_MODELS,
    SHIPPED_TRANSFORMS,
    counted_data,
)
from shardline.config.resolved import settings_of, without_legacy_values
from shardline.core.canonical import short_digest
from shardline.core.package import report_folder
from shardline.identity import CodeIndex, Lock
from shardline.identity.code_index import OURS
from shardline.identity.resolution import has_method
from shardline.identity.user_code import UserCode, reach
from shardline.identity.versions import PACKAGES, PUBLIC, exported_by, versions_of
from shardline.records.identities import IdentityDocument


@dataclass(frozen=True, kw_only=True)
class StageProgram:
    """What runs in a stage beside Shardline itself: a model, a source or a script.

    Attributes:
        named: what the document holds of it: a shipped class by name, a class of an installed
            package by import path, a script with its arguments. None of a user's class, which
            is the same wherever it lies.
        history: the history of the shipped class that it is.
        reached: the histories of what it reaches of Shardline's public surface.
        code: the user's own code behind it.
        imports: packages that this code imports, by import name.
    """

    named: str | None
    history: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    code: UserCode | None = None
    imports: frozenset[str] = frozenset()


def find_program(code: CodeIndex, workdir: Path, path: str) -> StageProgram:
    """Return what a resolved model or source is.

    Args:
        code: where the project's modules are found.
        workdir: the project's folder.
        path: import path, or a script.
    """
    if scripts.is_file(path):
        shown = {"__main__": scripts.split_script(path)[0]}
        index = script_index(code, workdir, path)
        if scripts.is_script(path):
            return _users(path, index, "__main__", shown)
        # the script may ask for any name of it, as of a config in Python
        return _users(None, index, "__main__", shown, whole="an argument of the script")
    shipped = {found: name for name, found in (SHIPPED_MODELS | SHIPPED_SOURCES).items()}
    if path in shipped:
        return StageProgram(named=shipped[path], history=(shipped[path],))
    if path in SHIPPED_TRANSFORMS.values():  # named among the settings
        return StageProgram(named=None, history=("transforms",))
    module = path.partition(":")[0]
    if code.find(module) is None:  # of an installed package, which counts by its version
        return StageProgram(named=path, imports=frozenset({module.partition(".")[0]}))
    return _users(None, code, path, {})


def _users(
    named: str | None, index: CodeIndex, entry: str, shown: Mapping[str, str],
    whole: str = "",
) -> StageProgram:  # fmt: skip
    """Return a program of the user's.

    Args:
        shown: what modules are called among the definitions, where not by their name.
        whole: why all of the entry's module counts, if it does.
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
    """Return the history `io` if a module of the user's among these imports shardline_io."""
    own = (name for name in modules if name.partition(".")[0] not in OURS and index.find(name))
    imports = (name for module in own for name in index.module(module).imports)
    return {"io"} if "shardline_io" in {name.partition(".")[0] for name in imports} else set()


def script_index(code: CodeIndex, workdir: Path, path: str) -> CodeIndex:
    """Return where the modules of a script, or of a Python file that it is given, are found.

    Args:
        path: of which `scripts.is_file` holds.
    """
    words = scripts.split_script(path)
    files = [workdir / word for word in (words[:1] if scripts.is_script(path) else words)]
    # Python looks beside the script first
    beside = dict.fromkeys(file.parent for file in files)
    return CodeIndex((*beside, *code.roots), main=files[0], workdir=workdir)


# Keys of a dataset that say how the work is cut; all others decide what is built.
_NOT_IN_DATASET = {"shards_per_job"}


@dataclass(kw_only=True)
class Documents:
    """Writes the identity documents of one project.

    Attributes:
        workdir: the project's folder.
        code: where the project's modules are found.
        lock: pins of every package.
    """

    workdir: Path
    code: CodeIndex
    lock: Lock
    _programs: dict[str, StageProgram] = field(default_factory=dict)
    _environments: dict[frozenset[str], dict[str, object]] = field(default_factory=dict)
    _methods: dict[tuple[str, str], bool | None] = field(default_factory=dict)

    def program(self, path: str) -> StageProgram:
        """Return what a resolved model or source is, by import path or as a script."""
        if path not in self._programs:
            self._programs[path] = find_program(self.code, self.workdir, path)
        return self._programs[path]

    def has_method(self, path: str, method: str) -> bool | None:
        """Return what `identity.resolution.has_method` tells of a resolved model, which is no script."""
        if (path, method) not in self._methods:
            self._methods[path, method] = has_method(self.code, path, method)
        return self._methods[path, method]

    def definitions(self, paths: Mapping[str, str]) -> dict[str, dict[str, dict[str, str]]]:
        """Return what tells a change of the user's code: digests of definitions, by part of the document.

        Args:
            paths: import paths or a script by key of `code` in the document, such as `model`.

        Returns:
            Of each part `definitions`, and `whole`: modules that count as a whole, with the reason.
        """
        programs = self.programs_of(paths)
        return {
            part: {"definitions": one.code.definitions, "whole": one.code.whole}
            for part, one in programs.items()
            if one.code
        }

    def programs_of(self, paths: Mapping[str, str]) -> dict[str, StageProgram]:
        """Return what resolved paths are, by their part of a document."""
        return {part: self.program(path) for part, path in paths.items()}

    def use_io(self, paths: Mapping[str, str]) -> bool:
        """Return whether a script, or a Python file that it is given, imports `shardline_io`.

        Args:
            paths: resolved paths, by their part of a document.
        """
        return any("io" in one.reached for one in self.programs_of(paths).values())

    def dataset(
        self, settings: Mapping[str, Any], source_class: str, content: Mapping[str, str]
    ) -> IdentityDocument:
        """Return the document of a dataset.

        Args:
            settings: its entry in the config, of `source` what counts and the type.
            content: digests of what the source reads.
        """
        program = self.program(source_class)
        source = settings["source"]
        if source["type"] in WITH_TOKENS and "tokenizer" not in source:  # a file, among the content
            program = replace(program, history=(*program.history, "tokenizer"))
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
        self, settings: Mapping[str, Any], paths: Mapping[str, str], datasets: Mapping[str, str],
        files: Mapping[str, str] | None = None, environment: Mapping[str, object] | None = None,
    ) -> IdentityDocument:  # fmt: skip
        """Return the document of a training.

        Args:
            settings: the run's, resolved.
            paths: of the model, of Python files that a script is given, see
                `script_files.code_of_arguments`, of what samples go through, see
                `code_paths.paths_of`, and of the evaluation's metrics, which count in the evaluation alone.
            datasets: weight of each by digest, in the order in which they are mixed.
            files: digests of the files of `code_files` and of arguments, by place and name.
            environment: what counts of the environment that a script has of its own.
        """
        is_script = scripts.is_script(paths["model"])
        trained = {part: path for part, path in paths.items() if not part.startswith(METRIC)}
        programs = self.programs_of(trained)
        counted = counted_settings(settings)
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
            "inputs": {"datasets": mixed} if len(mixed) > 1 else {"dataset": mixed[0][0]},
            **self.made_by("script" if is_script else "training", programs, settings),
            **own,
        }

    def evaluation(
        self, settings: Mapping[str, Any], paths: Mapping[str, str], run: str
    ) -> IdentityDocument:
        """Return the document of an evaluation.

        Args:
            settings: the run's, resolved.
            paths: as in `training`.
            run: digest of the training.
        """
        own = {"evaluation": settings.get("evaluation", {})}
        return {
            "stage": "evaluate",
            "settings": counted_settings(own).get("evaluation", {}),
            "inputs": {"run": run},
            **self.evaluated_by(settings, paths),
        }

    def evaluated_by(
        self, settings: Mapping[str, Any], paths: Mapping[str, str]
    ) -> IdentityDocument:
        """Return the part of an evaluation's document that its programs decide."""
        if scripts.is_script(paths["model"]):  # whose own figures are passed on
            return self.made_by("script", {}, settings)
        read = {
            part: path
            for part, path in paths.items()
            if part.startswith(("model", METRIC, *EVALUATED))
        }
        programs = self.programs_of(read)
        if settings.get("evaluation", {}).get("headline"):  # whose interval is bootstrapped
            programs["headline"] = StageProgram(named=None, imports=frozenset({"scipy"}))
        steps: dict[str, object] = {}
        if self.has_method(paths["model"], "test_step"):  # in whose metrics ranks are added up
            steps = {"measured_by": "test_step", "ranks": _ranks_of_steps(settings)}
            if self.has_method(paths["model"], "describe_sample"):
                programs["samples"] = StageProgram(named=None, history=("samples",))
        return self.made_by("evaluation", programs, settings) | steps

    def report(
        self,
        settings: Mapping[str, Any],
        evaluations: Mapping[str, str],
        outcomes: Sequence[Any] = (),
    ) -> IdentityDocument:
        """Return the document of a report.

        Args:
            settings: what the page names and draws beside the runs.
            evaluations: digest of each run's evaluation.
            outcomes: what became of the runs without a result; none of a complete report.
        """
        inputs: dict[str, object] = {"evaluations": dict(evaluations)}
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
        self, stage: str, programs: Mapping[str, StageProgram], settings: Mapping[str, Any]
    ) -> IdentityDocument:
        """Return versions, code and environment of a stage that runs programs."""
        own = {stage, *(name for one in programs.values() for name in one.history)}
        reached = {name for one in programs.values() for name in one.reached}
        packages = {name for one in own | reached for name in PACKAGES[one]}
        imports = packages.union(*(one.imports for one in programs.values()))
        return {
            "versions": versions_of(own, settings, reached),
            "code": {part: one.code.digest for part, one in programs.items() if one.code},
            "environment": self._environment(imports),
        }

    def _environment(self, imports: Iterable[str]) -> dict[str, object]:
        key = frozenset(imports)
        if key not in self._environments:
            self._environments[key] = self.lock.environment(sorted(key))
        return self._environments[key]


def counted_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's settings as its identity documents hold them."""
    counted = without_legacy_values(settings, settings_of("train"))
    counted.pop("code_files", None)  # whose bytes count, and not where they lie
    counted.pop("uncounted_args", None)  # which decides what counts, and no bit
    counted.pop("environment", None)  # whose packages count
    if "data" in counted:
        counted["data"] = counted_data(counted["data"])
    return counted


def _ranks_of_steps(settings: Mapping[str, Any]) -> int:
    """Return the ranks on which a `test_step` evaluates: as planned, or one, see `evaluates_on_ranks`."""
    if settings["elastic"] or settings["strategy"] == "fsdp":
        return 1
    return int(settings["nodes"] * settings["devices"])


def _named(key: str, program: StageProgram) -> dict[str, str]:
    return {} if program.named is None else {key: program.named}


def _page_files() -> dict[str, str]:
    """Return the text of every file that makes the report's page, by name."""
    files = sorted(path for path in report_folder().iterdir() if path.is_file())
    return {path.name: path.read_text(encoding="utf-8") for path in files}
