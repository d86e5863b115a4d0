"""The cluster tutorial is followed on a real Slurm: its commands are typed on the login machine."""

import sys

import pytest

from tests.support.tutorials import Shell, follow, read_page
from tests.support.workspace import REPOSITORY, SNAKEMAKE, write_program


@pytest.mark.rotating
def test_the_cluster_tutorial_shows_what_the_screen_shows(slurm, tmp_path):
    fast = REPOSITORY / "tests/support/slurm/snakemake_fast.py"
    write_program(tmp_path / "bin/snakemake", f'exec {sys.executable} {fast} "$@"')
    for name in ("followed", "scratch"):
        (tmp_path / name).mkdir()
    path = f"{tmp_path / 'bin'}:{SNAKEMAKE.parent}:{slurm.env['PATH']}"
    env = {**slurm.env, "PATH": path, "SCRATCH": str(tmp_path / "scratch")}
    page = read_page(REPOSITORY / "docs/tutorials/cluster.md")
    differences = follow(page, Shell(tmp_path / "followed", machine=slurm.login.command, env=env))
    print(f"{len(page.commands)} commands, {len(page.left_out)} screens not run: {page.left_out}")
    assert differences == [], "\n\n".join(differences)
