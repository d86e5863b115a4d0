"""The command `crate`, which packs the report and its evidence."""

from pathlib import Path
from typing import Annotated, Any

import typer

from shardline.cli.app import AsJson, app
from shardline.cli.display.terminal import say, say_json, waiting_for
from shardline.config.load import load_project


@app.command("crate")
def pack_crate(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Zip file to write; an existing one is replaced.")
    ] = Path("crate.zip"),
    wants_zip: Annotated[
        bool, typer.Option("--zip", metavar="", help="Pack the crate into FILE.")
    ] = False,
    with_data: Annotated[
        bool, typer.Option("--with-data", metavar="", help="Pack models and shards too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Describe the report and the files behind it as an RO-Crate.

    --zip packs report, settings, metrics, evaluations, provenance, manifests and
    workflow, described by the Provenance Run Crate profile. The same files give
    the same zip. In the unzipped crate, `shardline lineage` works; with
    --with-data, `verify` and `replay` work too.
    """
    from shardline.provenance.crate.pack import write_zip

    project = load_project(config_file=context.obj)
    facts: dict[str, Any] = {"metadata": project.crate, "exists": project.crate.exists()}
    if wants_zip:
        with waiting_for(f"packing {file}"):
            files = write_zip(project, file, config=context.obj, with_data=with_data)
        facts |= {"zip": file, "files": files, "bytes": file.stat().st_size}
    if as_json:
        say_json(facts)
    elif wants_zip:
        say(f"{file}: {facts['files']} files, {facts['bytes'] / 1e6:,.1f} MB")
    else:
        missing = "" if facts["exists"] else " (does not exist yet: run the pipeline)"
        say(f"metadata: {project.crate}{missing}\npack it: shardline crate --zip {file}")
