"""Files that sources find: hidden ones are not read, links are followed, what cannot be read is named or left out."""

import os
import random
import re
from collections.abc import Callable
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shardline.config.source_files import FileSearch, find_files
from shardline.errors import DataError, ShardlineError
from tests.support.source_cases import load_dataset, make, read

FOLDER = {"type": "image_folder", "files": ["photos"], "size": [4, 4], "on_bad": "fail"}
HIDDEN = (
    ".ipynb_checkpoints/1.png", "cat/.ipynb_checkpoints/1-checkpoint.png", "cat/._1.png", "__MACOSX/cat/._1.png",
    "__MACOSX/cat/1.png", "dog/Thumbs.db", "dog/.DS_Store", ".git/1.png", "cat/.1.png.swp",
    "#recycle/1.png",
)  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        for number in range(3):
            image(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 5), (len(path.name), 90, 30)).save(path, "png")


def found(folder: Path, source: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    files, _, not_read = find_files(source, folder, folder / "downloads", "config: datasets.d")
    return [str(path.relative_to(folder)) for path in files], not_read


def counts(not_read: dict[str, Any]) -> dict[str, int]:
    return {reason: one["count"] for reason, one in not_read.items()}


# --- hidden ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", ["photos", "photos/*/*", "photos/**/*.png", "photos/*/*.png"])
def test_hidden_files_and_folders_are_not_read_and_change_no_identity(
    files: str, photos: Path
) -> None:
    source = {**FOLDER, "files": [files]}
    clean = found(photos.parent, source)
    assert (len(clean[0]), clean[1]) == (6, {})
    for name in HIDDEN:
        image(photos / name)
    read_now, not_read = found(photos.parent, source)
    assert read_now == clean[0]
    assert not_read["hidden"]["count"] >= 2
    assert any(".ipynb_checkpoints" in name for name in not_read["hidden"]["first"])


def test_hidden_files_change_no_identity_and_are_no_class(photos: Path) -> None:
    clean = load_dataset(photos.parent, FOLDER)
    for name in HIDDEN:
        image(photos / name)
    source = make(photos.parent, FOLDER)
    assert source.schema.classes == ("cat", "dog")
    assert source.not_read["hidden"]["count"] == 9
    assert load_dataset(photos.parent, FOLDER).id == clean.id


@pytest.mark.parametrize(
    ("kind", "name"),
    [("webdataset", "0.tar"), ("mds", "0.mds"), ("litdata", "chunk-0.bin"), ("hf", "data.arrow")],
)
def test_hidden_files_of_folders_of_every_type(kind: str, name: str, tmp_path: Path) -> None:
    for path in (name, f"._{name}", f".cache/{name}", f"__MACOSX/{name}", "Thumbs.db", "notes.md"):
        (tmp_path / "data" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / path).write_bytes(b"x")
    files, not_read = found(tmp_path, {"type": kind, "files": ["data"]})
    assert files == [f"data/{name}"]
    assert counts(not_read) == {"hidden": 4, "of another kind": 1}


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "text", "idx", "m:Own"])
def test_hidden_files_behind_patterns_of_every_type(kind: str, tmp_path: Path) -> None:
    for name in ("a", ".b", "._a", "Thumbs.db", "desktop.ini", "__MACOSX/a", "sub/a", ".sub/a"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(b"x")
    files, not_read = found(tmp_path, {"type": kind, "files": ["data/*", "data/*/*"]})
    assert files == ["data/a", "data/sub/a"]
    assert counts(not_read) == {"hidden": 6}


def test_a_hidden_name_that_is_written_out_is_read(tmp_path: Path) -> None:
    for name in (".data/a.csv", ".data/.b.csv", "data/._c.csv", "data/Thumbs.db"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    files, _ = found(
        tmp_path, {"type": "csv", "files": [".data/*", ".data/.b.csv", "data/Thumbs.db"]}
    )
    assert files == [".data/.b.csv", ".data/a.csv", "data/Thumbs.db"]
    assert found(tmp_path, {"type": "csv", "files": [".data/a.*"]})[0] == [".data/a.csv"]


@pytest.mark.parametrize("pattern", ["photos/*/*.png", "photos/**/*.png", "photos/cat/?.png"])
def test_files_whose_ending_has_other_capitals_are_named(pattern: str, photos: Path) -> None:
    image(photos / "cat/X.PNG")
    files, not_read = found(photos.parent, {**FOLDER, "files": [pattern]})
    assert all(name.endswith(".png") for name in files)
    wanted = {"count": 1, "first": ["photos/cat/X.PNG"]}
    assert not_read == ({} if "?" in pattern else {"ending in other capitals": wanted})
    assert "photos/cat/X.PNG" in found(photos.parent, FOLDER)[0]


@pytest.mark.parametrize("files", ["photos", "photos/*/*.png", "photos/**/*"])
def test_names_with_a_line_break_are_read_and_shown_in_one_line(files: str, photos: Path) -> None:
    source = {**FOLDER, "files": [files]}
    image(photos / "cat/a\nb.png")
    assert "photos/cat/a\nb.png" in found(photos.parent, source)[0]
    (photos / "cat/c\nd.png").symlink_to("gone")
    with pytest.raises(DataError, match=r"photos/cat/c\\nd\.png is a broken link"):
        found(photos.parent, source)


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", ["photos", "photos/*/*.png", "photos/**/*.png"])
def test_a_class_folder_that_is_a_link_is_read_as_a_folder_is(files: str, photos: Path) -> None:
    before = found(photos.parent, {**FOLDER, "files": [files]})
    is_first = files == "photos"
    identity = load_dataset(photos.parent, FOLDER).id if is_first else ""
    (photos / "dog").rename(photos.parent / "elsewhere")
    (photos / "dog").symlink_to(photos.parent / "elsewhere", target_is_directory=True)
    assert found(photos.parent, {**FOLDER, "files": [files]}) == before
    if is_first:
        assert load_dataset(photos.parent, FOLDER).id == identity
        assert sorted(read(make(photos.parent, FOLDER)).labels) == [0, 0, 0, 1, 1, 1]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


UNUSABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "photos/cat/gone.png": (
        lambda path: path.symlink_to("../lost.png"),
        r"is a broken link \(to \.\./lost\.png\), expected a file; restore what it leads to, or remove the link",
    ),
    "photos/cat/itself.png": (
        lambda path: path.symlink_to("itself.png"),
        r"is a link that leads back to itself \(through itself\.png\), expected a file; remove the link",
    ),
    "photos/cat/d\udce9j\udce0.png": (
        image,
        "its name is not UTF-8, expected UTF-8, since the identity contains names; rename it",
    ),
    "photos/h\udcf6hle/x.png": (
        image,
        "its name is not UTF-8, expected UTF-8, since the identity contains names; rename it",
    ),
    "photos/cat/pipe.png": (make_fifo, "is not a regular file, expected one; move it elsewhere"),
    "photos/cat/device.png": (
        lambda path: path.symlink_to("/dev/null"),
        "is a link to /dev/null, which is not a regular file; remove the link",
    ),
}  # fmt: skip


@pytest.mark.parametrize("files", ["photos", "photos/*/*", "photos/**/*.png"])
@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_be_read_is_named_or_left_out(name: str, files: str, photos: Path) -> None:
    source, folder = {**FOLDER, "files": [files]}, photos.parent
    clean, _ = found(folder, source)
    write, problem = UNUSABLE[name]
    write(folder / name)
    with pytest.raises(DataError) as error:
        found(folder, source)
    shown = os.fsencode(name).decode("utf-8", "backslashreplace")
    assert re.fullmatch(
        rf".*datasets\.d\.source\.files: {re.escape(shown)} {problem}, or leave such out with source\.on_bad: skip",
        str(error.value),
    )
    str(error.value).encode()
    left, not_read = found(folder, {**source, "on_bad": "skip"})
    assert left == clean
    assert not_read["cannot be read"] == {"count": 1, "first": [shown]}


def test_what_is_left_out_leaves_a_dataset_that_is_built(photos: Path) -> None:
    for name, (write, _) in UNUSABLE.items():
        write(photos.parent / name)
    source = make(photos.parent, {**FOLDER, "on_bad": "skip"})
    assert source.not_read["cannot be read"]["count"] == len(UNUSABLE)
    assert len(read(source).ids) == 6


@pytest.mark.parametrize("files", ["photos", "photos/**/*.png", "photos/*/*.png"])
@pytest.mark.parametrize("target", ["..", ".", "../../photos"])
def test_a_link_to_a_folder_above_is_named(target: str, files: str, photos: Path) -> None:
    link = photos / ("loop" if files == "photos/*/*.png" else "cat/loop")
    target = {"..": ".", ".": "."}.get(target, "../photos") if link.parent == photos else target
    image(photos / "x.png")
    link.symlink_to(target, target_is_directory=True)
    source = {**FOLDER, "files": [files], "classes": ["photos", "cat", "dog"]}
    with pytest.raises(DataError, match="loop is a link to a folder above it, which is an endless"):
        found(photos.parent, source)
    left, _ = found(photos.parent, {**source, "on_bad": "skip"})
    assert not any("loop" in name for name in left)


def test_two_folders_with_links_to_each_other_end(photos: Path) -> None:
    (photos / "cat/other").symlink_to("../dog")
    (photos / "dog/other").symlink_to("../cat")
    files, not_read = found(photos.parent, {**FOLDER, "on_bad": "skip"})
    assert len(files) == 12
    assert counts(not_read) == {"cannot be read": 2}


def test_a_source_without_on_bad_gets_no_such_remedy(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    with pytest.raises(DataError) as error:
        found(tmp_path, {"type": "idx", "files": ["*"]})
    assert str(error.value).endswith("; restore what it leads to, or remove the link")


def test_a_file_that_went_away_is_named_as_such_when_it_is_read(photos: Path) -> None:
    source = make(photos.parent, FOLDER)
    (photos / "cat/0.png").unlink()
    (photos / "cat/0.png").symlink_to("gone")
    with pytest.raises(
        DataError, match=r"cat/0\.png: is a broken link \(to gone\), expected a file"
    ):
        _ = source.content_digest


# --- folders that give nothing, folders of folders ------------------------------------------------


def test_a_folder_without_any_image_beside_those_of_classes_is_refused(photos: Path) -> None:
    (photos / "cow").mkdir()
    (photos / "cow/1.webp").write_bytes(b"x")
    (photos / "cat/notes").mkdir()  # no class would be missing
    with pytest.raises(ShardlineError) as error:
        read(make(photos.parent, FOLDER))
    assert str(error.value) == (
        "photos/cow: the folder has no JPEG or PNG image, expected images in the folder of each class; convert "
        "its files, move the folder elsewhere, or list the folders to use in source.classes"
    )
    assert len(read(make(photos.parent, {**FOLDER, "classes": ["cat", "dog"]})).ids) == 6


def nested(folder: Path, *names: str) -> dict[str, Any]:
    for name in names:
        image(folder / "photos" / name)
    return FOLDER


def test_classes_whose_parents_repeat_them_are_refused_and_either_may_be_listed(
    tmp_path: Path,
) -> None:
    source = nested(tmp_path, "cat/b1/1.png", "cat/b2/2.png", "dog/b1/3.png")
    with pytest.raises(ShardlineError) as error:
        read(make(tmp_path, source))
    assert str(error.value).replace(f"{tmp_path}/", "") == (
        "photos/dog/b1: a folder b1 is in cat as well, so either of the two folders above an image may be its class; "
        "list the classes in source.classes, such as [cat, dog] or [b1, b2]"
    )
    by_animal = read(make(tmp_path, {**source, "classes": ["cat", "dog"]}, shards=1))
    by_batch = read(make(tmp_path, {**source, "classes": ["b1", "b2"]}, shards=1))
    assert sorted(by_animal.labels) == [0, 0, 1]
    assert sorted(by_batch.labels) == [0, 0, 1]
    assert sorted(zip(by_animal.labels, by_batch.labels, strict=True)) == [(0, 0), (0, 1), (1, 0)]


def test_a_class_folder_within_another_is_refused_and_the_outer_may_be_listed(
    tmp_path: Path,
) -> None:
    source = nested(tmp_path, "cat/1.png", "cat/more/2.png", "dog/3.png")
    with pytest.raises(ShardlineError, match=r"more: images are in this .* \[cat, dog\] or \[cat"):
        read(make(tmp_path, source))
    rows = read(make(tmp_path, {**source, "classes": ["cat", "dog"]}))
    assert sorted(rows.labels) == [0, 0, 1]


def test_folders_of_splits_and_of_different_classes_are_no_guess(tmp_path: Path) -> None:
    source = nested(tmp_path, "train/cat/1.png", "train/dog/1.png", "val/cat/2.png")
    assert make(tmp_path, source).schema.classes == ("cat", "dog")
    source = nested(tmp_path / "b", "animals/cat/1.png", "animals/dog/1.png", "plants/rose/2.png")
    assert make(tmp_path / "b", source).schema.classes == ("cat", "dog", "rose")


# --- nothing else changed -------------------------------------------------------------------------


def test_trees_without_hidden_files_and_links_give_the_same_files_in_the_same_order(
    tmp_path: Path,
) -> None:
    """Against the search of earlier versions; seed 33."""
    generator = random.Random(33)
    names = ["a", "b", "A", "a b", "1", "10", "é", "a-b", "a.b", "~", "#x"]
    for tree in range(8):
        top = tmp_path / str(tree)
        for _ in range(30):
            folder = top.joinpath(*generator.choices(names, k=generator.randrange(4)))
            if any(one.is_file() for one in (folder, *folder.parents)):
                continue
            folder.mkdir(parents=True, exist_ok=True)
            name = generator.choice(names) + generator.choice([".png", ".PNG", ".txt", ""])
            if not (folder / name).exists():
                (folder / name).write_bytes(b"x")
        search = FileSearch(workdir=tmp_path, where="d")
        wanted = re.compile(r".*\.(jpg|png)", re.IGNORECASE)
        walked = [
            os.path.join(root, name)  # noqa: PTH118
            for root, _, files in os.walk(top)
            for name in files
            if wanted.fullmatch(name)
        ]
        assert list(map(str, search.below(top, wanted))) == sorted(walked)
        for pattern in (
            f"{tree}/*",
            f"{tree}/**/*",
            f"{tree}/**/*.png",
            f"{top}/?/*",
            f"{tree}/a*/[a-z]*",
        ):
            matches = sorted(glob(pattern, root_dir=tmp_path, recursive=True))  # noqa: PTH207
            paths = [Path(os.path.normpath(tmp_path / match)) for match in matches]
            assert search.matching(pattern) == [path for path in paths if path.is_file()]
