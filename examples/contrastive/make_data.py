"""Draw unlabelled and some labelled textures: python make_data.py FOLDER."""

import sys
from pathlib import Path

import numpy as np

SIDE, KINDS = 32, 6
ROWS = {"unlabelled": 2000, "labelled": 300}


def draw(kind: int, generator: np.random.Generator) -> np.ndarray:
    """Return a grating [SIDE, SIDE] uint8 of one of six kinds: three widths, two waveforms."""
    y, x = np.mgrid[:SIDE, :SIDE]
    angle, phase = generator.uniform(0, 2 * np.pi, 2)
    wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * (0.4, 0.8, 1.6)[kind % 3] + phase)
    wave = np.sign(wave) if kind >= 3 else wave
    light = generator.uniform(90, 165) + wave * generator.uniform(30, 60)
    return (light + generator.normal(0, 15, wave.shape)).clip(0, 255).astype(np.uint8)


def main(folder: Path) -> None:
    """Write images [N, SIDE, SIDE] for the training, and other images with kinds [N] for the probe."""
    folder.mkdir(exist_ok=True)
    for seed, (name, number) in enumerate(ROWS.items()):
        generator = np.random.default_rng(seed)
        kinds = generator.integers(0, KINDS, number)
        np.save(folder / f"{name}.npy", np.stack([draw(int(kind), generator) for kind in kinds]))
        if name == "labelled":
            np.save(folder / "kinds.npy", kinds)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
