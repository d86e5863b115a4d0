"""Files by URL from real servers: fetched once, believed only if size and digest are right."""

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
import s3fs
import yaml
from moto.server import ThreadedMotoServer

from shardline.core.urls import without_secrets
from shardline.data.sources.remote_files import describe, fetch
from shardline.data.sources.source import combine_digests
from shardline.errors import ConfigError, DataError
from tests.support.source_cases import load_dataset, make, read

CONTENT = "x,y\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(20_000))
SHA256 = hashlib.sha256(CONTENT.encode()).hexdigest()
CSV: dict[str, Any] = {"type": "csv", "label": "y", "classes": ["a", "b"]}


@dataclass
class Server:
    """A real HTTP server of a folder that asks for a token and counts what it sends."""

    folder: Path
    port: int = 0
    sent: Counter[str] = field(default_factory=Counter)

    def url(self, name: str, *, user: str = "") -> str:
        return f"http://{user}127.0.0.1:{self.port}/{name}?sig=geheim"

    def entry(self, name: str, **changed: Any) -> dict[str, Any]:
        return {
            "url": self.url(name),
            "sha256": SHA256,
            "bytes": len(CONTENT),
            "path": name,
            **changed,
        }


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, server: Server, *arguments: Any) -> None:
        self.counted = server
        super().__init__(*arguments, directory=str(server.folder))

    def do_GET(self) -> None:
        if "sig=geheim" not in self.path:
            self.send_error(403)
            return
        self.counted.sent[self.path.partition("?")[0]] += 1
        super().do_GET()

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "rows.csv").write_text(CONTENT)
    found = Server(tmp_path / "served")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, found)) as http:
        found.port = http.server_port
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield found
        http.shutdown()
        thread.join()


def files_below(folder: Path) -> list[str]:
    return sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"
    )


def test_a_dataset_by_url_is_the_one_of_the_local_file(server: Server, tmp_path: Path) -> None:
    source = {**CSV, "files": [server.entry("rows.csv")]}
    del source["files"][0]["path"]
    dataset = load_dataset(tmp_path, source)
    assert not server.sent, "reading the config touches no network"
    fetch(dataset.source["files"], tmp_path / "store/downloads")
    remote = make(tmp_path, source)
    assert remote.content_digest == combine_digests(dataset.document["source"].values())
    local = make(tmp_path, {**CSV, "files": ["served/rows.csv"]})
    assert load_dataset(tmp_path, {**CSV, "files": ["served/rows.csv"]}).id == dataset.id
    one, other = read(remote), read(local)
    assert len(one.ids) == 20_000
    assert (one.ids == other.ids).all()
    assert (one.features == other.features).all()


def test_secrets_are_neither_in_the_identity_nor_decisive(server: Server, tmp_path: Path) -> None:
    entry = server.entry("rows.csv")
    dataset = load_dataset(tmp_path, {**CSV, "files": [entry]})
    assert "geheim" not in json.dumps(dataset.document)
    entry["url"] = "https://elsewhere/rows.csv?sig=other"
    assert load_dataset(tmp_path, {**CSV, "files": [entry]}).id == dataset.id
    entry["sha256"] = "0" * 64
    assert load_dataset(tmp_path, {**CSV, "files": [entry]}).id != dataset.id


