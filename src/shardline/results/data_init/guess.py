"""Guess a dataset's source from files, a folder or a Python path."""

import importlib
import inspect
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.found_files import is_hidden
from shardline.core.urls import is_url, open_table
from shardline.results.data_init.written import Entry

_PYTHON = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PACKED = (".gz", ".zip", ".zst", ".bz2", ".xz")
_KINDS = {
    ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".npy": "numpy", ".npz": "numpy", ".h5": "hdf5", ".hdf5": "hdf5", ".tar": "webdataset", ".txt": "text",
    ".md": "text", ".jpg": "image_folder", ".jpeg": "image_folder", ".png": "image_folder", ".mds": "mds",
    ".arrow": "hf", "-ubyte": "idx",
}  # fmt: skip
_OF_FOLDERS = ("hf", "image_folder", "litdata", "mds", "webdataset")
_GIVEN = ("num_shards", "files", "self")  # arguments that are no options
_MOST_FILES = 20_000  # looked at in a folder


def guess_entry(places: Sequence[str], workdir: Path, name: str = "") -> Entry:
    """Guess the entry of a dataset.

    Args:
        places: Files, patterns or folders, relative to the project's folder; or one Python path `pkg.mod:Class`.
        workdir: Folder of the project.
        name: Name of the dataset. Default: by the files.

    Raises:
        ConfigError: There are no such files, or files of no known format.
        DataError: A file cannot be read. The message names it.
    """
    if len(places) == 1 and _PYTHON.fullmatch(places[0]) and not (workdir / places[0]).exists():
        return _of_class(places[0], workdir, name)
    given = [place if is_url(place) else os.path.normpath(place) for place in places]
    kind, files = _kind_of(given, workdir)
    entry = Entry(name=name or _name_of(given[0]), source={"type": kind, "files": files})
    match kind:
        case "delta":
            version = open_table(str(workdir / given[0])).version()
            entry.source = {"type": kind, "table": given[0], "version": version}
            entry.comments["version"] = "the latest; other rows need another version"
            _of_table(entry, workdir)
        case "csv" | "parquet" | "numpy" | "hdf5":
            _of_table(entry, workdir)
        case "image_folder":
            entry.source["decode"] = "at_read"
            entry.comments["decode"] = "keeps the files' bytes; or size: [224, 224] to store pixels"
            entry.notes += [
                "classes are the names of the folders; list them in classes to choose their order"
            ]
        case "text":
            entry.notes += [
                "unit: line # a row is a line; or paragraph, file",
                "tokenizer: tokenizer.json # default: bytes",
            ]
        case "jsonl":
            _of_jsonl(entry, workdir)
    _try(entry, workdir)
    return entry


def _of_table(entry: Entry, workdir: Path) -> None:
    # pyarrow is of an extra, which other sources do not need
    from shardline.results.data_init.tables import guess_arrays, guess_table

    is_array = entry.source["type"] in ("numpy", "hdf5")
    (guess_arrays if is_array else guess_table)(entry, workdir)


def _kind_of(places: Sequence[str], workdir: Path) -> tuple[str, list[str]]:
    """Return the type of the source, and its `files`."""
    if len(places) == 1 and (folder := workdir / places[0]).is_dir():
        if (folder / "_delta_log").is_dir():
            return "delta", []
        names = list(islice(_below(folder), _MOST_FILES))
        kind = _kind_of_names(names, places[0])
        if kind in _OF_FOLDERS:
            return kind, [places[0]]
        ends = Counter(_suffix(name) for name in names if _kind(name) == kind)
        depth = "**/" if any(os.sep in name for name in names if _kind(name) == kind) else ""
        return kind, [f"{places[0]}/{depth}*{end}" for end in sorted(ends)]
    for place in places:
        if not (workdir / place).exists() and not any(mark in place for mark in "*?["):
            raise ConfigError(
                f"{place}: not found, expected a file, a folder, a pattern or a Python path such as "
                "mypkg.data:Flowers; check the path"
            )
    found = [name for place in places for name in _matching(place, workdir)]
    if not found:
        raise ConfigError(f"{places[0]}: matches no file; check the pattern")
    kind = _kind_of_names(found, places[0])
    if kind == "image_folder":
        above = [os.path.dirname(os.path.dirname(name)) for name in found]  # noqa: PTH120
        return kind, [os.path.commonpath(above) or "."]
    return kind, [*places]


def _matching(place: str, workdir: Path) -> list[str]:
    if (workdir / place).exists():
        return [place]
    return sorted(str(path.relative_to(workdir)) for path in workdir.glob(place) if path.is_file())


