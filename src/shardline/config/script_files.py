"""Files of the project that a training script is given as arguments: they count in its runs' identities."""

import os
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from shardline.config.argument_paths import argument_files
from shardline.config.hub_models import hub_files
from shardline.config.layout import ResultsLayout
from shardline.config.scripts import ARGUMENT, is_script, split_script
from shardline.config.settings.run import RunSettings
from shardline.config.source_files import find_code_files

# Digesting takes about a second then, once for each state of the file.
_LARGEST_BYTES = 1 << 30
# What the script writes must not count: its run would be stale as soon as it is trained.
_WRITTEN = re.compile(
    r"-*(.*[-_.])?(o|out|output|outfile|save|log|logfile)([-_.](file|path|to|as))?", re.IGNORECASE
)


def files_that_count(
    model: str, settings: RunSettings, layout: ResultsLayout, where: str
) -> list[Path]:
    """Return the files whose bytes count in a run: those of `code_files`, then what the model is made from.

    That is a script's arguments, what values of `model_args` name, and the folder that a model of
    transformers is made from.

    Args:
        model: the resolved model.
        settings: the run's.
        where: file and row, as messages begin.

    Raises:
        ConfigError: a name or pattern of `code_files` matches no file, a folder is none, or a value of
            `model_args` leads into the results.
    """
    given = [path for path in _arguments(model, layout) if path.suffix != ".py"]
    small = (path for path in given if path.stat().st_size <= _LARGEST_BYTES)
    named = find_code_files(settings.code_files, layout.root, where)
    made_from = hub_files(model, settings.model_args, layout.root, where)
    arguments = argument_files(model, settings, layout, named, where)
    return list(dict.fromkeys([*named, *small, *made_from, *arguments]))


def code_of_arguments(model: str, layout: ResultsLayout) -> dict[str, str]:
    """Return the Python files among a script's arguments, by their part of an identity document.

    Args:
        model: the resolved model.

    Returns:
        Such as `{"argument train.py": "argument: train.py run.py"}`: the file, and the script
        beside which Python looks for its imports as well.
    """
    names = [
        path.relative_to(layout.root).as_posix()
        for path in _arguments(model, layout)
        if path.suffix == ".py"
    ]
    return {
        f"argument {name}": f"{ARGUMENT} {shlex.join([name, split_script(model)[0]])}"
        for name in names
    }


def _arguments(model: str, layout: ResultsLayout) -> Iterator[Path]:
    """Yield the files of the project that a script's arguments name, but for what it writes."""
    words = split_script(model)[1:] if is_script(model) else []
    for before, word in pairwise(["", *words]):
        option, equals, value = word.partition("=")
        asked = [(before if before.startswith("-") else "", word)]
        if equals:
            asked.append((option, value))
        for name, text in asked:
            # argparse reads further arguments from @FILE
            path = _file_of(text, layout) or _file_of(text.removeprefix("@"), layout)
            if path and not _WRITTEN.fullmatch(name):
                yield path


def _file_of(text: str, layout: ResultsLayout) -> Path | None:
    """Return a file of the project that is no result and no log; None where a text names none."""
    root = layout.root
    path = Path(os.path.normpath(root / text))
    # unlike Path.is_file, for a text of any length and with any character
    if not os.path.isfile(path):  # noqa: PTH113
        return None
    if not path.is_relative_to(root):  # perhaps by a link to the project's folder
        path = path.resolve()
    made = (layout.results, layout.store, layout.logs, root / ".snakemake")
    if not path.is_relative_to(root) or any(path.is_relative_to(folder) for folder in made):
        return None
    return path
