"""What the settings of all sources have: where files lie, types of columns."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from shardline.config.settings.base import Natural, Settings, Text

OnBad = Literal["fail", "skip"]
ColumnType = Annotated[
    str,
    Meta(
        pattern=r"^(bytes|text|[a-z]+[0-9]*(\[(\*|[1-9][0-9]*)(, *[1-9][0-9]*)*\])?)\??$",
        extra={
            "words": "a type such as int64, float32[3], int32[*], float32[*,4], bytes or text",
            "remedy": "see docs/columns.md",
        },
    ),
]
TypedColumns = Annotated[dict[Text, ColumnType], Meta(min_length=1)]
Renamed = dict[Text, Text]


class RemoteFile(Settings, frozen=True, kw_only=True):
    """A file behind a URL, as `shardline digest URL` prints it."""

    url: Text
    sha256: str
    bytes: Natural
    path: Text | UnsetType = UNSET


Files = Annotated[
    list[str | RemoteFile],
    Meta(
        description="What is read. Text is a file or glob pattern (for `hf`, `image_folder`, `litdata`, `mds` and "
        "`webdataset` also a folder); "
        "a table `{url, sha256, bytes}` is a remote file, as `shardline digest URL` prints it."
    ),
]


class Source(Settings, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A source whose type is not known, which is found out later."""

    named: ClassVar[str] = ""

    type: str
    """`csv`, `delta`, `digits`, `hf`, `idx`, `image_folder`, `jsonl`, `litdata`, `mds`, `parquet`,
    `synthetic`, `text`, `webdataset`, or a source class by import path (`mypkg.sources:Rings`)."""

    @classmethod
    def fits(cls, table: Mapping[str, Any]) -> bool:
        """Return whether a source has this class's type."""
        return table.get("type") == cls.named or not cls.named
