"""Files that the arguments and the code of a run name, and whether they count in its identity."""

# For texts of any length with any character, os.path returns False, but pathlib raises.
# ruff: noqa: PTH111, PTH112, PTH113, PTH118, PTH202

import glob
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from shardline.config.hub_models import hub_files, keys_of_folders
from shardline.config.layout import ResultsLayout
from shardline.config.scripts import ARGUMENT, is_script, split_script
from shardline.config.settings import Plain
from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import ConfigError

# Such files take about 15 s to digest, once after each change.
_LARGEST_BYTES = 16 << 30
_MOST_FILES = 10_000
_LEFT_OUT = {"__pycache__", ".git", ".snakemake"}
_OF_SYSTEM = tuple(map(Path, ("/dev", "/proc", "/run", "/sys")))
# Files that the model writes must not count: its run would be stale after the training.
_WRITTEN = re.compile(
    r"(.*[-_.])?(o|out|output|outfile|save|log|logs|logfile|cache|tmp|temp|scratch)"
    r"([-_.]?(file|path|to|as|dir|folder|root))?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Argument:
    """A value of `model_args` that is an existing path, or a path into the results.

    Attributes:
        key: Key such as `model_args.init`; in a list with position, `model_args.parts.0`.
        text: The value.
        path: Absolute path, without following links.
        is_plain: Whether the text is only a name, which may not be a path.
    """

    key: str
    text: str
    path: Path
    is_plain: bool

    @cached_property
    def files(self) -> list[Path] | None:
        """The files, sorted; None if there are too many files or bytes."""
        if os.path.isfile(self.path):
            found = [self.path]
        else:
            found = []
            for folder, below, names in os.walk(self.path):
                below[:] = sorted(set(below) - _LEFT_OUT)
                paths = (os.path.join(folder, name) for name in names)
                found += [Path(path) for path in paths if os.path.isfile(path)]
                if len(found) > _MOST_FILES:
                    return None
        size = sum(os.path.getsize(path) for path in found)
        return sorted(found) if size <= _LARGEST_BYTES else None


def argument_files(
    model: str, settings: RunSettings, layout: ResultsLayout, named: Collection[Path], where: str
) -> list[Path]:
    """Return the files in `model_args` of a run whose bytes count.

    Args:
        model: Resolved model.
        named: Files of `code_files`.
        where: File and row, the start of messages.

    Raises:
        ConfigError: A path leads into results or store, and `code_files` does not name its files.
    """
    found: list[Path] = []
    for one in _arguments(model, settings, layout):
        is_name = _is_name_alone(one)
        files = [] if is_name else one.files or []
        if (
            not is_name
            and _is_made(one.path, layout)
            and not (files and _real(files) <= _real(named))
        ):
            raise _of_results(one, layout, where)
        found += files
    counted = _real(named) if found else set()
    return [path for path in dict.fromkeys(found) if not counted.issuperset(_real([path]))]


def _real(paths: Collection[Path]) -> set[str]:
    return {os.path.realpath(path) for path in paths}


def uncounted_paths(model: str, settings: RunSettings, layout: ResultsLayout) -> list[str]:
    """Return a warning for each value that is an existing path and does not count."""
    sentences = []
    for one in _arguments(model, settings, layout):
        found = f"{one.key}={one.text}"
        if _is_name_alone(one):
            sentences.append(
                f"{found} is also the name of a folder here, whose files do not count in the run's identity; write "
                f"./{one.text} if the model reads them, or name {one.key.split('.')[1]} in the column uncounted_args"
            )
        elif one.files is None:
            sentences.append(
                f"{found} contains more than {_MOST_FILES:,} files or {_LARGEST_BYTES >> 30} GiB, which do not count "
                "in the identity of the run; name those that the model reads in the column code_files, or "
                f"{one.key.split('.')[1]} in the column uncounted_args"
            )
    return sentences


def opted_out(settings: RunSettings, layout: ResultsLayout) -> list[Path]:
    """Return the paths in `uncounted_args`, which code may read without a warning."""
    keys = set(settings.uncounted_args.split())
    chosen = {key: value for key, value in settings.model_args.items() if key in keys}
    return [one.path for one in _existing(chosen, layout)]


def _arguments(model: str, settings: RunSettings, layout: ResultsLayout) -> Iterator[Argument]:
    left_out = {*settings.uncounted_args.split(), *keys_of_folders(model)}
    looked_at = {
        key: value
        for key, value in settings.model_args.items()
        if key not in left_out and not _WRITTEN.fullmatch(key)
    }
    yield from _existing(looked_at, layout)


def _existing(values: Plain, layout: ResultsLayout) -> Iterator[Argument]:
    for key, text in _texts(values, "model_args"):
        if not text or "\0" in text:
            continue
        path = Path(os.path.normpath(layout.root / os.path.expanduser(text)))
        if layout.root.is_relative_to(path) or any(
            path.is_relative_to(one) for one in (*_OF_SYSTEM, layout.logs)
        ):
            continue  # such as "." and "/", which separate something
        if os.path.isfile(path) or os.path.isdir(path) or _is_made(path, layout):
            yield Argument(key, text, path, is_plain=Path(text).name == text)


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _texts(item, f"{key}.{place}")


def _is_name_alone(one: Argument) -> bool:
    """Return whether a text is only a name that a folder happens to have."""
    return one.is_plain and os.path.isdir(one.path)


def _is_made(path: Path, layout: ResultsLayout) -> bool:
    """Return whether a path is in results or store, by text or through links."""
    folders = layout.results, layout.store
    if any(path.is_relative_to(folder) for folder in folders):
        return True
    if not os.path.lexists(path):  # only existing paths can lead there through links
        return False
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)


