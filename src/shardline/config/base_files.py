"""Files and folders of weights that a run begins from, by their content."""

from pathlib import Path

from shardline.config.hub_models import check_folder
from shardline.config.layout import ResultsLayout
from shardline.config.references import Source
from shardline.core.canonical import digest
from shardline.core.digests import FileDigests
from shardline.core.errors import ConfigError

ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")


def content_of(
    source: Source, target: str, layout: ResultsLayout, digests: FileDigests, what: str
) -> str:
    """Return the digest of the content of a file or folder of weights.

    Args:
        source: `file` or `hf`.
        target: Path, relative to the folder of the project.
        what: Row and setting, the start of messages.

    Raises:
        ConfigError: The path is missing, of another kind, or leads into the results.
        DataError: A file cannot be read.
    """
    path = layout.root / target
    real = path.resolve()
    if real.is_relative_to(layout.folder_of("run").resolve()):
        run = real.relative_to(layout.folder_of("run").resolve()).parts[0]
        raise ConfigError(
            f"{what} leads into the results of a run, expected run:, so that its identity counts; write run:{run}"
        )
    if source == "hf":
        check_folder(path, what, has_weights=True)
        return digest({file.name: digests.digest(file) for file in files_of_folder(path)})
    if path.suffix not in ENDINGS:
        raise ConfigError(
            f"{what} ends in {path.suffix or 'nothing'}, expected one of {', '.join(ENDINGS)}; "
            "save the weights as safetensors"
        )
    if not path.is_file():
        kind = (
            "is a folder; use hf: for a folder of transformers" if path.is_dir() else "is missing"
        )
        remedy = "" if path.is_dir() else f"; put the weights at {target}, or correct the path"
        raise ConfigError(f"{what} {kind}{remedy}")
    return digests.digest(path)


def files_of_folder(folder: Path) -> list[Path]:
    """Return the files of a folder of transformers that the weights are read from."""
    patterns = ("*.safetensors", "*.safetensors.index.json")
    return [file for pattern in patterns for file in sorted(folder.glob(pattern))]
