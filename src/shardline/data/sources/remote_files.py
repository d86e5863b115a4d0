"""Download of remote files into the store, once, with a check of size and digest.

The identity contains the digest of a file, so this code does not count in the identity.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import fsspec
from filelock import FileLock

from shardline.core.errors import DataError
from shardline.core.files import atomic_writer, make_folder
from shardline.core.urls import download_path, is_url, open_table, without_secrets

_CHUNK_BYTES = 2**20
_THREADS = 8  # files downloaded at a time
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs", "gs": "gcsfs"}  # fmt: skip


def fetch(entries: Iterable[str | Mapping[str, Any]], downloads: Path) -> None:
    """Download the remote files of a source into the store, several at a time.

    Existing files are not checked again: a file gets its name only after the check. If
    several jobs need a file, one job downloads it and the others wait.

    Args:
        entries: `source.files`. Texts are local files, which are ignored.
        downloads: Folder for downloads. A file is written to `{sha256}/{path}`.

    Raises:
        DataError: A file cannot be read or written, or has a wrong size or digest. The message
            names the URL without secrets, the value found and the value expected.
    """
    remote = [entry for entry in entries if isinstance(entry, Mapping)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda entry: _fetch(entry, downloads), remote):
            pass


def _fetch(entry: Mapping[str, Any], downloads: Path) -> None:
    path = download_path(downloads, entry["sha256"], entry["path"])
    if path.exists():
        return
    make_folder(path.parent)
    with _lock(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            with atomic_writer(path) as file:
                _copy(entry, file)


def _lock(path: Path) -> AbstractContextManager[object]:
    try:
        return FileLock(path).acquire()
    except OSError as error:
        raise DataError(
            f"{path} cannot be locked ({error.strerror}); correct the folder's owner, or set SHARDLINE_STORE to "
            "a folder of your own"
        ) from None


def _copy(entry: Mapping[str, Any], file: IO[bytes]) -> None:
    hasher, size = hashlib.sha256(), 0
    for chunk in _read(os.path.expandvars(entry["url"])):
        size += len(chunk)
        if size > entry["bytes"]:
            raise _mismatch(entry, f"more than {entry['bytes']:,} bytes", f"{entry['bytes']:,}")
        hasher.update(chunk)
        file.write(chunk)
    if size < entry["bytes"]:
        raise _mismatch(entry, f"{size:,} bytes", f"{entry['bytes']:,}")
    if hasher.hexdigest() != entry["sha256"]:
        raise _mismatch(entry, f"SHA-256 {hasher.hexdigest()}", entry["sha256"])


def _mismatch(entry: Mapping[str, Any], found: str, expected: str) -> DataError:
    return DataError(
        f"{without_secrets(entry['url'])}: has {found}, expected {expected}; run the job again, or, if the file was "
        "replaced on purpose, copy the entry that `shardline digest` prints into source.files"
    )


def _read(url: str) -> Iterator[bytes]:
    with _reading(url):
        system, path = fsspec.core.url_to_fs(url)
        with system.open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


@contextmanager
def _reading(url: str) -> Iterator[None]:
    """Raise errors of any backend as `DataError`, without secrets."""
    shown = without_secrets(url)
    try:
        yield
    except DataError:
        raise
    except ImportError as error:
        package = _PACKAGES.get(url.partition("://")[0])
        remedy = f"install the package {package}" if package else without_secrets(str(error))
        raise DataError(
            f"{shown}: the package for this kind of URL is not installed; {remedy}"
        ) from None
    except IsADirectoryError:
        raise DataError(f"{shown} is a folder; write {shown.rstrip('/')}/*") from None
    except FileNotFoundError as error:
        if error.__cause__ is None:
            raise DataError(f"{shown}: not found; check the URL or path") from None
        # fsspec also raises this if a server does not answer or denies access
        raise DataError(
            f"{shown}: not found or not reachable ({_reason(error.__cause__)}); check the URL, the network and "
            "the credentials"
        ) from None
    except Exception as error:  # each backend has its own error classes
        raise DataError(
            f"{shown}: cannot be read ({_reason(error)}); check the URL, the network and the credentials"
        ) from None


def _reason(error: BaseException) -> str:
    return without_secrets(" ".join(f"{type(error).__name__}: {error}".split()))[:300]


def describe(urls: Iterable[str]) -> Iterator[dict[str, str | int]]:
    """Read files and Delta tables, and yield their config entries.

    Args:
        urls: URLs or paths of files and Delta tables. A pattern with `*` means all matching files.

    Yields:
        For a file: url, sha256, bytes and path, for `source.files`. For a Delta table:
        table, version (the latest) and table_id, for `source`.

    Raises:
        DataError: A URL matches no file or cannot be read. The message names it without secrets.
    """
    names: list[str] = []
    for url in urls:
        if _is_delta(url):
            table = open_table(os.path.expandvars(url))
            yield {"table": url, "version": table.version(), "table_id": str(table.metadata().id)}
        else:
            names += _expand(url)
    folders = [str(PurePosixPath(_path_of(name)).parent) for name in names]
    base = os.path.commonpath(folders or ["/"])
    for name in names:
        sha256, size = _digest(name)
        path = str(PurePosixPath(_path_of(name)).relative_to(base))
        yield {"url": name, "sha256": sha256, "bytes": size, "path": path}


def _is_delta(url: str) -> bool:
    if "*" in url or url.startswith(("http://", "https://")):
        return False
    with _reading(url):
        system, path = fsspec.core.url_to_fs(os.path.expandvars(url))
        return bool(system.isdir(f"{path}/_delta_log"))


def _expand(url: str) -> Iterator[str]:
    if "*" not in url:
        yield url
        return
    with _reading(url):
        system, path = fsspec.core.url_to_fs(os.path.expandvars(url))
        found = sorted(name for name in system.glob(path) if system.isfile(name))
    if not found:
        raise DataError(f"{without_secrets(url)}: matches no file; check the URL or path")
    for name in found:
        yield str(system.unstrip_protocol(name)) if is_url(url) else name


def _path_of(url: str) -> str:
    if is_url(url):
        return "/" + url.partition("://")[2].partition("?")[0].lstrip("/")
    return str(Path(url).absolute())


def _digest(url: str) -> tuple[str, int]:
    hasher, size = hashlib.sha256(), 0
    for chunk in _read(os.path.expandvars(url)):
        hasher.update(chunk)
        size += len(chunk)
    return hasher.hexdigest(), size
