"""One module for each kind of competitor.

A module has `batches(task)`, an endless stream of shuffled batches, epoch after epoch; and, where it
has a format of its own, `write(work, plain, folder)`. It imports what only its own environment has,
so only the process that runs it imports it. A photo becomes uint8 [224, 224, 3].
"""

from dataclasses import replace

from benchmarks.reader.competitors import Competitor
from benchmarks.samples.task import BOXES, PHOTOS, TOKENS

OURS, LIMIT = "Shardline", "limit"
LOOP, LOOP_ALONE = "nanoGPT's loop", "nanoGPT's loop, inputs alone"
BY_HAND = ", by hand"  # no way that the peer's documentation shows

_PEERS = {
    "LitData": "litdata",
    "WebDataset": "webdataset",
    "HF Datasets": "huggingface",
    "MosaicML Streaming": "mosaicml",
}
_WORKERS = (0, 2)


def _peer(name: str, **options: object) -> Competitor:
    module = _PEERS[name]
    variants = tuple({"workers": workers, **options} for workers in _WORKERS)
    by_hand = {"decode": "simplejpeg", "format": "arrow"}.items() & options.items()
    return Competitor(
        name=name + BY_HAND * bool(by_hand),
        module=module,
        format=module,
        environment=module,
        variants=variants,
    )


def _here(name: str, module: str, **options: object) -> Competitor:
    return Competitor(
        name=name, module=module, format="shardline", variants=({"workers": 0, **options},)
    )


def _files(decode: str) -> Competitor:
    by_hand = BY_HAND * (decode == "simplejpeg")
    whole = _here(f"DataLoader over files{by_hand}", "files")
    return replace(whole, variants=tuple({"workers": n, "decode": decode} for n in _WORKERS))


_OURS = replace(_here(OURS, "ours"), variants=tuple({"workers": workers} for workers in _WORKERS))
_LIMIT = _here(LIMIT, "limit")
_IMAGE_PEERS = ("LitData", "WebDataset", "HF Datasets")

COMPETITORS: dict[str, tuple[Competitor, ...]] = {
    PHOTOS: (
        _LIMIT,
        _OURS,
        *(_peer(name, decode="pillow") for name in _IMAGE_PEERS),
        _files("pillow"),
        *(_peer(name, decode="simplejpeg") for name in _IMAGE_PEERS),
        _files("simplejpeg"),
    ),
    TOKENS: (
        _LIMIT,
        replace(_OURS, variants=({"workers": 0},)),
        _here(LOOP, "nanogpt", loop="as written"),
        _here(LOOP_ALONE, "nanogpt", loop="alone"),
        _peer("LitData"),
        _peer("MosaicML Streaming"),
        _peer("HF Datasets", format="torch"),
        replace(
            _peer("HF Datasets", format="arrow"), variants=({"workers": 0, "format": "arrow"},)
        ),
    ),
    BOXES: (
        _LIMIT,
        replace(_OURS, variants=({"workers": 0},)),
        _peer("WebDataset"),
        _peer("HF Datasets", format="numpy"),
        replace(
            _peer("HF Datasets", format="arrow"), variants=({"workers": 0, "format": "arrow"},)
        ),
    ),
}
