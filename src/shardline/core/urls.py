"""URLs, shown without their secrets, and Delta tables."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from shardline.core.errors import DataError
from shardline.core.extras import missing_package

if TYPE_CHECKING:
    from deltalake import DeltaTable

_USER = re.compile(r"(?P<scheme>\w+://(?=[^/\s@]*:)|https?://)[^/\s@'\"]*@")
_QUERY = re.compile(r"(?P<before>\w+://[^\s?'\"]*)\?[^\s'\")]*")


def is_url(text: str) -> bool:
    """Return whether a path is a URL."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def without_secrets(text: str) -> str:
    """Return a text with the users and queries of URLs removed, such as SAS tokens."""
    return _QUERY.sub(r"\g<before>", _USER.sub(r"\g<scheme>", text))


def download_path(folder: Path, sha256: str, name: str) -> Path:
    """Return the local path of a remote file.

    Args:
        folder: folder of all fetched files.
        sha256: digest of the file's content.
        name: path of the file for the source, such as `roses/1.jpg`.
    """
    return folder / sha256 / name


def open_table(table: str, version: int | None = None) -> "DeltaTable":
    """Open a Delta table at a version.

    Args:
        table: folder or URL of the table.
        version: version number; None opens the latest.

    Raises:
        DataError: there is no such table or version, or deltalake is not
            installed; the message names table and version.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ImportError:
        raise DataError(missing_package("deltalake", "source type delta")) from None
    shown = f"Delta table {without_secrets(table)}"
    try:
        return DeltaTable(table, version=version)
    except TableNotFoundError:
        raise DataError(f"{shown}: not found; check source.table") from None
    except (DeltaError, OSError) as error:
        reason = without_secrets(" ".join(str(error).split()))[:300]
    latest = _latest_version(table)
    if latest is not None and version is not None and latest < version:
        raise DataError(
            f"{shown}: no version {version}, the latest is {latest}; change source.version"
        )
    raise DataError(
        f"{shown}: {'' if version is None else f'version {version} '}cannot be opened ({reason}); "
        "check source.table, source.version and, for a URL, the credentials in the environment"
    )


def _latest_version(table: str) -> int | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(table).version()
    except (DeltaError, OSError):
        return None


def table_content(table_id: str, version: int) -> str:
    """Return the text that an identity contains for the content of a Delta table."""
    return f"{table_id} version {version}"