def test_several_jobs_fetch_a_file_once(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as jobs:
        list(
            jobs.map(
                lambda _: fetch([server.entry("rows.csv")], tmp_path / "store/downloads"), range(6)
            )
        )
    assert files_below(tmp_path / "store") == [f"downloads/{SHA256}/rows.csv"]
    sent = sum(server.sent.values())
    fetch(["a/local.csv", server.entry("rows.csv")], tmp_path / "store/downloads")
    assert sum(server.sent.values()) == sent
    assert (tmp_path / "store" / "downloads" / SHA256 / "rows.csv").read_text() == CONTENT


def test_a_secret_may_stand_in_the_environment(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_TOKEN", "sig=geheim")
    url = f"http://127.0.0.1:{server.port}/rows.csv?${{DATA_TOKEN}}"
    fetch([server.entry("rows.csv", url=url)], tmp_path / "store/downloads")
    assert files_below(tmp_path / "store") == [f"downloads/{SHA256}/rows.csv"]


REMEDY = (
    "run the job again, or, if the file was replaced on purpose, copy the entry that `shardline digest` prints "
    "into source.files"
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"bytes": 10}, f"has more than 10 bytes, expected 10; {REMEDY}"),
        ({"bytes": 10**6}, f"has {len(CONTENT):,} bytes, expected 1,000,000; {REMEDY}"),
        ({"sha256": "0" * 64}, f"has SHA-256 {SHA256}, expected {'0' * 64}; {REMEDY}"),
    ],
)
def test_another_size_or_digest(
    server: Server, changed: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as error:
        fetch([server.entry("rows.csv", **changed)], tmp_path / "store/downloads")
    assert str(error.value) == f"http://127.0.0.1:{server.port}/rows.csv: {expected}"
    assert files_below(tmp_path / "store") == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("{server}/none.csv?sig=geheim", "{server}/none.csv: not found or not reachable (ClientResponseError: 404"),
        ("{server}/rows.csv?sig=falsch", "{server}/rows.csv: cannot be read (ClientResponseError: 403"),
        ("http://127.0.0.1:9/a.csv?sig=falsch", "http://127.0.0.1:9/a.csv: not found or not reachable"),
        ("https://me:geheim@127.0.0.1:9/a.csv", "https://127.0.0.1:9/a.csv: not found or not reachable"),
        ("file:///nowhere/a.csv", "file:///nowhere/a.csv: not found; check the URL"),
        ("nosuch://a.csv", "nosuch://a.csv: cannot be read (ValueError: Protocol not known: nosuch"),
    ],
)  # fmt: skip
def test_what_cannot_be_fetched(server: Server, url: str, expected: str, tmp_path: Path) -> None:
    place = f"http://127.0.0.1:{server.port}"
    with pytest.raises(DataError) as error:
        fetch(
            [server.entry("rows.csv", url=url.format(server=place))], tmp_path / "store/downloads"
        )
    text = str(error.value)
    assert text.startswith(expected.format(server=place)), text
    assert "\n" not in text
    assert not {"geheim", "falsch"} & set(text.replace("=", " ").replace(":", " ").split())
    assert files_below(tmp_path / "store") == []


@pytest.mark.parametrize(
    ("scheme", "package"), [("s3", "s3fs"), ("abfs", "adlfs"), ("az", "adlfs"), ("gs", "gcsfs")]
)
def test_a_missing_package_is_named(scheme: str, package: str, tmp_path: Path) -> None:
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError:
        with pytest.raises(DataError) as error:
            list(describe([f"{scheme}://bucket/a.csv"]))
        assert str(error.value) == (
            f"{scheme}://bucket/a.csv: the package for this kind of URL is not installed; install the package {package}"
        )


def test_a_store_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where a folder is needed")
    with pytest.raises(DataError, match="could not be created"):
        fetch([server.entry("rows.csv")], tmp_path / "store/downloads")
    lock = tmp_path / "other" / "downloads" / SHA256 / ".rows.csv.lock"
    lock.mkdir(parents=True)
    with pytest.raises(
        DataError, match=r"\.rows\.csv\.lock cannot be locked \(.*\); correct the folder's owner"
    ):
        fetch([server.entry("rows.csv")], tmp_path / "other" / "downloads")
    assert not server.sent


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"sha256": "abc"}, "sha256=abc is not 64 hex digits; use the value that `shardline digest URL` prints"),
        ({"path": "../a.csv"}, 'path="../a.csv" is not a path below a folder; give one such as data/a.csv'),
        ({"path": "/a.csv"}, 'path="/a.csv" is not a path below a folder; give one such as data/a.csv'),
    ],
)  # fmt: skip
def test_incomplete_entry(entry: dict[str, Any], expected: str, tmp_path: Path) -> None:
    full = {"url": "https://me:geheim@host/a.csv?sig=geheim", "sha256": SHA256, "bytes": 1, **entry}
    with pytest.raises(ConfigError) as error:
        load_dataset(tmp_path, {**CSV, "files": [full]})
    assert str(error.value) == (
        f"config/config.yaml: datasets.d.source.files: https://host/a.csv: {expected}"
    )


def test_two_remote_files_of_one_name(tmp_path: Path) -> None:
    files = [{"url": f"https://host/{n}/a.csv", "sha256": f"{n}" * 64, "bytes": 1} for n in (1, 2)]
    with pytest.raises(
        ConfigError, match=r"two files have the name a.csv; put them into one folder tree, or give"
    ):
        load_dataset(tmp_path, {**CSV, "files": files})
    for n, file in enumerate(files):
        file["path"] = f"{n}/a.csv"
    names = list(load_dataset(tmp_path, {**CSV, "files": files}).document["source"])
    assert names == ["00000/0/a.csv", "00001/1/a.csv"]


