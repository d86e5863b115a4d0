"""A model of random weights sealed on a small dataset and exported; a card's lines run where shardline is not."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.settings.run_settings import Data, Evaluation, RunSettings
from shardline.core.files import write_json
from shardline.data.build import build_shards, describe_part, make_source, seal
from shardline.records.base import encode
from shardline.records.datasets import Manifest
from shardline.results.export import DESCRIPTION, FORMATS
from shardline.results.export.export_run import ExportCheck, checked_export
from shardline.training.model import make_model
from tests.support.source_cases import load_dataset

# no server has these
WITHOUT = "import sys; sys.modules.update(torch=None, shardline=None)\n"


@dataclass
class Model:
    """A sealed model.

    Attributes:
        folder: where files lie that the source reads.
        sealed: folder of manifest, shards and weights.
        tokenizer: the file that the dataset was made with.
    """

    folder: Path
    sealed: Path
    spec: RunSpec
    manifest: Manifest
    tokenizer: Path | None

    def exported(self, to: str = "onnx") -> tuple[Path, dict[str, Any], ExportCheck]:
        """Export it; return the folder, `config.json` and the check."""
        folder = self.folder / f"export-{to}"
        folder.mkdir()
        place = DatasetPlace(manifest=self.sealed / "manifest.json", shards=self.sealed)
        _, config, check = checked_export(
            self.spec, [place], self.sealed / "model.safetensors", self.manifest,
            to=to, tokenizer=self.tokenizer, folder=folder,
        )  # fmt: skip
        assert (folder / FORMATS[to]).exists()
        write_json(folder / DESCRIPTION.get(to, "config.json"), config)
        return folder, config, check

    @property
    def model(self) -> Any:
        """The model in evaluation mode."""
        model = make_model(self.spec, self.manifest.schema)
        model.load_state_dict(load_file(self.sealed / "model.safetensors"))
        return model.eval()


def sealed(
    folder: Path, source: dict[str, Any], model_class: type, data: Data | None = None, **model_args: Any
) -> Model:  # fmt: skip
    """Build a dataset, half of whose rows are held out, and seal a model beside it."""
    dataset = load_dataset(folder, source, shards=2)
    made = make_source(dataset.source_class, dataset.source, num_shards=2, files=dataset.files)
    shards, shares = folder / "sealed", {"train": 0.4, "validation": 0.1, "test": 0.5}
    shards.mkdir()
    part = describe_part("d", build_shards(made, range(2), shares, shards), {})
    manifest = seal(
        [part], dataset=dataset.id, source=made, document=dataset.document, folder=shards
    )
    write_json(shards / "manifest.json", encode(manifest))
    spec = RunSpec(
        run="net",
        model_class=f"{model_class.__module__}:{model_class.__qualname__}",
        settings=RunSettings(
            evaluation=Evaluation(), data=data or Data(normalize="none"), model_args=model_args
        ),
    )
    torch.manual_seed(3)
    weights = make_model(spec, manifest.schema).state_dict()
    save_file({name: of.clone() for name, of in weights.items()}, shards / "model.safetensors")
    return Model(folder, shards, spec, manifest, dataset.tokenizer)


def lines_of_card(folder: Path) -> list[str]:
    """Return the program of an export's card."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    return card.split("```python\n")[1].split("\n```")[0].split("\n")


def predicted(folder: Path, lines: Sequence[str], argument: str) -> tuple[np.ndarray, str]:
    """Run a card's lines in an export's folder without torch and shardline; return `outputs`, and what they print."""
    assert len(lines) <= 10, lines
    program = "\n".join([WITHOUT, *lines, "np.save('outputs.npy', outputs)"])
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, argument], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return np.load(folder / "outputs.npy"), done.stdout.strip()
