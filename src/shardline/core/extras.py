"""Packages of Shardline's extras, which an installation may lack."""

from collections.abc import Iterator
from contextlib import contextmanager

from shardline.core.errors import ConfigError

# Extra by the import name of a package; `pyproject.toml` lists what each extra installs.
EXTRA_OF = {
    "PIL": "images",
    "adlfs": "azure-blob",
    "cmaes": "sweeps",
    "deltalake": "delta",
    "h5py": "hdf5",
    "lightning": "lightning",
    "mlflow": "mlflow",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "optuna": "sweeps",
    "pandas": "notebook",
    "pyarrow": "tables",
    "rattler": "conda",
    "s3fs": "s3",
    "simplejpeg": "images",
    "snakemake_executor_plugin_slurm": "slurm",
    "tensorboard": "tensorboard",
    "tokenizers": "tokenizers",
    "transformers": "huggingface",
    "uv": "venv",
    "vl_convert": "figures",
    "wandb": "wandb",
}


def missing_package(package: str, what: str = "") -> str:
    """Return the sentence that names the extra of a package that is not installed.

    Args:
        package: import name of the package, a key of `EXTRA_OF`.
        what: setting or command that needs the package.
    """
    needed = f"{what} needs the package {package}, which" if what else f"the package {package}"
    return f"{needed} is not installed; run pip install 'shardline[{EXTRA_OF[package]}]'"


def extra_package(error: BaseException) -> str | None:
    """Return the package of an extra that an import did not find; None for another error."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    package = (name or "").partition(".")[0]
    return package if package in EXTRA_OF else None


@contextmanager
def naming_extras() -> Iterator[None]:
    """Convert the error of an import of an extra's package to one sentence.

    Raises:
        ConfigError: a package of an extra is not installed; the message names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = extra_package(error)
        if package is None:
            raise
        raise ConfigError(missing_package(package)) from error
