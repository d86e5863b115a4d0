"""The workspace's storage account, as far as the SDKs use it: code goes up, logs come down."""

import hashlib
import re
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from xml.sax.saxutils import escape

from flask import Blueprint, Response, request, send_file

from tests.azureml.emulator.workspace import ServiceError, Workspace


def make_blobs(workspace: Workspace) -> Blueprint:
    """Return the routes below `/blob`, which stands for the account's host."""
    blobs = Blueprint("blobs", __name__, url_prefix="/blob")

    def place(container: str, path: str) -> Path:
        folder = (workspace.blobs / container).resolve()
        target = (folder / path).resolve()
        if not target.is_relative_to(folder):
            raise ServiceError(400, f"{path} leaves its container", "InvalidUri")
        return target

    @blobs.put("/<container>/<path:path>")
    def put(container: str, path: str) -> Response:
        target, part = place(container, path), request.args.get("comp", "")
        target.parent.mkdir(parents=True, exist_ok=True)
        if part == "block":
            _block(target, request.args["blockid"]).write_bytes(request.get_data())
        elif part == "blocklist":
            ids = re.findall(r"<Latest>(.*?)</Latest>", request.get_data(as_text=True))
            with target.open("wb") as whole:
                for block in (_block(target, number) for number in ids):
                    whole.write(block.read_bytes())
                    block.unlink()
        elif part != "metadata":  # which nothing here reads back
            target.write_bytes(request.get_data())
        headers = {"ETag": '"0x1"', "Last-Modified": formatdate(usegmt=True)}
        return Response(status=200 if part == "metadata" else 201, headers=headers)

    @blobs.get("/<container>/<path:path>")
    def get(container: str, path: str) -> Response:
        target = place(container, path)
        if not target.is_file():
            return _problem(404, "BlobNotFound")
        if "x-ms-range" in request.headers:  # what the SDK says instead of Range
            request.environ["HTTP_RANGE"] = request.headers["x-ms-range"]
        if target.stat().st_size == 0 and "HTTP_RANGE" in request.environ:
            return _problem(416, "InvalidRange", {"Content-Range": "bytes */0"})
        answer = send_file(target, "application/octet-stream", conditional=True, max_age=0)
        answer.headers["x-ms-blob-type"] = "BlockBlob"
        return answer

    @blobs.get("/<container>")
    def list_container(container: str) -> Response:
        folder, prefix = workspace.blobs / container, request.args.get("prefix", "")
        if not folder.is_dir():
            return _problem(404, "ContainerNotFound")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
        entries = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Content-Length>{size}"
            "</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>"
            for name, size in names.items()
            if name.startswith(prefix)
        )
        text = f"<EnumerationResults><Blobs>{entries}</Blobs><NextMarker/></EnumerationResults>"
        return Response(f'<?xml version="1.0"?>{text}', content_type="application/xml")

    return blobs


def read_tree(folder: Path) -> dict[str, Path]:
    """Return path below a folder -> file, of every file."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in files}


def _block(target: Path, number: str) -> Path:
    """Return where a block waits until the list that names it comes."""
    digest = hashlib.sha256(number.encode()).hexdigest()[:16]
    return target.with_name(f".{target.name}.block-{digest}")


def _problem(status: int, code: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as the storage service writes it."""
    text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    said = {"x-ms-error-code": code, **(headers or {})}
    return Response(text, status=status, headers=said, content_type="application/xml")