def test_a_url_without_digest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_dataset(tmp_path, {**CSV, "files": ["https://host/a.csv?sig=geheim"]})
    assert str(error.value) == (
        "config/config.yaml: datasets.d.source.files: https://host/a.csv is a URL without size and digest; "
        "use the entry that `shardline digest URL` prints"
    )


# --- what `shardline digest` prints ----------------------------------------------------------


def test_described_files_can_be_pasted_into_the_config(server: Server, tmp_path: Path) -> None:
    (tmp_path / "served" / "more").mkdir()
    (tmp_path / "served" / "more" / "rows.csv").write_text(CONTENT.replace("1", "7"))
    found = list(describe([server.url("rows.csv"), server.url("more/rows.csv")]))
    assert [entry["path"] for entry in found] == ["rows.csv", "more/rows.csv"]
    assert found[0] == server.entry("rows.csv")
    files = yaml.safe_load(yaml.safe_dump(found))
    fetch(
        load_dataset(tmp_path, {**CSV, "files": files}).source["files"],
        tmp_path / "store/downloads",
    )
    assert len(read(make(tmp_path, {**CSV, "files": files})).ids) == 40_000


def test_a_pattern_stands_for_the_files_that_match(tmp_path: Path) -> None:
    for name in ("a/1.csv", "b/2.csv", "b/3.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = list(describe([f"{tmp_path}/**/*.csv"]))
    assert [(entry["path"], entry["bytes"]) for entry in found] == [("a/1.csv", 7), ("b/2.csv", 7)]
    urls = [entry["url"] for entry in describe([f"file://{tmp_path}/*/*.csv"])]
    assert urls == [f"file://{tmp_path}/a/1.csv", f"file://{tmp_path}/b/2.csv"]
    mixed = describe([f"file://{tmp_path}/a/1.csv", f"{tmp_path}/b/2.csv"])
    assert [entry["path"] for entry in mixed] == ["a/1.csv", "b/2.csv"]
    with pytest.raises(DataError, match=r"\*.parquet: matches no file; check the URL"):
        list(describe([f"{tmp_path}/*.parquet"]))


def test_a_delta_table_is_told_by_id_and_version(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    for _ in range(2):
        write_deltalake(tmp_path / "t", pa.table({"x": [1]}), mode="append")
    (found,) = describe([str(tmp_path / "t")])
    source = {**CSV, "type": "delta", **found}
    assert load_dataset(tmp_path, source).source["version"] == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@h/a?sig=s&x=1", "https://h/a"),
        ("error at 'abfs://c@account/a.csv?sig=s' (403)", "error at 'abfs://c@account/a.csv' (403)"),
        ("no url at all? yes", "no url at all? yes"),
        ("s3://bucket/key", "s3://bucket/key"),
    ],
)  # fmt: skip
def test_urls_without_their_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


# --- S3, by a real server --------------------------------------------------------------------


def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    secret = {
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "geheim",
        "AWS_REGION": "us-east-1",
    }
    place = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true"}
    for key, value in {**secret, **place}.items():
        monkeypatch.setenv(key, value)
    try:
        s3fs.S3FileSystem.clear_instance_cache()
        system = s3fs.S3FileSystem()
        system.mkdir("bucket")
        system.pipe("bucket/data/rows.csv", CONTENT.encode())
        files = list(describe(["s3://bucket/data/*.csv"]))
        assert files == [
            {
                "url": "s3://bucket/data/rows.csv",
                "sha256": SHA256,
                "bytes": len(CONTENT),
                "path": "rows.csv",
            }
        ]
        fetch(files, tmp_path / "store/downloads")
        assert len(read(make(tmp_path, {**CSV, "files": files})).ids) == 20_000
        with pytest.raises(
            DataError,
            match=r"^s3://bucket/none.csv: not found",
        ):
            fetch([{**files[0], "url": "s3://bucket/none.csv"}], tmp_path / "other" / "downloads")
        _delta_on_s3(tmp_path)
    finally:
        server.stop()


def _delta_on_s3(folder: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    options = {**os.environ, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    table = pa.table({"x": range(9), "y": ["a"] * 9})
    write_deltalake("s3://bucket/table", table, storage_options=options)
    (found,) = describe(["s3://bucket/table"])
    source = {**CSV, "type": "delta", **found}
    assert len(read(make(folder, source)).ids) == 9
    with pytest.raises(
        DataError, match=r"^Delta table s3://bucket/table: no version 7, the latest is 0"
    ):
        make(folder, {**source, "version": 7})
