"""A small research code base, and edits that such code sees every day."""
# ruff: noqa: E501 - a table of edits

from collections.abc import Callable
from dataclasses import dataclass

Files = dict[str, str]  # text by dotted name of the module

CODE: Files = {
    "models": '''"""Models of the paper."""
import math

import torch
import torch.nn.functional as F
from pytorch_lightning import LightningModule
from torch import nn

from losses import focal_loss
from utils import AUGMENTATIONS, init_weights, plot_curves

WIDTHS = (32, 64)
DPI = 120


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return x + F.relu(self.layer(x))


class Net(LightningModule):
    def __init__(self, feature_shape, num_classes, dropout=0.1):
        super().__init__()
        size = math.prod(feature_shape)
        self.stem = nn.Linear(size, WIDTHS[0])
        self.block = Residual(WIDTHS[0])
        self.head = nn.Linear(WIDTHS[0], num_classes)
        self.apply(init_weights)

    def forward(self, features):
        hidden = self.stem(features.flatten(1))
        hidden = self.block(hidden)
        return self.head(hidden)

    def training_step(self, batch, batch_idx):
        features, labels = batch
        for augment in AUGMENTATIONS.values():
            features = augment(features)
        return focal_loss(self(features), labels)


class Baseline(LightningModule):
    def forward(self, features):
        return features.mean()


def show(history):
    # a figure for the paper
    return plot_curves(history, dpi=DPI)


if __name__ == "__main__":
    print(Net((8, 8), 10))
''',
    "losses": """import torch.nn.functional as F

GAMMA = 2.0


def focal_loss(logits, labels):
    loss = F.cross_entropy(logits, labels, reduction="none")
    return ((1 - (-loss).exp()) ** GAMMA * loss).mean()


def dice_loss(logits, labels):
    return 1 - (logits * labels).sum()
""",
    "utils": """import logging

import matplotlib.pyplot as plt
from torch import nn

log = logging.getLogger(__name__)
AUGMENTATIONS = {}


def augmentation(function):
    AUGMENTATIONS[function.__name__] = function
    return function


@augmentation
def noise(features):
    return features + 0.1


def init_weights(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)


def plot_curves(history, dpi):
    log.info("plotting")
    figure = plt.figure(dpi=dpi)
    return figure
""",
}


@dataclass(frozen=True)
class Edit:
    """An edit of the code.

    Attributes:
        name: what is edited.
        apply: gives the files afterwards.
        retrains: whether it makes runs of `Net` stale.
    """

    name: str
    apply: Callable[[Files], Files]
    retrains: bool


def _replace(module: str, old: str, new: str) -> Callable[[Files], Files]:
    def apply(files: Files) -> Files:
        assert old in files[module]
        return files | {module: files[module].replace(old, new)}

    return apply


def _move_block(files: Files) -> Files:
    start, end = files["models"].index("class Residual"), files["models"].index("class Net(")
    block = files["models"][start:end]
    rest = (
        files["models"]
        .replace(block, "")
        .replace("from losses", "from layers import Residual\nfrom losses")
    )
    head = "import torch.nn.functional as F\nfrom torch import nn\n\n\n"
    return files | {"models": rest, "layers": head + block}


def _rename_module(files: Files) -> Files:
    after = {name: text for name, text in files.items() if name != "losses"}
    after["objectives"] = files["losses"]
    return after | {"models": files["models"].replace("from losses", "from objectives")}


def _reorder(files: Files) -> Files:
    text = files["utils"]
    start, end = text.index("def init_weights"), text.index("def plot_curves")
    return files | {"utils": text[:start] + text[end:] + "\n\n" + text[start:end]}


def _reorder_methods(files: Files) -> Files:
    text = files["models"]
    start, end = text.index("    def training_step"), text.index("class Baseline")
    step = text[start:end].rstrip() + "\n\n"
    before = text.index("    def forward(self, features):\n        hidden")
    return files | {
        "models": text[:before] + step + text[before:start].rstrip() + "\n\n\n" + text[end:]
    }


def _sort_imports(files: Files) -> Files:
    lines = "from losses import focal_loss\nfrom utils import AUGMENTATIONS, init_weights, plot_curves\n"
    text = files["models"].replace(lines, "").replace("import math\n", lines + "import math\n")
    return files | {"models": text.replace("import torch\n", "")}


EDITS = (
    Edit("change a comment", _replace("models", "# a figure", "# figure 3"), False),
    Edit("write a docstring", _replace("losses", "labels):\n    loss", "labels):\n    '''Lin et al. 2017.'''\n    loss"), False),
    Edit("run a formatter", _replace("models", "self.head = nn.Linear(WIDTHS[0], num_classes)", "self.head = nn.Linear(\n            WIDTHS[0],\n            num_classes,\n        )"), False),
    Edit("rename a local variable", _replace("models", "hidden", "embedding"), False),
    Edit("annotate a method", _replace("models", "def forward(self, features):\n        hidden", "def forward(self, features: torch.Tensor) -> torch.Tensor:\n        hidden"), False),
    Edit("add a model beside this one", _replace("models", "def show", "class Wide(LightningModule):\n    width = 512\n\n\ndef show"), False),
    Edit("edit another model of the file", _replace("models", "features.mean()", "features.sum()"), False),
    Edit("edit a function for figures", _replace("utils", "plt.figure(dpi=dpi)", "plt.figure(dpi=dpi, figsize=(4, 3))"), False),
    Edit("change a constant for figures", _replace("models", "DPI = 120", "DPI = 300"), False),
    Edit("add a function that nothing uses yet", _replace("losses", "def dice_loss", "def hinge_loss(logits, labels):\n    return logits\n\n\ndef dice_loss"), False),
    Edit("put functions into another order", _reorder, False),
    Edit("move a layer into a module of its own", _move_block, False),
    Edit("rename a module", _rename_module, False),
    Edit("sort imports, drop an unused one", _sort_imports, False),
    Edit("import another way", _replace("losses", "import torch.nn.functional as F", "from torch.nn import functional as F"), False),
    Edit("edit what runs under `__main__`", _replace("models", "print(Net((8, 8), 10))", "print(Net((28, 28), 10))"), False),
    Edit("change the loss", _replace("losses", "GAMMA = 2.0", "GAMMA = 1.5"), True),
    Edit("change a default of the model", _replace("models", "dropout=0.1", "dropout=0.2"), True),
    Edit("register another augmentation", _replace("utils", "def init_weights", "@augmentation\ndef flip(features):\n    return -features\n\n\ndef init_weights"), True),
    Edit("split a method of the model in two", _replace("models", "        return self.head(hidden)\n", "        return self.classify(hidden)\n\n    def classify(self, hidden):\n        return self.head(hidden)\n"), True),
    Edit("put methods into another order", _reorder_methods, True),
)  # fmt: skip
