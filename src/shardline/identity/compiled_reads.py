"""Reads by compiled code, which raises no audit event: wrappers for functions that open files.

A function is wrapped when its module is imported, or at the start if the module is imported already.
No module is imported here.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from importlib.machinery import ModuleSpec
from inspect import getattr_static
from itertools import islice, product
from types import ModuleType
from typing import Any

# Functions, classes that open their argument, and methods (with a dot), by the module that defines
# them, since other modules copy their names after its import.
OPENERS: dict[str, tuple[str, ...]] = {
    "cv2": ("imread",),
    "h5py._hl.files": ("File.__init__",),
    "onnxruntime.capi.onnxruntime_inference_collection": ("InferenceSession.__init__",),
    "polars.io.ipc.functions": ("read_ipc", "scan_ipc"),
    "polars.io.parquet.functions": ("read_parquet", "scan_parquet"),
    "polars.io.csv.functions": ("read_csv", "scan_csv"),
    "pyarrow._csv": ("read_csv", "open_csv"),
    "pyarrow._json": ("read_json", "open_json"),
    "pyarrow.dataset": ("dataset",),
    "pyarrow.feather": ("read_table", "read_feather"),
    "pyarrow.lib": ("OSFile", "memory_map"),
    "pyarrow.parquet.core": ("ParquetFile.__init__", "ParquetDataset.__init__", "read_table"),
    "safetensors._safetensors_rust": ("safe_open",),
    "sentencepiece": ("SentencePieceProcessor.LoadFromFile",),
    "tokenizers.tokenizers": ("Tokenizer.from_file",),
    "torch": ("from_file",),
    "torch.jit._serialization": ("load", "jit_module_from_flatbuffer"),
}
_MOST_BELOW = 1000  # files of a folder that is read as one dataset
# the function that gets each path, once it is set
_hearing: list[Callable[[str], None]] = []


def wrap_all(hear: Callable[[str], None]) -> None:
    """Make the openers of all modules report the files that they open, from now on.

    Args:
        hear: function that gets each path as written; it may raise.
    """
    _hearing[:] = [hear]
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        everywhere = _namespaces()
        for name in OPENERS.keys() & sys.modules.keys():
            _wrap(sys.modules[name], everywhere)


def opened_files() -> set[str]:
    """Return the files that this process has open read-only or mapped as data; only on Linux.

    A database that the process writes to is not included.
    """
    found = set()
    with suppress(OSError):
        for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with suppress(OSError, ValueError, StopIteration):
                with open(f"/proc/self/fdinfo/{number}") as info:  # noqa: PTH123
                    flags = next(int(line.split()[1], 8) for line in info if line[:6] == "flags:")
                if int(number) > 2 and flags & os.O_ACCMODE == os.O_RDONLY:
                    found.add(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
        with open("/proc/self/maps", errors="surrogateescape") as maps:  # noqa: PTH123
            # only the last field of a line, the path, contains slashes
            named = [
                (line.split(maxsplit=2)[1], line[at:].rstrip("\n"))
                for line in maps
                if (at := line.find("/")) > 0
            ]
        left_out = {
            path
            for rights, path in named
            if "x" in rights or (rights[1] == "w" and rights[3] == "s")
        }
        found |= {path for _, path in named} - left_out  # without libraries and written files
    return {path for path in found if path[:1] == "/" and os.path.isfile(path)}  # noqa: PTH113


class _Finder:
    """Finds the modules of `OPENERS` through the other finders, and wraps them after their execution."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in OPENERS:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            if find and (spec := find(name, path, target)):
                if loader := spec.loader:
                    with suppress(AttributeError):  # a loader whose methods cannot be set
                        loader.exec_module = _then_wrapped(loader.exec_module)
                found: ModuleSpec = spec
                return found
        return None


def _then_wrapped(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        _wrap(module, _namespaces())

    return exec_module


def _namespaces() -> list[dict[str, Any]]:
    return [getattr(module, "__dict__", {}) for module in [*sys.modules.values()]]


def _wrap(module: ModuleType, everywhere: Sequence[dict[str, Any]]) -> None:
    """Wrap the openers of a module, also in the modules that have copied their names."""
    for name in OPENERS[module.__name__]:
        first, _, method = name.partition(".")
        original = getattr(module, first, None)
        if original is None or isinstance(original, _Opener):
            continue
        if method:
            with suppress(AttributeError, TypeError):  # another version of the library
                setattr(original, method, _method(original, method))
            continue
        wrapper = _Opener(original)
        for names in everywhere:
            if names.get(first) is original:
                names[first] = wrapper


def _method(cls: type, name: str) -> Any:
    function, is_static = getattr(cls, name), isinstance(getattr_static(cls, name), staticmethod)
    if getattr(function, "_is_watched", False):
        return getattr_static(cls, name)

    @wraps(function)
    def opened(*arguments: Any, **named: Any) -> Any:
        _report(arguments if is_static else arguments[1:], named)
        return function(*arguments, **named)

    opened._is_watched = True  # type: ignore[attr-defined]
    return staticmethod(opened) if is_static else opened


class _Opener:
    """Function or class that reports a file before it opens it, and otherwise acts like the original."""

    def __init__(self, original: Any) -> None:
        self.__wrapped__ = original
        self.__module__ = original.__module__  # needed to pickle it

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        _report(arguments, named)
        return self.__wrapped__(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self.__wrapped__)

    def __subclasscheck__(self, cls: Any) -> bool:
        return issubclass(cls, self.__wrapped__)

    def __mro_entries__(self, bases: Any) -> tuple[Any, ...]:
        return (self.__wrapped__,)

    def __or__(self, other: Any) -> Any:
        return self.__wrapped__ | other

    def __ror__(self, other: Any) -> Any:
        return other | self.__wrapped__

    def __reduce__(self) -> str:
        return str(self.__wrapped__.__qualname__)


def _report(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    for given in (*arguments[:1], *named.values()):
        for path in given if isinstance(given, list | tuple | set) else [given]:
            if isinstance(path, str | bytes | os.PathLike):
                for file, hear in product(_files(path), _hearing):
                    hear(file)


def _files(path: Any) -> Iterator[str]:
    text = os.fsdecode(path)
    with suppress(OSError, ValueError):
        if os.path.isdir(text):  # noqa: PTH112
            below = ((folder, names) for folder, _, names in os.walk(text))
            files = (os.path.join(folder, name) for folder, names in below for name in names)  # noqa: PTH118
            yield from islice(files, _MOST_BELOW)
        elif os.path.isfile(text):  # noqa: PTH113
            yield text
