"""Writes the folders beside this file, each with the library whose format it has: `python write.py`.

Made with mosaicml-streaming 0.13.0, litdata 0.2.76, datasets 5.2.0 and webdataset 1.0.2, which no test needs.
"""

from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent


def rows() -> list[dict[str, Any]]:
    return [
        {
            "n": i, "text": f"row é {i}", "content": bytes([i, 255]), "tokens": np.arange(i + 1, dtype=np.int32),
            "boxes": np.full((2, 3), i / 2, np.float32),
        }
        for i in range(4)
    ]  # fmt: skip


def write_mds() -> None:
    from streaming import MDSWriter

    columns = {
        "n": "int", "text": "str", "content": "bytes", "tokens": "ndarray:int32", "boxes": "ndarray:float32:2,3",
    }  # fmt: skip
    for name, compression in (("mds", None), ("mds_zstd", "zstd")):
        with MDSWriter(
            out=str(HERE / name), columns=columns, compression=compression, size_limit=600
        ) as writer:
            for row in rows():
                writer.write(row)


def write_litdata() -> None:
    from litdata.streaming.writer import BinaryWriter

    for name, options in (
        ("litdata", {}),
        ("litdata_zstd", {"compression": "zstd", "compression_level": "chunk"}),
    ):
        writer = BinaryWriter(str(HERE / name), chunk_size=3, **options)
        for place, row in enumerate(rows()):
            writer[place] = row
        writer.done()
        writer.merge()


def write_hf() -> None:
    from datasets import Array2D, Dataset, Features, Sequence, Value

    types = {
        "n": Value("int64"), "text": Value("string"), "content": Value("binary"), "tokens": Sequence(Value("int32")),
        "boxes": Array2D((2, 3), "float32"),
    }  # fmt: skip
    Dataset.from_list(rows(), features=Features(types)).save_to_disk(HERE / "hf", num_shards=2)


def write_webdataset() -> None:
    from webdataset import ShardWriter

    (HERE / "webdataset").mkdir(exist_ok=True)
    with ShardWriter(str(HERE / "webdataset" / "%03d.tar"), maxcount=2) as writer:
        for row in rows():
            writer.write(
                {
                    "__key__": f"{row['n']:05d}", "cls": row["n"], "txt": row["text"], "bin": row["content"],
                    "tokens.npy": row["tokens"], "boxes.npy": row["boxes"],
                }
            )  # fmt: skip


if __name__ == "__main__":
    for write in (write_mds, write_litdata, write_hf, write_webdataset):
        write()
