"""Files that libraries read by compiled code, or in a way of their own: how each is written and read.

As a program it reads all of them, watched from before the libraries are imported, and prints by
library which files were reported.
"""

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _array(name: str) -> None:
    import numpy as np

    with Path(name).open("wb") as file:  # of a name without the suffix
        np.save(file, np.arange(4.0))


def _tensors(name: str) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2)}, name)


def _table(name: str, form: str = "parquet") -> None:
    import pyarrow as pa
    from pyarrow import csv, feather, parquet

    write = {"parquet": parquet.write_table, "csv": csv.write_csv, "feather": feather.write_feather}
    write[form](pa.table({"a": [1, 2]}), name)


def _tokenizer(name: str) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    Path(name).write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))


def _saved(name: str) -> None:
    import torch

    torch.save({"w": torch.ones(2)}, name)


def _scripted(name: str) -> None:
    import torch

    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), name)


def _onnx(name: str) -> None:
    from onnx import TensorProto, helper, save

    value = helper.make_tensor_value_info
    one, other = value("x", TensorProto.FLOAT, [1]), value("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [one], [other])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), name)


def _picture(name: str) -> None:
    from PIL import Image

    Image.new("L", (2, 2)).save(name, "PNG")


def _database(name: str) -> None:
    sqlite3.connect(name).execute("create table t (a)").connection.close()


def _safe_open(name: str) -> None:
    from safetensors import safe_open

    with safe_open(name, framework="pt") as file:
        assert list(file.keys()) == ["w"]


Written = Callable[[str], Any]
FILES: dict[str, tuple[Written, Written]] = {
    "safetensors.safe_open": (_tensors, _safe_open),
    "safetensors.torch.load_file": (_tensors, lambda name: _import("safetensors.torch").load_file(name)),
    "safetensors.numpy.load_file": (_tensors, lambda name: _import("safetensors.numpy").load_file(filename=name)),
    "numpy.load": (_array, lambda name: _import("numpy").load(name)),
    "numpy.memmap": (_array, lambda name: _import("numpy").memmap(name, mode="r")),
    "numpy.fromfile": (_array, lambda name: _import("numpy").fromfile(name)),
    "torch.load": (_saved, lambda name: _import("torch").load(name)),
    "torch.load-mmap": (_saved, lambda name: _import("torch").load(name, mmap=True)),
    "torch.jit.load": (_scripted, lambda name: _import("torch").jit.load(name)),
    "torch.from_file": (_array, lambda name: _import("torch").from_file(name, size=2)),
    "pyarrow.parquet.read_table": (_table, lambda name: _import("pyarrow.parquet").read_table(name)),
    "pyarrow.parquet.ParquetFile": (_table, lambda name: _import("pyarrow.parquet").ParquetFile(name)),
    "pyarrow.dataset": (_table, lambda name: _import("pyarrow.dataset").dataset([name])),
    "pyarrow.dataset-folder": (
        lambda name: (Path(f"{name}.d").mkdir(), _table(f"{name}.d/{name}")),
        lambda name: _import("pyarrow.dataset").dataset(f"{name}.d").to_table(),
    ),
    "pyarrow.csv": (lambda name: _table(name, "csv"), lambda name: _import("pyarrow.csv").read_csv(name)),
    "pyarrow.feather": (
        lambda name: _table(name, "feather"),
        lambda name: _import("pyarrow.feather").read_table(Path(name)),
    ),
    "pyarrow.memory_map": (_table, lambda name: _import("pyarrow").memory_map(name)),
    "pyarrow.OSFile": (_table, lambda name: _import("pyarrow").OSFile(name)),
    "pandas.read_parquet": (_table, lambda name: _import("pandas").read_parquet(name)),
    "tokenizers": (_tokenizer, lambda name: _import("tokenizers").Tokenizer.from_file(name)),
    "onnx.load": (_onnx, lambda name: _import("onnx").load(name)),
    "onnxruntime": (_onnx, lambda name: _import("onnxruntime").InferenceSession(name)),
    "PIL": (_picture, lambda name: _import("PIL.Image").open(name).load()),
    "sqlite3": (_database, lambda name: sqlite3.connect(name).close()),
}  # fmt: skip


def _import(name: str) -> Any:
    __import__(name)
    return sys.modules[name]


def main() -> None:
    from shardline.identity import watch_reads
    from shardline.identity.watch_reads import counted

    found = {}
    for name, (_, read) in FILES.items():
        watch_reads.start(
            watch_reads.WatchedReads(known=counted(Path.cwd(), [__file__], []), mode="warn")
        )
        read(name)
        found[name] = [Path(path).name for path in watch_reads.found()]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