def _below(folder: Path) -> Iterator[str]:
    for parent, folders, names in os.walk(str(folder)):
        folders[:] = sorted(one for one in folders if not is_hidden(one))
        for name in sorted(names):
            if not is_hidden(name):
                yield os.path.relpath(os.path.join(parent, name), folder)  # noqa: PTH118


def _suffix(name: str) -> str:
    path = Path(name.lower())
    return "".join(path.suffixes[-2:]) if path.suffix in _PACKED else path.suffix


def _kind(name: str) -> str | None:
    lower = name.lower().removesuffix(".gz") if "ubyte" in name else name.lower()
    if lower.endswith("-ubyte"):
        return "idx"
    path = Path(lower)
    return _KINDS.get(Path(path.stem).suffix if path.suffix in _PACKED else path.suffix)


def _kind_of_names(names: Sequence[str], shown: str) -> str:
    """Return the type of the source for most of the files."""
    ends = {Path(name).name for name in names}
    if any(re.fullmatch(r"chunk-\d+-\d+(\.\w+)*\.bin", one) for one in ends):
        return "litdata"
    kinds = Counter(kind for name in names if (kind := _kind(name)))
    if not kinds:
        found = ", ".join(sorted({_suffix(name) or name for name in names})[:5]) or "no files"
        raise ConfigError(
            f"{shown}: contains {found}, expected files of a known format (CSV, Parquet, JSON Lines, NumPy, HDF5, "
            "images, text, tar); write a source class, see docs/how-to/write-a-source.md"
        )
    return kinds.most_common(1)[0][0]


def _name_of(place: str) -> str:
    stem = Path(place.rstrip("/")).name
    while _kind(stem) or Path(stem).suffix in _PACKED:
        stem = Path(stem).stem
    folder = Path(place).parent.name
    stem = stem if re.search(r"\w", stem.replace("*", "")) else folder
    return re.sub(r"\W+", "-", stem).strip("-") or "data"


def _of_class(path: str, workdir: Path, name: str) -> Entry:
    module, _, cls = path.partition(":")
    sys.path.insert(0, str(workdir))
    try:
        found = getattr(importlib.import_module(module), cls)
        parameters = [*inspect.signature(found).parameters.values()]
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be imported ({error}), expected a class or function; check the path"
        ) from None
    finally:
        sys.path.remove(str(workdir))
    given = {
        one.name: one.default
        for one in parameters
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) and one.name not in _GIVEN
    }
    required = [key for key, default in given.items() if default is inspect.Parameter.empty]
    entry = Entry(name=name or cls.lower(), source={"type": path}, shards=8)
    entry.source["options"] = dict.fromkeys(required)
    if required:
        entry.comments["options"] = f"set {', '.join(required)}, which have no default"
    if optional := [f"{key}: {of}" for key, of in given.items() if key not in required]:
        entry.notes.append(f"further options, with their defaults: {', '.join(optional)}")
    entry.source["files"] = []
    entry.comments["files"] = "list files that the class reads, so that their content counts"
    return entry


def _of_jsonl(entry: Entry, workdir: Path) -> None:
    import json

    from shardline.data.sources.packed import open_text, read_line

    names = [name for place in entry.source["files"] for name in _matching(place, workdir)]
    path = workdir / names[0]
    with open_text(path) as file:
        line = read_line(file, path)
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        entry.source["tokenize"] = {"tokens": "text"}
        entry.notes.append("the first line is no JSON object; name the key of the text in tokenize")
        return
    texts = {key: value for key, value in row.items() if isinstance(value, str)}
    numbers = {
        key: "int64" if isinstance(value, int) else "float64"
        for key, value in row.items()
        if isinstance(value, int | float)
    }
    longest = max(texts, key=lambda key: len(texts[key]), default="")
    text = next((key for key in ("text", "content", "body") if key in texts), longest)
    if text:
        entry.source["tokenize"] = {"tokens": text}
        entry.comments["tokenize"] = f"a guess; the keys of text are {', '.join(texts)}"
    if numbers:
        entry.source["columns"] = numbers
        entry.comments["columns"] = (
            "numbers of the first line; add ? to a type if a row may lack the key"
        )
    entry.notes.append("label: KEY # with classes: [...] or num_classes, if a key is the label")


def _try(entry: Entry, workdir: Path) -> None:
    """Read the first rows as the entry says, and note what is wrong."""
    from shardline.results.data_show import read_source

    try:
        entry.read = read_source(entry.settings, workdir).read
    except ShardlineError as error:
        text = " ".join(str(error).replace(f"{workdir}{os.sep}", "").split())
        entry.notes.append(f"it is not readable yet: {text}")
