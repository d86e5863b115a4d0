"""A real conda channel in a folder: packages are built into it, and rattler indexes and solves it."""

import asyncio
import hashlib
import io
import json
import os
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from conda_package_streaming.create import conda_builder
from rattler.index import index_fs

PLACEHOLDER = (
    "/opt/placeholder" + "_placehold" * 20
)  # as conda-build leaves it where a prefix is to be
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"lib/python{PYTHON}/site-packages"


class CondaChannel:
    """A channel that is made as a test goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "noarch").mkdir(parents=True)

    @property
    def url(self) -> str:
        return self.path.as_uri()

    def add(
        self, name: str, version: str, *, depends: Sequence[str] = (),
        files: Mapping[str, str] | None = None, links: Mapping[str, str] | None = None,
        build: str = "h1_0", subdir: str = "linux-64",
    ) -> Path:  # fmt: skip
        """Build a package of these texts and links by their paths; one already there is replaced."""
        folder, stem = self.path / subdir, f"{name}-{version}-{build}"
        folder.mkdir(exist_ok=True)
        (folder / f"{stem}.conda").unlink(missing_ok=True)
        noarch = {"noarch": "python"} if subdir == "noarch" else {}
        index = {
            "name": name, "version": version, "build": build, "build_number": 0,
            "depends": list(depends), "subdir": subdir, **noarch,
        }  # fmt: skip
        paths = []
        with conda_builder(stem, folder, compression_level=1) as package:
            for path, text in (files or {}).items():
                content = text.encode()
                _put(package, path, content)
                patched = {"prefix_placeholder": PLACEHOLDER, "file_mode": "text"}
                paths.append({
                    "_path": path, "path_type": "hardlink", "size_in_bytes": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                    **(patched if PLACEHOLDER in text else {}),
                })  # fmt: skip
            for path, target in (links or {}).items():
                member = tarfile.TarInfo(path)
                member.type, member.linkname = tarfile.SYMTYPE, target
                package.addfile(member)
                paths.append({"_path": path, "path_type": "softlink"})
            _put(package, "info/index.json", json.dumps(index).encode())
            document = {"paths": paths, "paths_version": 1}
            _put(package, "info/paths.json", json.dumps(document).encode())
        return folder / f"{stem}.conda"

    def add_python(self) -> Path:
        """Build a Python: the interpreter of these tests, at home in whatever prefix it lies."""
        home = Path(os.path.realpath(sys.executable))
        program = f"#!{PLACEHOLDER}/bin/python\nimport sys\nprint(sys.prefix)\n"
        return self.add(
            "python", f"{PYTHON}.99",
            files={
                "pyvenv.cfg": f"home = {home.parent}\ninclude-system-site-packages = false\n",
                "bin/where": program,
                f"{SITE}/README.txt": "Packages go here.\n",
            },
            links={"bin/python": str(home)},
        )  # fmt: skip

    def add_all(self, specs: Iterable[str]) -> None:
        """Build every package that is asked for as `name ==version`, empty but for one.

        PyTorch lets the prefix see what these tests have installed.
        """
        self.add_python()
        for name, _, version in (spec.partition(" ==") for spec in specs):
            if version:
                installed = {f"{SITE}/installed.pth": sysconfig.get_path("purelib")}
                files = installed if name == "pytorch" else {}
                self.add(name, version, depends=[f"python {PYTHON}.*"], files=files)

    def index(self) -> None:
        """Write the lists that a channel is read by."""
        asyncio.run(index_fs(self.path, force=True))


def _put(package: tarfile.TarFile, path: str, content: bytes) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(content), 0o755 if path.startswith("bin/") else 0o644
    package.addfile(member, io.BytesIO(content))