def _of_results(one: Argument, layout: ResultsLayout, where: str) -> ConfigError:
    made = layout.name_of(
        next(
            (
                folder
                for folder in (layout.results, layout.store)
                if one.path.is_relative_to(folder)
            ),
            layout.results,
        )
    )
    file = one.text if os.path.isfile(one.path) else f"{one.text.rstrip('/')}/model.safetensors"
    return ConfigError(
        f"{where}: {one.key}={one.text} leads into {made}, whose files other runs make, expected a file that counts in "
        f"this run's identity; copy it into the project (cp {file} weights/) and name the copy, or name {file} in the "
        "column code_files as well, once it is there"
    )


# Such a file takes about a second to digest, once after each change.
_LARGEST_FILE_BYTES = 1 << 30
# Files that the script writes must not count: its run would be stale after the training.
_OPTIONS_OF_OUTPUT = re.compile(
    r"-*(.*[-_.])?(o|out|output|outfile|save|log|logfile)([-_.](file|path|to|as))?", re.IGNORECASE
)


def files_that_count(
    model: str, settings: RunSettings, layout: ResultsLayout, where: str
) -> list[Path]:
    """Return the files whose bytes count in a run.

    These are `code_files`, files among the arguments of a script, files in `model_args`, and the
    folder of a model of transformers.

    Args:
        model: Resolved model.
        settings: Settings of the run.
        where: File and row, the start of messages.

    Raises:
        ConfigError: A name or pattern of `code_files` matches no file, a folder is missing, or a value
            of `model_args` leads into the results.
    """
    given = [path for path in _files_of_command(model, layout) if path.suffix != ".py"]
    small = (path for path in given if path.stat().st_size <= _LARGEST_FILE_BYTES)
    named = find_code_files(settings.code_files, layout.root, where)
    made_from = hub_files(model, settings.model_args, layout.root, where)
    arguments = argument_files(model, settings, layout, named, where)
    return list(dict.fromkeys([*named, *small, *made_from, *arguments]))


def code_of_arguments(model: str, layout: ResultsLayout) -> dict[str, str]:
    """Return the Python files among the arguments of a script, by part of the identity document.

    Args:
        model: Resolved model.

    Returns:
        For example `{"argument train.py": "argument: train.py run.py"}`: the file, and the script, in
        whose folder Python also looks for imports.
    """
    names = [
        path.relative_to(layout.root).as_posix()
        for path in _files_of_command(model, layout)
        if path.suffix == ".py"
    ]
    return {
        f"argument {name}": f"{ARGUMENT} {shlex.join([name, split_script(model)[0]])}"
        for name in names
    }


def _files_of_command(model: str, layout: ResultsLayout) -> Iterator[Path]:
    """Yield the files of the project among the arguments of a script, without outputs."""
    words = split_script(model)[1:] if is_script(model) else []
    for before, word in pairwise(["", *words]):
        option, equals, value = word.partition("=")
        asked = [(before if before.startswith("-") else "", word)]
        if equals:
            asked.append((option, value))
        for name, text in asked:
            # argparse reads further arguments from @FILE
            path = _file_of(text, layout) or _file_of(text.removeprefix("@"), layout)
            if path and not _OPTIONS_OF_OUTPUT.fullmatch(name):
                yield path


def _file_of(text: str, layout: ResultsLayout) -> Path | None:
    """Return the file of the project that a text names, if it is no result or log."""
    root = layout.root
    path = Path(os.path.normpath(root / text))
    # unlike Path.is_file, for texts of any length with any character
    if not os.path.isfile(path):
        return None
    if not path.is_relative_to(root):  # perhaps through a link to the project folder
        path = path.resolve()
    made = (layout.results, layout.store, layout.logs, root / ".snakemake")
    if not path.is_relative_to(root) or any(path.is_relative_to(folder) for folder in made):
        return None
    return path


def find_code_files(patterns: str, workdir: Path, where: str) -> list[Path]:
    """Return the files of `code_files` in order; the matches of a pattern are sorted.

    Raises:
        ConfigError: A name or pattern matches no file.
    """
    found: list[Path] = []
    for pattern in patterns.split():
        files = _match(pattern, workdir)
        if not files:
            raise ConfigError(f"{where}: code_files: {pattern} matches no file; check the path")
        found.extend(files)
    return list(dict.fromkeys(found))


def _match(pattern: str, workdir: Path) -> list[Path]:
    if (workdir / pattern).is_file():  # the name may contain characters of patterns
        return [Path(os.path.normpath(workdir / pattern))]
    # Path.glob rejects absolute patterns
    matches = sorted(glob.glob(pattern, root_dir=workdir, recursive=True))  # noqa: PTH207
    paths = [Path(os.path.normpath(workdir / match)) for match in matches]
    return [path for path in paths if path.is_file()]
