"""How large the suite's work is: what a CPU does in seconds, and what keeps one large GPU busy."""

from dataclasses import dataclass
from typing import Any

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Work:
    """A model whose steps are timed, and its data.

    Attributes:
        model: class in `benchmarks.gpu.models`.
        source: class in `benchmarks.gpu.sources`.
        options: of the source, its `rows` of a shard among them.
        shards: of the dataset.
        batch: samples of a step.
        samples: what counts in a sample: 1 image, or so many tokens.
        unit: what is counted.
        normalize: setting `data.normalize`.
        model_args: of the model; the bare loop's as well.
        flops: floating-point operations of a step of forward and backward; 0: not counted.
        steps: counted in a turn.
        save_steps: the same in a turn that may begin with a save, longer than the write takes.
    """

    model: str
    source: str
    options: dict[str, Any]
    shards: int
    batch: int
    samples: int
    unit: str
    normalize: str
    model_args: dict[str, Any]
    flops: float = 0.0
    steps: int
    save_steps: int


def gpt_flops(*, batch: int, length: int, layers: int, width: int, vocab: int) -> float:
    """Return the operations of a step: 6 a weight and token, and attention's over all places.

    As Chowdhery et al. 2022, "PaLM", appendix B, count them; recomputation does not count.

    Args:
        batch: samples.
        length: tokens of a sample that are predicted.
    """
    weights = layers * 12 * width * width + vocab * width
    return batch * length * (6.0 * weights + 12.0 * layers * width * length)


def _gpt(
    *, batch: int, length: int, layers: int, heads: int, vocab: int, rows: int, steps: int, save_steps: int
) -> Work:  # fmt: skip
    width = 128 * heads if length > 256 else 16 * heads
    sizes = {"layers": layers, "width": width, "vocab": vocab}
    return Work(
        model="TimedGPT", source="Tokens", options={"rows": rows, "length": length + 1, "vocab": vocab}, shards=4,
        batch=batch, samples=length, unit="tokens", normalize="none",
        model_args={**sizes, "heads": heads, "dropout": 0.0},
        flops=gpt_flops(batch=batch, length=length, **sizes), steps=steps, save_steps=save_steps,
    )  # fmt: skip


def _resnet(*, depth: int, size: int, batch: int, rows: int, steps: int, save_steps: int) -> Work:
    return Work(
        model="TimedResNet", source="Images", options={"rows": rows, "size": size}, shards=4, batch=batch,
        samples=1, unit="images", normalize="global", model_args={"depth": depth, "stem": "large"}, steps=steps,
        save_steps=save_steps,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a run of the suite.

    Attributes:
        resnet: images, decoded.
        gpt: tokens.
        rounds: turns of each program.
        save_rounds: pairs of a turn with a save and one without.
        copies: batches in the bare loop's memory.
        threads: CPU threads of an operation in each process.
        patience: what the budgets of checks are multiplied by; on busy CPUs a start alone may take half a minute.
    """

    resnet: Work
    gpt: Work
    rounds: int
    save_rounds: int
    copies: int
    threads: int
    patience: float


CPU = Sizes(
    resnet=_resnet(depth=18, size=32, batch=8, rows=120, steps=3, save_steps=3),
    gpt=_gpt(batch=4, length=64, layers=2, heads=2, vocab=256, rows=40, steps=3, save_steps=3),
    rounds=2, save_rounds=1, copies=2, threads=1, patience=4.0,
)  # fmt: skip
# 6,400 images are 960 MB
GPU = Sizes(
    resnet=_resnet(depth=50, size=224, batch=256, rows=1600, steps=14, save_steps=14),
    gpt=_gpt(batch=16, length=1024, layers=8, heads=16, vocab=32768, rows=1000, steps=20, save_steps=40),
    rounds=5, save_rounds=2, copies=4, threads=4, patience=1.0,
)  # fmt: skip

# Peak of dense bf16 products by the beginning of a device's name, in operations a second, from the makers' data
# sheets.
PEAKS = {
    "NVIDIA H200": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H100 NVL": 835e12, "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12, "NVIDIA L40S": 362e12, "NVIDIA L4": 121e12, "NVIDIA A10": 125e12, "Tesla T4": 65e12,
}  # fmt: skip


def peak_of(device: str) -> float | None:
    """Return the peak of a device by its name, None where it is not known."""
    return next((peak for name, peak in PEAKS.items() if device.startswith(name)), None)
