#!/usr/bin/env python3
"""Run tests/unit, or the tests that are named, as on another machine: `.venv/bin/python .ci/variation.py [tests/...]`.

`.ci/run` takes one variation a run, by the commit. VARIATION=NAME chooses another one, of those below.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VARIATIONS = {
    "plain": "this folder, processor and user",
    "processor": "the instructions of an older processor",
    "folder": "a clone whose path has a space, below the folder for temporary files",
    "link": "this folder through a symbolic link",
    "user": "a user who owns nothing here, and whose HOME is empty and cannot be written to",
    "busy": "two workers for each core",
}
# What torch, MKL, OpenBLAS and oneDNN read; bits are equal between equal computations alone.
PROCESSOR = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Prescott",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}
NOBODY = 65534


def chosen() -> str:
    """Return the variation's name: $VARIATION, else the one of this commit."""
    if name := os.environ.get("VARIATION"):
        if name not in VARIATIONS:
            sys.exit(f"VARIATION={name} is not known; use one of {', '.join(VARIATIONS)}")
        return name
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return [*VARIATIONS][int(found.stdout[:8] or "0", 16) % len(VARIATIONS)]


def clone(folder: Path) -> Path:
    """Return a clone of the last commit, whose environment consists of hard links to this one's files."""
    made = folder / "a folder" / "shardline"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(made)], check=True)
    subprocess.run(["cp", "-al", str(ROOT / ".venv"), str(made / ".venv")], check=True)
    told = (
        "pyvenv.cfg",
        "bin/*",
        "lib/python3*/site-packages/*.pth",
        "lib/python3*/site-packages/*/direct_url.json",
    )
    for file in (file for pattern in told for file in sorted((made / ".venv").glob(pattern))):
        content = file.read_bytes() if file.is_file() and not file.is_symlink() else b""
        if os.fsencode(ROOT) in content and b"\0" not in content:
            mode = file.stat().st_mode
            file.unlink()  # and leave the file that it is linked to as it is
            file.write_bytes(moved(content, os.fsencode(ROOT), os.fsencode(made)))
            file.chmod(mode)
    return made


def moved(content: bytes, before: bytes, now: bytes) -> bytes:
    """Return a script or setting of an environment that was moved, with a first line as pip writes it."""
    first, _, rest = content.partition(b"\n")
    if first.startswith(b"#!" + before):
        python = first[2:].replace(before, now)
        first = b"#!/bin/sh\n'''exec' \"" + python + b'" "$0" "$@"\n\' \'\'\''
    return first.replace(before, now) + b"\n" + rest.replace(before, now)


def as_nobody(folder: Path, env: dict[str, str]) -> list[str]:
    """Return what starts a command as another user, and say in `env` where that user may write.

    Folders that are closed to others, as /root is, hold what Python needs: they are replaced, in a mount
    namespace of the command's own, by empty ones that have what is needed.
    """
    for name, mode in {"home": 0o555, "tmp": 0o755, "cache": 0o755}.items():
        (folder / name).mkdir()
        (folder / name).chmod(mode)
        if name != "home":
            os.chown(folder / name, NOBODY, NOBODY)
    env |= {
        "HOME": f"{folder}/home",
        "TMPDIR": f"{folder}/tmp",
        "XDG_CACHE_HOME": f"{folder}/cache",
    }
    folder.chmod(0o755)
    needed = [Path(sys.base_prefix).resolve(), ROOT]
    parents = {above: above.stat().st_mode & 1 for path in needed for above in path.parents}
    closed = [path for path, is_open in sorted(parents.items()) if not is_open]
    steps = ["set -e"]
    for number, path in enumerate(needed):
        (folder / f"needed{number}").mkdir()
        steps.append(f"mount --bind {quote(path)} {folder}/needed{number}")
    steps += [
        f"[ ! -d {quote(path)} ] || mount -t tmpfs -o mode=755,size=1m none {quote(path)}"
        for path in closed
    ]
    for number, path in enumerate(needed):
        if any(path.is_relative_to(above) for above in closed):
            steps.append(
                f"mkdir -p {quote(path)} && mount --bind {folder}/needed{number} {quote(path)}"
            )
    steps.append(
        f'exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --bounding-set=-all "$@"'
    )
    return ["unshare", "--mount", "--propagation", "private", "bash", "-c", "\n".join(steps), "-"]


def quote(path: Path) -> str:
    """Return a path as a word of the shell."""
    return shlex.quote(str(path))


def main() -> int:
    """Run the unit tests in the variation; pytest's exit code."""
    name = chosen()
    print(
        f"variation of tests/unit: {name} ({VARIATIONS[name]}); VARIATION={name} repeats it",
        flush=True,
    )
    if sys.argv[1:] == ["--name"]:
        return 0
    start: list[str] = []
    env, root, workers = dict(os.environ), ROOT, (os.cpu_count() or 1) + 1
    temporary = Path("/tmp" if name == "user" else tempfile.gettempdir())
    if name == "folder" and temporary.stat().st_dev != ROOT.stat().st_dev:
        temporary = ROOT.parent  # for the links
    folder = Path(tempfile.mkdtemp(prefix="shardline-ci-", dir=temporary)).resolve()
    try:
        if name == "processor":
            env |= PROCESSOR
        elif name == "folder":
            root, env["TMPDIR"] = clone(folder), str(folder)
        elif name == "link":
            root = folder / "link"
            root.symlink_to(ROOT)
        elif name == "user" and os.geteuid() == 0:
            start = as_nobody(folder, env)
        elif name == "busy":
            workers = 2 * (os.cpu_count() or 1)
        # by its path: Python takes the present folder for what a link leads to
        command = [
            *start, f"{root}/.venv/bin/python", "-m", "pytest", "-n", str(workers), "--dist", "loadfile",
            "--no-loadscope-reorder", "--durations", "0", "--durations-min", "1", "--tenth", "commit",
            "-p", "no:cacheprovider", f"--rootdir={root}", *(f"{root}/{one}" for one in sys.argv[1:] or ["tests/unit"]),
        ]  # fmt: skip
        print(shlex.join(command[len(start) :]), flush=True)
        return subprocess.run(
            command, cwd=root, env={**env, "PWD": str(root)}, check=False
        ).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
