"""What the messages of sources say to do, done: the next step passes, or meets another problem of the files.

`CASES` has an entry for each error in `shardline.data.sources` and in the modules of the config that find a
dataset's files. An error without one fails the last test; `ELSEWHERE` lists those that other tests hold.
"""

import ast
import bz2
import gzip
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import shardline.config as config_package
import shardline.data.sources as sources_package
from shardline.config.checked_sources import SHIPPED_SOURCES, locate
from shardline.config.resolved import as_plain, as_type
from shardline.config.settings.config import DatasetSettings
from shardline.core.digests import FileDigests
from shardline.data.build import make_source
from shardline.data.rows import Memory, read_rows
from shardline.errors import ShardlineError
from tests.support.raised_errors import note_errors

Files = dict[str, Any]  # content by name; None: no such file


@dataclass(frozen=True, kw_only=True)
class Case:
    """An input, the sentence that it ends with, and what that sentence says to do.

    Attributes:
        source: settings.
        files: their content by name.
        found: a part of the message.
        says: a part of its remedy.
        change: of the settings, by the remedy.
        write: files, by the remedy.
        rows: that are read then; 0 where another problem of the files may follow.
    """

    source: dict[str, Any]
    files: Files = field(default_factory=dict)
    found: str
    says: str
    change: dict[str, Any] = field(default_factory=dict)
    write: Files = field(default_factory=dict)
    rows: int = 2
    splits: dict[str, Any] = field(default_factory=dict)


def png(mode: str = "RGB", kind: str = "png") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (6, 5), 40 if mode != "RGB" else (40, 90, 30)).save(file, kind)
    return file.getvalue()


