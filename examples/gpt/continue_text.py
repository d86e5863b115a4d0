"""Continue texts with the trained model: `make continue`, or python continue_text.py RUN TEXT..."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from shardline.models import GPT


def main(folder: Path, *texts: str) -> None:
    """Print each text with 120 more bytes, sampled by their probability."""
    settings = json.loads((folder / "run.json").read_text())["settings"]
    given = {"vocab": 256, **settings["model_args"]}  # with a tokenizer, model_args sets vocab
    model = GPT(context=settings["data"]["pack"]["length"], **given)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    generator = torch.Generator().manual_seed(1)
    for text in texts:
        tokens = torch.tensor([list(text.encode())])
        continued = model.generate(tokens, 120, generator)[0].tolist()
        print(repr(bytes(continued).decode(errors="replace")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
