"""Features of Delta tables that the library reads but does not write, added to a table's log by hand.

The formats are those of https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
Action = dict[str, Any]


def _change(table: Path, change: Callable[[Action], None], version: int = 0) -> None:
    log = table / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        change(action)
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")


def need_features(table: Path, *features: str) -> None:
    """Let the protocol of version 0 require features of readers."""

    def change(action: Action) -> None:
        if "protocol" in action:
            lists = {"readerFeatures": [*features], "writerFeatures": [*features]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **lists}

    _change(table, change)


def rename_columns(table: Path, names: dict[str, str], mode: str = "name") -> None:
    """Rename columns by column mapping, so that the files keep the old names."""

    def change(action: Action) -> None:
        if not (data := action.get("metaData")):
            return
        data["configuration"] = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "99"}  # fmt: skip
        schema = json.loads(data["schemaString"])
        for number, field in enumerate(schema["fields"], 1):
            mapped = {"id": number, "physicalName": field["name"]}
            field["metadata"] = {f"delta.columnMapping.{key}": of for key, of in mapped.items()}
            field["name"] = names.get(field["name"], field["name"])
        data["schemaString"] = json.dumps(schema)
        data["partitionColumns"] = [names.get(name, name) for name in data["partitionColumns"]]

    _change(table, change)


def delete_rows(table: Path, file: str, rows: Sequence[int]) -> None:
    """Delete rows of a file by a deletion vector within the log."""

    def change(action: Action) -> None:
        if action.get("add", {}).get("path") == file:
            content = _bitmap(rows)
            action["add"]["deletionVector"] = {
                "storageType": "i", "pathOrInlineDv": _z85(content), "sizeInBytes": len(content),
                "cardinality": len(rows),
            }  # fmt: skip

    _change(table, change)


def _bitmap(rows: Sequence[int]) -> bytes:
    """Return a RoaringBitmapArray of one array container; https://github.com/RoaringBitmap/RoaringFormatSpec."""
    head = struct.pack("<IqI", 1681511377, 1, 0)
    container = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16)
    return head + container + struct.pack(f"<{len(rows)}H", *sorted(rows))


def _z85(content: bytes) -> str:
    content += b"\0" * (-len(content) % 4)
    text = ""
    for (number,) in struct.iter_unpack(">I", content):
        digits = [_Z85[number // 85**place % 85] for place in range(4, -1, -1)]
        text += "".join(digits)
    return text