def parquet(columns: dict[str, Any], *, index: str = "") -> bytes:
    table = pa.table(columns)
    if index:
        table = table.replace_schema_metadata({"pandas": json.dumps({"index_columns": [index]})})
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def zip_of(**members: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype("u1").tobytes()


GOOD = "x,z,y\n1,2,0\n3,4,1\n"
CSV = {"type": "csv", "files": ["a.csv"], "label": "y", "num_classes": 2}
TABLE = {"x": [1.0, 2.0], "y": [0, 1]}
PARQUET = {"type": "parquet", "files": ["a.parquet"], "label": "y", "num_classes": 2}
FOLDER = {"type": "image_folder", "files": ["p"], "size": [4, 4]}
LINES = {"type": "jsonl", "files": ["a.jsonl"], "columns": {"x": "float32"}}
TEXT = {"type": "text", "files": ["a.txt"]}
IDX = {"type": "idx", "files": ["i", "l"]}
IMAGES, LABELS = idx(np.zeros((2, 3, 3))), idx(np.arange(2))
REMOTE = {"url": "https://example.org/a.csv", "sha256": "0" * 64, "bytes": 1}
PAIR = {"i": IMAGES, "l": LABELS}


def csv_case(
    content: str | bytes, found: str, says: str, write: str | bytes = "", **more: Any
) -> Case:
    source = CSV | more.pop("source", {})
    files = {"a.csv": content} | more.pop("files", {})
    written = {"a.csv": write} if write else {}
    return Case(source=source, files=files, found=found, says=says, write=written, **more)


def setting(
    source: dict[str, Any], found: str, says: str, change: dict[str, Any], **more: Any
) -> Case:
    files = more.pop("files", {"a.csv": GOOD, "a.parquet": parquet(TABLE)})
    return Case(source=source, files=files, found=found, says=says, change=change, **more)


def photos(*names: str) -> Files:
    return {f"p/{name}": png() for name in names}


TWO = photos("cat/1.png", "dog/1.png")

# --- CSV ------------------------------------------------------------------------------------------

CSV_CASES = {
    "an index without a name": csv_case(
        ",x,y\n0,1,0\n1,2,1\n", "a column without a name may be the index of a data frame", "list the features in "
        "source.features", change={"features": ["x"]},
    ),
    "an index that was read and written again": csv_case(
        "Unnamed: 0,x,y\n0,1,0\n1,2,1\n", "column Unnamed: 0 is the index", "without the index (index=False)",
        "x,y\n1,0\n2,1\n",
    ),
    "decimal commas": csv_case(
        'x;z;y\n"1,5";1;0\n"2,5";2;1\n', "column x contains text that may be numbers, such as 1,5",
        'set source.decimal: ","',
        source={"delimiter": ";"}, change={"decimal": ","},
    ),
    "thousands": csv_case(
        'x,z,y\n"1,000.5",1,0\n"2,000",2,1\n', "text that may be numbers, such as 1,000.5",
        'set source.thousands: ",", or list', change={"thousands": ","},
    ),
    "points between thousands": csv_case(
        "x;z;y\n1.000,5;1;0\n2.000;2;1\n", "numbers and text such as 1.000,5",
        'set source.decimal: "," and source.thousands: "."', source={"delimiter": ";"},
        change={"decimal": ",", "thousands": "."},
    ),
    "thousands or decimals": csv_case(
        'x,z,y\n"1,000",1,0\n"2,000",2,1\n', "text that may be numbers, such as 1,000",
        'set source.thousands: "," or source.decimal: ",", whichever 1,000 means', change={"thousands": ","},
    ),
    "a mark that is not between thousands": csv_case(
        'x,z,y\n"1,00",1,0\n"2,000",2,1\n', "line 2: column x is 1,00, expected a finite number",
        'set source.decimal: ","', 'x,z,y\n"100",1,0\n"2,000",2,1\n', source={"features": ["x"], "thousands": ","},
    ),
    "currencies": csv_case(
        "x,z,y\n$5,1,0\n$7,2,1\n", "column x contains text that may be numbers, such as $5",
        "write plain numbers, such as 1000.5", "x,z,y\n5,1,0\n7,2,1\n",
    ),
    "a name for missing values": csv_case(
        "x,z,y\n1,1,0\n-,2,1\n2,3,1\n", "column x contains numbers and text such as -", 'set source.missing: ["-"]',
        change={"missing": ["-"], "on_bad": "skip"},
    ),
    "a column of percentages that does not exist": csv_case(
        GOOD, "no column w, which is in source.percent", "use one of x, z, y", source={"percent": ["w"]},
        change={"percent": ["z"]},
    ),
    "a quote within a field": csv_case(
        'x,t,y\n1,5" pipe,0\n2,"a\nb",1\n', 'line 2: a quote is inside a field', "write a quote within a field twice",
        'x,t,y\n1,"5"" pipe",0\n2,"a\nb",1\n', source={"line_breaks": True},
    ),
    "a quote that is not closed in a file": csv_case(
        'x,t,y\n1,a,0\n2,"b,1\n', 'line 3: a quote is not closed before the end of the file', "close it",
        'x,t,y\n1,a,0\n2,"b",1\n', source={"line_breaks": True},
    ),
    "an archive of two files": csv_case(
        zip_of(a=GOOD, b=GOOD), "a.csv: contains 2 files (a, b), expected a zip archive of one file", "unpack it",
        zip_of(a=GOOD),
    ),
    "percent": csv_case(
        "x,z,y\n5%,1,0\n7%,2,1\n", "column x contains text that may be numbers, such as 5%",
        'set source.percent: ["x"], or list the features in source.features', change={"percent": ["x"]},
    ),
    "a decimal comma in a listed feature": csv_case(
        "x;z;y\n1,5;1;0\n2;2;1\n", "line 2: column x is 1,5, expected a finite number (float32)",
        'set source.decimal: ","',
        source={"delimiter": ";", "features": ["x"]}, change={"decimal": ","},
    ),
    "a decimal comma in a typed column": csv_case(
        "x;z;y\n1,5;1;0\n2;2;1\n", "line 2: column x is 1,5, expected a finite number (float32)",
        'set source.decimal: ","',
        source={"delimiter": ";", "columns": {"x": "float32"}}, change={"decimal": ","},
    ),
    "a decimal comma in a label": csv_case(
        "x;y\n1;1,5\n2;2,5\n", "line 2: column y is 1,5, expected a finite number (float32)", 'set source.decimal: ","',
        source={"delimiter": ";", "task": "regression", "num_classes": None}, change={"decimal": ","},
    ),
    "a percent sign in a listed feature": csv_case(
        "x,y\n5%,0\n7%,1\n", "line 2: column x is 5%, expected", 'set source.percent: ["x"]',
        source={"features": ["x"]}, change={"percent": ["x"]},
    ),
    "a decimal point where commas are set": csv_case(
        "x;y\n1.5;0\n2;1\n", "line 2: column x is 1.5, expected a finite number", "write plain numbers, such as 1000,5",
        "x;y\n1,5;0\n2;1\n", source={"delimiter": ";", "features": ["x"], "decimal": ","},
    ),
    "returns at the ends of lines": csv_case(
        GOOD.replace("\n", "\r"), "a.csv: its lines end with a carriage return alone",
        r"convert it, for example with `tr", GOOD,
    ),
    "delimiters at the ends of rows": csv_case(
        "x,z,y\n1,2,0,\n3,4,1,\n", "all rows have 4 fields, expected 3 as in line 1",
        'add a "," at the end of line 1',
        "x,z,y,\n1,2,0,\n3,4,1,\n",
    ),
    "a delimiter at the end of the header": csv_case(
        "x,z,y,\n1,2,0\n3,4,1\n", "all rows have 3 fields, expected 4 as in line 1",
        'remove the "," at the end of line 1', GOOD,
    ),
    "a header without the index that rows have": csv_case(
        "x,z,y\n1,1,2,0\n2,3,4,1\n", "all rows have 4 fields, expected 3", "write one name per column",
        "n,x,z,y\n1,1,2,0\n2,3,4,1\n",
    ),
    "a line that Excel reads": csv_case("sep=,\n" + GOOD, "expected 2 as in line 1", "remove line 1", GOOD),
    "a comment above the header": csv_case("# by R\n" + GOOD, "expected 1 as in line 1", "remove line 1", GOOD),
    "tabulators at the ends of rows": csv_case(
        "x\tz\ty\n1\t2\t0\t\n3\t4\t1\t\n", "all rows have 4 fields", r'add a "\t" at the end of line 1',
        "x\tz\ty\t\n1\t2\t0\t\n3\t4\t1\t\n", source={"delimiter": "\t"},
    ),
    "numbers in brackets": csv_case(
        "x,z,y\n(1),1,0\n(2),2,1\n", "text that may be numbers, such as (1)", "write plain numbers", GOOD,
    ),
    "the sign U+2212": csv_case(
        "x,z,y\n\u22121,1,0\n\u22122.5,2,1\n", "text that may be numbers, such as \u22121", "write plain numbers", GOOD,
    ),
    "Indian groups": csv_case(
        'x,z,y\n"12,34,567",1,0\n"1,00,000",2,1\n', "may be numbers, such as 12,34,567", "write plain numbers", GOOD,
    ),
    "a number that is not UTF-8": csv_case(
        b"x,z,y\n1,1,0\n2\xe9,2,1\n", "a.csv, column x: byte 0xe9 is not UTF-8", "save the file as UTF-8",
        GOOD,
    ),
    "a web page as CSV": csv_case(b"<!DOCTYPE html>\n<html>", "a.csv: is a web page, expected CSV", "remove it", GOOD),
    "Parquet as CSV": csv_case(parquet(TABLE), "a.csv: is a Parquet file, expected CSV", "remove it", GOOD),
    "a tar archive as CSV": csv_case(
        gzip.compress(b"a.csv" + bytes(252) + b"ustar" + bytes(99)), "a.csv: is a tar archive", "remove it", GOOD,
    ),
    "an Excel workbook as CSV": csv_case(
        zip_of(**{"xl/workbook.xml": "", "xl/styles.xml": ""}), "is an Excel workbook", "save each sheet as CSV", GOOD,
    ),
    "a name that is not UTF-8": csv_case(
        GOOD, r"datasets.d.source.files: \xe9.csv its name is not UTF-8", "rename it",
        source={"files": ["\udce9.csv"]}, files={"\udce9.csv": GOOD}, change={"files": ["a.csv"]},
    ),
    "an ending in other capitals": csv_case(
        GOOD, "*.CSV matches no file", "a.csv has other capitals in its ending",
        source={"files": ["*.CSV"]}, change={"files": ["*.csv"]},
    ),
    "another delimiter": csv_case(
        GOOD.replace(",", ";"), "no columns named y", 'set source.delimiter: ";"', change={"delimiter": ";"},
    ),
    "tabs": csv_case(
        GOOD.replace(",", "\t"), "no columns named y", 'set source.delimiter: "\\t"', change={"delimiter": "\t"},
    ),
    "UTF-16": csv_case(
        GOOD.encode("utf-16"), "a.csv: is UTF-16, expected UTF-8", "`iconv -f UTF-16 -t UTF-8 a.csv`", GOOD,
    ),
    "UTF-16 without a mark": csv_case(
        GOOD.encode("utf-16-le"), "a.csv: is UTF-16, expected UTF-8", "convert it", GOOD,
    ),
    "Latin 1 in the header": csv_case(
        "é,y\n1,0\n2,1\n".encode("latin-1"), "line 1: byte 0xe9 is not UTF-8", "save the file as UTF-8",
        "é,y\n1,0\n2,1\n",
    ),
    "Latin 1 in a row": csv_case(
        "x,t,y\n1,é,0\n2,e,1\n".encode("latin-1"), "line 2: byte 0xe9 is not UTF-8", "save the file as UTF-8",
        "x,t,y\n1,é,0\n2,e,1\n", source={"columns": {"x": "float32", "t": "text"}},
    ),
    "an empty file": csv_case("", "a.csv: is empty, expected a line of column names", "add a header", GOOD),
    "an empty line at the beginning": csv_case("\n" + GOOD, "begins with an empty line", "add a header", GOOD),
    "a header alone": csv_case("x,y\n", "ends after line 1, the header", "add rows", GOOD),
    "a quote in the header": csv_case(
        'x,"z,y\n1,2,0\n3,4,1\n', "its header has a quote that is not closed", "close the quote", GOOD,
    ),
    "a field of two lines": csv_case(
        'x,t,y\n1,"a\nb",0\n2,c,1\n', "a quote is not closed in its line", "set source.line_breaks: true",
        change={"line_breaks": True},
    ),
    "other columns in another file": csv_case(
        GOOD, "b.csv: its header has no column z, unlike", "write the same header in all files",
        files={"b.csv": "x,y\n5,1\n"},
        source={"files": ["*.csv"]}, rows=3, change={},
    ),
    "text among numbers": csv_case(
        "x,z,y\n1,2,0\na,3,1\n", "column x contains numbers and text such as a", "list the features in source.features",
        change={"features": ["z"]},
    ),
    "a row of another length": csv_case(
        GOOD + "1,2\n", "line 4: the number of fields is 2, expected 3", "fix it", GOOD + "1,2,0\n", rows=3,
    ),
    "a row of another length, left out": csv_case(
        GOOD + "1,2\n", "line 4: the number of fields is 2", "source.on_bad: skip", change={"on_bad": "skip"},
    ),
    "the header again": csv_case(
        GOOD + GOOD, "the header is repeated here", "source.on_bad: skip", change={"on_bad": "skip"}, rows=4,
    ),
    "a label that is no class": csv_case(
        GOOD, "column y is 1, expected one of source.classes", "source.on_bad: skip", source={"classes": ["0"],
        "num_classes": None},
        change={"on_bad": "skip"}, rows=1,
    ),
    "no rows but such that are left out": csv_case(
        "x,y\na,0\nb,1\n", "shard 0 has no rows",
        "source.on_bad: skip left out all 2; correct the first: a.csv, line 2: "
        "column x is a", "x,y\n1,0\n2,1\n", source={"on_bad": "skip", "features": ["x"]},
    ),
    "no column of numbers": csv_case(
        "x,y\na,0\nb,1\n", "no column of numbers", "list them in source.features", change={"features": ["x"]}, rows=0,
    ),
    "empty values": csv_case(
        "x,z,y\n,1,0\n,2,1\n", "column x begins with empty values", "list them in source.features",
        change={"features": ["z"]},
    ),
    "a misspelt label": csv_case(
        GOOD, "no columns named yy", 'did you mean "y"?', source={"label": "yy"}, change={"label": "y"},
    ),
    "a column twice": csv_case(
        "x,x,y\n1,2,0\n3,4,1\n", "2 columns named x; rename one", "rename one of them", GOOD,
    ),
    "ids that are fractions": csv_case(
        "i,x,y\n.5,1,0\n1.5,2,1\n", "id_column i contains fractions", "to another column", source={"id_column": "i"},
        change={"id_column": "x"}, rows=0,
    ),
    "packed by another program": csv_case(
        b"BZh91AY&SY" + b"0" * 20, "expected a complete bzip2 file", "download it again",
        bz2.compress(GOOD.encode()),
    ),
    "half a gzip file": csv_case(
        gzip.compress(GOOD.encode() * 9)[:-12], "cannot be unpacked", "download it again", gzip.compress(GOOD.encode()),
    ),
    "an unknown option": Case(
        source={"type": "tests.unit.data.test_sources_remedies:Own", "options": {"nois": 1}},
        found="has no option named nois",
        says="remove it from source.options", change={"options": {}},
    ),
}  # fmt: skip
CSV_CASES["other columns in another file"].write["b.csv"] = "x,z,y\n5,6,1\n"

# --- Parquet --------------------------------------------------------------------------------------

PARQUET_CASES = {
    "an index": Case(
        source=PARQUET, files={"a.parquet": parquet({"__index_level_0__": [0, 1], **TABLE})},
        found="column __index_level_0__ is the index of a data frame", says="source.features",
        change={"features": ["x"]},
    ),
    "an index with a name": Case(
        source=PARQUET, files={"a.parquet": parquet({"i": [0, 1], **TABLE}, index="i")},
        found="column i is the index of a data frame", says="index=False", write={"a.parquet": parquet(TABLE)},
    ),
    "numbers stored as text": Case(
        source=PARQUET, files={"a.parquet": parquet({"n": ["1.5", "2"], **TABLE})},
        found="column n contains text that may be numbers, such as 1.5", says="convert the column to a type of numbers",
        write={"a.parquet": parquet({"n": [1.5, 2], **TABLE})},
    ),
    "text of numbers with commas": Case(
        source=PARQUET, files={"a.parquet": parquet({"n": ["1,5", "2,5"], **TABLE})},
        found="column n contains text that may be numbers, such as 1,5", says="write plain numbers",
        write={"a.parquet": parquet({"n": ["1.5", "2.5"], **TABLE})}, rows=0,
    ),
    "half a file": Case(
        source=PARQUET, files={"a.parquet": parquet(TABLE)[:40]}, found="cannot be read as Parquet",
        says="download it again",
        write={"a.parquet": parquet(TABLE)},
    ),
    "a column that another file lacks": Case(
        source=PARQUET | {"files": ["*.parquet"]}, files={"a.parquet": parquet(TABLE),
        "b.parquet": parquet({"y": [1]})},
        found="b.parquet: no column x, unlike", says="write all files with the same schema",
        write={"b.parquet": parquet(TABLE)},
        rows=4,
    ),
    "another type in another file": Case(
        source=PARQUET | {"files": ["*.parquet"]},
        files={"a.parquet": parquet(TABLE), "b.parquet": parquet({"x": ["a"], "y": [1]})},
        found="b.parquet: column x is of type string, expected double", says="write all files with the same schema",
        write={"b.parquet": parquet(TABLE)}, rows=4,
    ),
    "a type that a column cannot be read from": Case(
        source=PARQUET | {"columns": {"x": "float32"}},
        files={"a.parquet": parquet({"x": [[1.0], [2.0]], "y": [0, 1]})},
        found="column x is of type list", says="change source.columns.x", change={"columns": {"x": "float32[*]"}},
    ),
    "a feature of text": Case(
        source=PARQUET | {"features": ["x", "t"]}, files={"a.parquet": parquet({"t": ["a", "b"], **TABLE})},
        found="column t is of type string, expected numbers", says="remove it from source.features",
        change={"features": ["x"]},
    ),
    "lists beside other features": Case(
        source=PARQUET | {"features": ["x", "v"]}, files={"a.parquet": parquet({"v": [[1.0], [2.0]], **TABLE})},
        found="column v contains lists", says="make it the only column in source.features",
        change={"features": ["v"]},
    ),
    "more names than flags in a list": Case(
        source=PARQUET | {"label": "v", "task": "multilabel", "classes": ["a", "b", "c"], "num_classes": None},
        files={"a.parquet": parquet({"x": [1.0, 2.0], "v": [[0, 1], [1, 1]]})},
        found="column v is a list of 2 values in the first row, expected 3", says="correct the classes",
        change={"classes": ["a", "b"]},
    ),
    "an empty first list": Case(
        source=PARQUET | {"features": ["v"]}, files={"a.parquet": parquet({"v": [[], [1.0]], "y": [0, 1]})},
        found="column v is an empty list in the first row", says="fix the first row",
        write={"a.parquet": parquet({"v": [[2.0], [1.0]], "y": [0, 1]})},
    ),
}  # fmt: skip

# --- images ---------------------------------------------------------------------------------------

IMAGE_CASES = {
    "one folder": Case(
        source=FOLDER, files=photos("cat/1.png"),
        found="all images are in one folder, cat, expected a folder per class", says="source.files",
        write=photos("dog/1.png"),
    ),
    "a folder that is no class": Case(
        source=FOLDER | {"classes": ["cat"]}, files=TWO, found="its folder dog is not in source.classes (cat)",
        says="add the folder there", change={"classes": ["cat", "dog"]},
    ),
    "a folder without images": Case(
        source=FOLDER, files=TWO | {"p/cow/1.webp": b"x"}, found="p/cow: the folder has no JPEG or PNG image",
        says="source.classes",
        change={"classes": ["cat", "dog"]},
    ),
    "batches below classes": Case(
        source=FOLDER, files=photos("cat/b/1.png", "dog/b/2.png", "dog/c/3.png"),
        found="dog/b: a folder b is in cat as well",
        says="[cat, dog]", change={"classes": ["cat", "dog"]}, rows=3,
    ),
    "the same folder below each class": Case(
        source=FOLDER, files=photos("cat/images/1.png", "dog/images/2.png"),
        found="dog/images: a folder images is in cat as well", says="such as [cat, dog]",
        change={"classes": ["cat", "dog"]},
    ),
    "two names that look alike": Case(
        source=FOLDER, files=photos("\u00e9t\u00e9/1.png", "e\u0301te\u0301/2.png", "dog/3.png"),
        found='folders "e\\u0301te\\u0301" and', says="rename one of them",
        change={"classes": ["dog"], "files": ["p/dog"]}, rows=1,
    ),
    "a broken link to the folder of a class": Case(
        source=FOLDER, files=TWO | {"p/cow": Path("gone")}, found="p/cow is a broken link (to gone)",
        says="source.on_bad: skip", change={"on_bad": "skip"},
    ),
    "a class in a class": Case(
        source=FOLDER, files=photos("cat/1.png", "cat/more/1.png", "dog/2.png"),
        found="cat/more: images are in this folder",
        says="[cat, dog]", change={"classes": ["cat", "dog"]}, rows=3,
    ),
    "no image": Case(
        source=FOLDER, files=TWO | {"p/dog/2.png": b"abc"}, found="does not decode (not an image)",
        says="source.on_bad: skip",
        change={"on_bad": "skip"},
    ),
    "a pointer of Git LFS": Case(
        source=FOLDER, files=TWO | {"p/dog/2.png": b"version https://git-lfs.github.com/spec/v1\n"},
        found="does not decode (a pointer of Git LFS, whose file `git lfs pull` fetches)", says="fix it",
        write={"p/dog/2.png": png()}, rows=3,
    ),
    "a resource fork": Case(
        source=FOLDER, files=TWO | {"p/dog/2.png": b"\0\5\x16\7" + bytes(60)}, found="(a resource fork of macOS)",
        says="source.on_bad: skip", change={"on_bad": "skip"},
    ),
}  # fmt: skip

# --- JSON Lines, text -----------------------------------------------------------------------------

OBJECTS = '{"x": 1}\n{"x": 2}\n'


def json_case(
    content: str | bytes, found: str, says: str, write: str = OBJECTS, **more: Any
) -> Case:
    source = LINES | more.pop("source", {})
    return Case(
        source=source,
        files={"a.jsonl": content},
        found=found,
        says=says,
        write={"a.jsonl": write},
        **more,
    )


TEXT_CASES = {
    "NaN": json_case(
        '{"x": 1}\n{"x": NaN}\n', "a.jsonl, line 2: it is not JSON (x is NaN)", 'add "?" to its type',
        '{"x": 1}\n{"x": null}\n', change={"columns": {"x": "float32?"}},
    ),
    "Infinity in a key that nothing names": json_case(
        '{"x": 1, "z": {"a": [1, -Infinity]}}\n{"x": 2}\n', "line 1: it is not JSON (z.a is -Infinity)", "write null",
        '{"x": 1, "z": {"a": [1, null]}}\n{"x": 2}\n',
    ),
    "an array": json_case('[{"x": 1}, {"x": 2}]', "is one JSON array, expected one JSON object per line",
    "`jq -c '.[]' a.jsonl`"),
    "an indented array": json_case('[\n  {"x": 1},\n  {"x": 2}\n]\n', "is one JSON array", "jq"),
    "indented objects": json_case('{\n  "x": 1\n}\n{\n  "x": 2\n}\n', "contains objects of several lines",
    "`jq -c . a.jsonl`"),
    "a dict of Python": json_case(
        "{'x': 1}\n{'x': None}\n", "(a value in the form of Python, not of json.dumps, at character 2: ",
        "fix it",
    ),
    "NaN of another writer": json_case('{"x": nan}\n', 'of Python, not of json.dumps, at character 7: "nan', "fix it"),
    "objects with commas between": json_case('{"x": 1},\n{"x": 2}\n', 'unexpected text at character 9: ","', "fix it"),
    "a tab in a text": json_case('{"x": 1, "z": "a\tb"}\n{"x": 2}\n', r"not written as \n or \t before", "fix it"),
    "half a character": json_case('{"x": 1, "z": "\\ud800"}\n', r"half of a character, such as \ud800", "fix it"),
    "half a line": json_case('{"x": 1}\n{"x": ', "line 2: it is not JSON (it ends too early)", "fix it"),
    "a pointer of Git LFS as JSON": json_case(
        "version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS, whose file `git lfs pull`", "fix it",
    ),
    "UTF-16 of JSON": json_case(OBJECTS.encode("utf-16"), "is UTF-16, expected UTF-8", "iconv"),
    "returns in JSON": json_case(OBJECTS.replace("\n", "\r"), "its lines end with a carriage return alone", "tr"),
    "a value of another type": json_case(
        '{"x": 1}\n{"x": "a"}\n', 'line 2: column x is "a", expected a number (float32)', "source.on_bad: skip",
        '{"x": 1}\n{"x": "a"}\n', change={"on_bad": "skip"}, rows=1,
    ),
    "returns in text": Case(
        source=TEXT, files={"a.txt": "one\rtwo\r"}, found="its lines end with a carriage return alone", says="tr",
        write={"a.txt": "one\ntwo\n"},
    ),
    "returns in paragraphs": Case(
        source=TEXT | {"unit": "paragraph"}, files={"a.txt": "one\r\rtwo\r"},
        found="its lines end with a carriage return alone",
        says="tr", write={"a.txt": "one\n\ntwo\n"},
    ),
    "UTF-16 of text": Case(
        source=TEXT, files={"a.txt": "one\ntwo\n".encode("utf-16-le")}, found="is UTF-16", says="iconv",
        write={"a.txt": "one\ntwo\n"},
    ),
}  # fmt: skip

# --- IDX ------------------------------------------------------------------------------------------


def idx_case(i: bytes, labels: bytes, found: str, says: str = "download", **more: Any) -> Case:
    files = {"i": i, "l": labels} | more.pop("files", {})
    return Case(
        source=IDX | more.pop("source", {}), files=files, found=found, says=says, write=PAIR, **more
    )


IDX_CASES = {
    "half of the images": idx_case(IMAGES[:-3], LABELS, "15 bytes only after its header"),
    "an empty IDX file": idx_case(b"", LABELS, "i: is empty, expected an IDX file"),
    "no IDX file": idx_case(png(), LABELS, "begins with 89504e47, expected an IDX header"),
    "half a header": idx_case(IMAGES[:7], LABELS, "ends within its header"),
    "half a gzip file of images": idx_case(gzip.compress(IMAGES)[:-9], LABELS, "cannot be unpacked"),
    "labels of other images": idx_case(IMAGES, idx(np.arange(3)), "3 labels, expected 2 for the images"),
    "images without labels": idx_case(IMAGES, IMAGES, "its other half is missing", "add the missing file to"),
    "images of two sizes": Case(
        source=IDX | {"files": ["*-idx*"]}, found="images of [2, 2] u1, but", says="make two datasets",
        files={"a-images-idx3": IMAGES, "a-labels-idx1": LABELS, "b-images-idx3": idx(np.zeros((2, 2, 2))),
        "b-labels-idx1": LABELS},
        change={"files": ["b-*"]},
    ),
    "labels in another split than their images": Case(
        source=IDX, files=PAIR, found="splits.files assigns it to test and its images to train",
        says="assign both files to the same split",
        splits={"files": {"train": ["i"], "validation": 0.5, "test": ["l"]}},
        change={"splits": {"train": 1.0, "validation": 0.0, "test": 0.0}},
    ),
}  # fmt: skip

# --- settings of sources --------------------------------------------------------------------------

NAMED = CSV | {"columns": {"x": "float32"}}
KEYS = LINES | {"files": ["a.csv"]}
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
FILES = {"train": ["a*"], "validation": 0.1, "test": ["b*"]}
SETTING_CASES = {
    "a class twice": setting(CSV | {"classes": ["a", "a"]}, "lists a twice", "drop one", {"classes": []}),
    "no files": setting(CSV | {"files": []}, "files is empty", "list at least one", {"files": ["a.csv"]}),
    "a label without classes": setting(
        CSV | {"num_classes": None}, "neither classes nor num_classes is given", "give num_classes", {"num_classes": 2}
    ),
    "no label": setting(CSV | {"label": None}, "label is missing", "add it", {"label": "y"}),
    "classes without a label": setting(
        NAMED | {"label": None}, "num_classes is given without a label", "drop it", {"num_classes": None}
    ),
    "classes of numbers": setting(
        CSV | {"task": "regression"}, "num_classes is given for task=regression", "drop it", {"num_classes": None}
    ),
    "several labels of classes": setting(
        CSV | {"label": ["x", "y"], "features": ["x"]}, "lists columns for task=classification", "name one",
        {"label": "y"},
    ),
    "a weight that is the label": setting(
        CSV | {"weight": "y"}, "weight=y is also the label", "name another column", {"weight": "x"},
        files={"a.csv": "x,z,y\n1,3,0\n2,4,1\n"},
    ),
    "a weight and a column of its name": setting(
        NAMED | {"columns": {"weight": "float32"}, "weight": "x"}, "columns.weight conflicts with weight=x",
        "rename one of them", {"columns": {"x": "float32"}},
    ),
    "names without columns": setting(
        CSV | {"rename": {"x": "z"}}, "rename is given without columns", "drop it", {"rename": None}
    ),
    "a feature twice": setting(
        CSV | {"features": ["x", "x"]}, "features lists x twice", "drop one", {"features": ["x"]}
    ),
    "a feature that is the label": setting(
        CSV | {"features": ["x", "y"]}, "features contains y, which is label", "drop it", {"features": ["x"]}
    ),
    "features and columns": setting(
        NAMED | {"features": ["z"]}, "features and columns are both given", "list the features among the columns",
        {"features": [], "columns": {"x": "float32", "z": "float32"}},
    ),
    "a list in a CSV file": setting(
        NAMED | {"columns": {"x": "float32[2]"}}, "is not a number or text", "convert them to Parquet",
        {"type": "parquet", "files": ["a.parquet"]}, rows=0,
    ),
    "a name of no column": setting(
        NAMED | {"rename": {"w": "z"}}, "rename.w is not a column", "known are x", {"rename": {"x": "z"}}
    ),
    "two columns of one name": setting(
        CSV | {"columns": {"x": "float32", "w": "float32"}, "rename": {"w": "x"}}, "is the name of two columns",
        "drop one",
        {"columns": {"x": "float32"}, "rename": None},
    ),
    "a column of labels and a label": setting(
        CSV | {"columns": {"x": "float32", "labels": "int64"}, "rename": {"labels": "z"}},
        "conflicts with label=y, which becomes `labels`",
        "drop one of them", {"columns": {"x": "float32"}, "rename": None},
    ),
    "preprocessing of columns": setting(
        NAMED | {"preprocess": {}}, "preprocess treats features, but", "drop one of them", {"preprocess": None}
    ),
    "bytes that are scaled": setting(
        CSV | {"preprocess": {}, "dtype": "uint8"}, "cannot be scaled", "set float64", {"dtype": "float64"}
    ),
    "a clip without room": setting(
        CSV | {"preprocess": {"clip": [2, 1]}}, "has no room", "give [smallest, largest]",
        {"preprocess": {"clip": [1, 2]}},
    ),
    "a treatment of no listed feature": setting(
        CSV | {"features": ["x"], "preprocess": {"columns": {"z": {"impute": "mean"}}}}, "is not in source.features",
        "add it there", {"features": ["x", "z"]},
    ),
    "a treatment of the label": setting(
        CSV | {"preprocess": {"columns": {"y": {"impute": "mean"}}}}, "is the label or the id", "drop it",
        {"preprocess": {}},
    ),
    "a number that is encoded": setting(
        CSV | {"preprocess": {"columns": {"x": {"type": "number", "encode": "index"}}}}, "encode does not apply",
        "keep encode (category)", {"preprocess": {"columns": {"x": {"encode": "index"}}}},
    ),
    "a treatment of no column": setting(
        CSV | {"preprocess": {"columns": {"xx": {"impute": "mean"}}}}, "columns.xx is not a feature",
        'did you mean "x"',
        {"preprocess": {"columns": {"x": {"impute": "mean"}}}},
    ),
    "a list as a feature to scale": setting(
        PARQUET | {"features": ["l", "x"], "preprocess": {}}, "column l is of type list",
        "list the features without it",
        {"features": ["x"]}, files={"a.parquet": parquet({"l": [[1.0], [2.0]], **TABLE})},
    ),
    "nothing but names": csv_case(
        "n,y\nanna,0\nberta,1\ncarla,0\n", "no column that can be a feature", "source.features",
        source={"preprocess": {}}, change={"features": ["n"]}, rows=3,
    ),
    "a delimiter of two characters": setting(
        CSV | {"delimiter": ",,"}, "is not one ASCII character", "give one", {"delimiter": ","}
    ),
    "a decimal mark that is the delimiter": setting(
        CSV | {"decimal": ","}, "is also the delimiter", "set source.delimiter", {"delimiter": ";"},
        files={"a.csv": GOOD.replace(",", ";")},
    ),
    "no size": setting(FOLDER | {"size": None}, "size is missing", "at_read", {"decode": "at_read"}, files=TWO),
    "a size of files' bytes": setting(
        FOLDER | {"decode": "at_read"}, "decode=at_read keeps images as they are", "drop it", {"size": None}, files=TWO
    ),
    "a size of three": setting(
        FOLDER | {"size": [4, 4, 3]}, "is not [height, width]", "give two numbers", {"size": [4, 4]}, files=TWO
    ),
    "special tokens of bytes": setting(
        TEXT | {"special_tokens": True}, "tokenizer=bytes has none", "drop it", {"special_tokens": False},
        files={"a.txt": "a\nb\n"},
    ),
    "an end that is no byte": setting(
        TEXT | {"end": 300}, "is not a byte", "give one", {"end": 10}, files={"a.txt": "a\nb\n"}
    ),
    "neither columns nor tokens": setting(
        {"type": "jsonl", "files": ["a.jsonl"]}, "neither columns nor tokenize is given", "tokenize: {tokens: text}",
        {"tokenize": {"tokens": "text"}}, files={"a.jsonl": '{"text": "a"}\n{"text": "b"}\n'},
    ),
    "tokens that are a column": setting(
        LINES | {"tokenize": {"x": "x"}}, "is also in source.columns", "rename one of them",
        {"tokenize": {"t": "t"}},
        files={"a.jsonl": '{"x": 1, "t": "a"}\n{"x": 2, "t": "b"}\n'},
    ),
    "tokens that are the label": setting(
        {"type": "jsonl", "files": ["a.jsonl"], "tokenize": {"labels": "t"}, "label": "y", "num_classes": 2},
        "conflicts with label=y, which becomes `labels`", "drop one of them", {"label": None, "num_classes": None},
        files={"a.jsonl": '{"y": 1, "t": "a"}\n{"y": 0, "t": "b"}\n'},
    ),
    "an end without tokens": setting(
        LINES | {"end": 1}, "end is given without tokenize", "drop it", {"end": None}, files={"a.jsonl": OBJECTS}
    ),
    "two kinds of classes": setting(
        {"type": "webdataset", "files": ["a.tar"], "classes": ["a", "b"], "num_classes": 2},
        "classes and num_classes are both given", "drop one", {"classes": []}, files={"a.tar": b""}, rows=0,
    ),
    "two kinds of classes of a torch dataset": setting(
        {"type": "tests.support.python_data:Table", "options": {"rows": 20}, "classes": ["a", "b"], "num_classes": 2},
        "classes and num_classes are both given", "drop one", {"num_classes": None}, files={}, rows=0,
    ),
    "classes of a saved dataset without a label": setting(
        {"type": "hf", "files": ["f"], "num_classes": 2}, "num_classes is given without a label", "drop it",
        {"num_classes": None}, files={"f/state.json": "{}"}, rows=0,
    ),
    "classes of numbers of a saved dataset": setting(
        {"type": "hf", "files": ["f"], "label": "y", "task": "regression", "num_classes": 2},
        "num_classes is given for task=regression", "drop it", {"num_classes": None}, files={"f/state.json": "{}"},
        rows=0,
    ),
    "splits of another sum": setting(
        CSV, "splits sum to 1.1, not 1", "change one of", {"splits": {"train": 0.8, "validation": 0.1, "test": 0.1}},
        splits={"train": 0.9, "validation": 0.1, "test": 0.1},
    ),
    "a column of splits that images have not": setting(
        FOLDER, "splits.column is for sources of type csv", "give shares",
        {"splits": {"train": 0.8, "validation": 0.1, "test": 0.1}}, splits={"column": "s"}, files=TWO,
    ),
    "a column of splits that is the label": setting(
        CSV, "splits.column=y is also a feature, the label or the weight", "remove it there",
        {"splits": {"column": "s"}}, splits={"column": "y"}, files={"a.csv": "x,s,y\n1,train,0\n3,test,1\n"},
    ),
    "a group that is the label": setting(
        CSV, "splits.group=y is also a feature, the label", "remove it there", {"splits": SHARES | {"group": "s"}},
        splits=SHARES | {"group": "y"}, files={"a.csv": "x,s,y\n1,p,0\n3,q,1\n"},
    ),
    "groups of images": setting(
        FOLDER, "splits.group is for sources of type csv", "leave it out", {"splits": SHARES},
        splits=SHARES | {"group": "s"}, files=TWO,
    ),
    "a group beside a column of splits": setting(
        CSV, "splits.group=g has no effect, since splits.column", "or set splits.folds",
        {"splits": {"column": "s", "group": "g", "folds": 2, "validation": 0.1}}, splits={"column": "s", "group": "g"},
        files={"a.csv": "x,s,g,y\n1,train,p,0\n3,test,q,1\n"},
    ),
    "a seed beside a column of splits": setting(
        CSV, "splits.seed=1 has no effect without splits.folds", "drop it", {"splits": {"column": "s"}},
        splits={"column": "s", "seed": 1}, files={"a.csv": "x,s,y\n1,train,0\n3,test,1\n"},
    ),
    "two shares for validation": setting(
        CSV, "splits.validation=0.2 has no effect beside a share in splits.files.validation", "drop it",
        {"splits": {"files": FILES, "folds": 2}}, splits={"files": FILES, "folds": 2, "validation": 0.2},
        files={"a.csv": GOOD, "b.csv": GOOD}, rows=0,
    ),
    "a seed beside times": setting(
        CSV, "splits.seed=1 has no effect, since splits.time=t", "drop one", {"splits": SHARES | {"time": "t"}},
        splits=SHARES | {"time": "t", "seed": 1}, files={"a.csv": "x,t,y\n1,5,0\n3,6,1\n"},
    ),
    "classes of whole groups": setting(
        CSV, "splits.stratify=y is given with splits.group=g", "set splits.folds instead of shares",
        {"splits": {"folds": 2, "validation": 0.1, "group": "g", "stratify": "y"}},
        splits=SHARES | {"group": "g", "stratify": "y"}, files={"a.csv": "x,g,y\n1,a,0\n3,q,1\n"},
    ),
    "a date that is none": setting(
        CSV, 'column t is soon, expected a time: a number or a date', "source.on_bad: skip",
        {"on_bad": "skip"}, splits=SHARES | {"time": "t"}, rows=1, files={"a.csv": "x,t,y\n1,soon,0\n3,2024-01-31,1\n"},
    ),
    "a date that is none in JSON": setting(
        LINES, 'splits.time (key t) is "soon", expected a number or a date', "source.on_bad: skip",
        {"on_bad": "skip"}, splits=SHARES | {"time": "t"}, rows=1,
        files={"a.jsonl": '{"x": 1, "t": "soon"}\n{"x": 1, "t": "2024-01-31"}\n'},
    ),
    "a missing group in JSON": setting(
        LINES, "splits.group (key g) is missing, expected a group", "source.on_bad: skip",
        {"on_bad": "skip"}, splits=SHARES | {"group": "g"}, rows=1,
        files={"a.jsonl": '{"x": 1}\n{"x": 1, "g": 7}\n'},
    ),
    "a missing group": setting(
        CSV, "column g is empty, expected a group, a whole number or text", "source.on_bad: skip",
        {"on_bad": "skip"}, splits=SHARES | {"group": "g"}, rows=1, files={"a.csv": "x,g,y\n1,,0\n3,q,1\n"},
    ),
    "a file in no split": setting(
        CSV, "a.csv is in no split", "change the patterns",
        {"splits": {"files": {"train": ["*"], "validation": 0.5, "test": []}}},
        splits={"files": {"train": ["b*"], "validation": 0.5, "test": []}}, rows=0,
    ),
    "a split without files": setting(
        CSV, "['b*'] matches none of source.files", "check the pattern",
        {"splits": {"files": {"train": ["*"], "validation": ["a*"], "test": ["a*"]}}}, rows=0,
        splits={"files": {"train": ["*"], "validation": 0.5, "test": ["b*"]}},
    ),
    "a file that is not there": setting(
        CSV | {"files": ["b.csv"]}, "b.csv matches no file", "check the path", {"files": ["a.csv"]}
    ),
    "a folder of tables": setting(
        CSV | {"files": ["d"]}, "d is a folder", "write d/*", {"files": ["d/*"]}, files={"d/a.csv": GOOD}
    ),
    "a pattern of folders": setting(
        CSV | {"files": ["d/*"]}, "d/* matches folders alone", "write d/*/*", {"files": ["d/*/*"]},
        files={"d/e/a.csv": GOOD}
    ),
    "a pattern of all below": setting(
        CSV | {"files": ["*.csv", "d/**"]}, "d/** contains no file", "leave the pattern out",
        {"files": ["*.csv"]}, files={"a.csv": GOOD, "d/.gitkeep": ""}
    ),
    "a pattern of class folders": setting(
        FOLDER | {"files": ["p/*"]}, "p/* matches folders alone", "or p", {"files": ["p"]}, files=TWO
    ),
    "a broken link": setting(
        CSV | {"files": ["*.csv"]}, "b.csv is a broken link (to gone)", "source.on_bad: skip", {"on_bad": "skip"},
        files={"a.csv": GOOD, "b.csv": Path("gone")},
    ),
    "a URL": setting(
        CSV | {"files": ["https://example.org/a.csv"]}, "is a URL without size and digest", "`shardline digest URL`",
        {"files": [REMOTE]}, rows=0,
    ),
    "no digest": setting(
        CSV | {"files": [{"url": "https://example.org/a.csv", "sha256": "x", "bytes": 1}]}, "is not 64 hex digits",
        "`shardline digest URL`", {"files": [REMOTE]}, rows=0,
    ),
    "a remote file of no path": setting(
        CSV | {"files": [{**REMOTE, "path": "../a"}]},
        "is not a path below a folder", "give one such as data/a",
        {"files": [{**REMOTE, "path": "data/a"}]}, rows=0,
    ),
    "a tokenizer that is not there": setting(
        TEXT | {"tokenizer": "t"}, "tokenizer=t is neither bytes nor a file", "check the path", {"tokenizer": "bytes"},
        files={"a.txt": "a\nb\n"},
    ),
    "two files of one name": setting(
        CSV | {"files": ["a.csv", REMOTE]},
        "two files have the name a.csv", "a different path", rows=0,
        change={"files": ["a.csv", {**REMOTE, "path": "r/a.csv"}]},
    ),
    "one mark for decimals and thousands": setting(
        {**CSV, "thousands": "."}, 'source.thousands="." is also the decimal mark', 'set source.decimal: ","',
        {"decimal": ",", "delimiter": ";"}, files={"a.csv": GOOD.replace(",", ";")},
    ),
    "a label of percentages": setting(
        {**CSV, "percent": ["y"]}, "source.percent contains y", "drop it", {"percent": []},
    ),
}  # fmt: skip

CASES = CSV_CASES | PARQUET_CASES | IMAGE_CASES | TEXT_CASES | IDX_CASES | SETTING_CASES

# Errors that other tests hold, by module and function, and how many each has.
ELSEWHERE = {
    # test_sources_tables.py
    "csv._block": 1, "csv_header.unreadable": 1, "parquet._damaged": 1, "table_columns.__init__": 1,
    "delta.__init__": 1, "delta._refusal": 1, "checked_sources._delta_content": 2,
    # test_sources_arrays.py
    "arrays._check_array": 2, "arrays._check_names": 1, "arrays._check_rows": 2, "arrays.labels_of": 1,
    "arrays.roles": 1, "arrays._type": 1, "array_rows._values": 1, "arrays.classes": 1, "arrays.schema": 1,
    "arrays.values_of": 1, "checked_sources._check_arrays": 1, "hdf5._datasets": 2, "numpy._check_splits": 1,
    "numpy._reading": 1,
    # test_sources_libraries.py
    "chunks.chunks": 1, "chunks.damaged": 1, "hf._tables": 2, "hf._class_names": 1, "hf._inferred": 1, "hf._check": 1,
    "hf._damaged": 1, "litdata._check": 1, "litdata.values": 1, "mds.read_index": 1, "samples._type": 2,
    "webdataset.found": 1, "webdataset._samples": 1,
    # test_sources_remote.py: what lies behind a URL
    "remote_files._lock": 1, "remote_files._mismatch": 1, "remote_files._reading": 5, "remote_files._expand": 1,
    # test_claimed_sizes.py: a row of more than 1 GiB
    "packed._at_most": 1,
    # test_sources_text.py: of the library tokenizers
    "tokenizer.__init__": 1, "tokenizer._number": 1, "tokenizer._encode": 1, "tokenizer._open": 2,
    # of a class's schema, of a package that is not installed
    "source.record": 1, "source._check_further": 2, "source_files._digits_file": 1,
}  # fmt: skip


class Own(sources_package.Source):
    """Two rows."""

    @property
    def schema(self) -> sources_package.Schema:
        return sources_package.Schema(feature_shape=(1,), classes=("a", "b"))

    def iter_tables(self, shard: int) -> Iterator[sources_package.Table]:
        yield sources_package.Table(
            ids=np.arange(2), features=np.ones((2, 1), np.float32), labels=np.arange(2)
        )


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


def read(folder: Path, source: dict[str, Any], splits: dict[str, Any]) -> int:
    """Do what the check and a job do with a dataset of one shard; returns its rows."""
    entry = {"source": {k: v for k, v in source.items() if v is not None}, "shards": 1}
    settings = as_plain(as_type(entry | ({"splits": splits} if splits else {}), DatasetSettings))
    found = locate(
        settings, folder, folder / "downloads", FileDigests(folder / "digests.json"), "datasets.d"
    )
    if any(isinstance(entry, dict) for entry in source.get("files", ())):
        return 0  # which a job fetches
    kind = SHIPPED_SOURCES.get(source["type"], source["type"])
    made = make_source(kind, found.source, num_shards=1, files=found.files)
    rows = read_rows(made, 0, settings["splits"], Memory())
    json.dumps(made.inferred)
    return sum(rows.counts.values())


@cache
def played(name: str) -> tuple[str, int | str, frozenset[tuple[str, int]]]:
    """Return a case's message, what comes after its remedy, and where errors were made."""
    case = CASES[name]

    def outcome(folder: Path, change: dict[str, Any]) -> int | str:
        splits = change.get("splits", case.splits)
        try:
            return read(folder, {**case.source, **change, "splits": None}, splits)
        except ShardlineError as error:
            return str(error).replace(f"{folder}/", "")

    with TemporaryDirectory() as text, pytest.MonkeyPatch.context() as patch:
        folder = Path(text).resolve()
        patch.chdir(folder)
        write(folder, case.files)
        made = note_errors(patch)
        first = outcome(folder, {})
        write(folder, case.write)
        return str(first), outcome(folder, case.change), frozenset(made)


@pytest.mark.parametrize("name", CASES)
def test_the_remedy_of_a_message_leads_to_success(name: str) -> None:
    case, (message, after, _) = CASES[name], played(name)
    assert case.found in message
    assert case.says in message.partition("; ")[2]
    if case.rows:
        assert after == case.rows
    else:
        assert case.found not in str(after)


def errors_in(path: Path) -> Iterator[tuple[str, range]]:
    """Yield where errors are made in a module: the function, and its lines."""

    def below(node: ast.AST, function: str) -> Iterator[tuple[str, range]]:
        for child in ast.iter_child_nodes(node):
            name = child.name if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.Call) and getattr(child.func, "id", "") in (
                "DataError",
                "ConfigError",
            ):
                yield f"{path.stem}.{function}", range(child.lineno, (child.end_lineno or 0) + 1)
            yield from below(child, name)

    yield from below(ast.parse(path.read_text()), "")


def test_every_error_of_sources_has_a_case() -> None:
    folders = {
        package: Path(package.__file__ or "").parent
        for package in (sources_package, config_package)
    }
    modules = sorted(folders[sources_package].glob("*.py"))
    modules += [
        folders[config_package] / f"{name}.py"
        for name in ("checked_preprocess", "checked_sources", "checked_splits", "source_files")
    ]
    made = set().union(*(played(name)[2] for name in CASES))
    missing = Counter[str]()
    for path in modules:
        lines = {line for file, line in made if Path(file) == path}
        for function, where in errors_in(path):
            if not lines & {*where}:
                missing[function] += 1
    assert missing == ELSEWHERE, "give each a case, whose remedy is then tried"
