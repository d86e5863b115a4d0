"""Messages for errors of user code, Lightning, torch and gloo, with remedies that exist in Shardline.

Lightning's own advice often names arguments of the Trainer, which users of Shardline do not create.
A known error gets a sentence of ours. In other errors of Lightning, an argument that is a setting
gets the name of the setting, and sentences about other arguments are removed. The log of the rank
contains the original error with its traceback.
"""

import importlib
import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.extras import extra_package, missing_package
from shardline.core.suggest import did_you_mean
from shardline.core.trainer_arguments import REASONS, SETTINGS
from shardline.core.visible import from_here

_MAX_FRAMES = 4
# Errors for lack of memory of a machine or a GPU, as Python, torch and its libraries word them, and as below.
LACKS_MEMORY = re.compile(
    r"can(?:'|no)t allocate memory|unable to mmap|out of memory|too little memory|ALLOC_FAILED|\bMemoryError\b",
    re.IGNORECASE,
)

# A pattern of the original error, and the sentence that replaces it.
_KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"Automatic gradient clipping is not supported for manual optimization",
        "trainer.gradient_clip needs automatic optimization, and the model sets automatic_optimization=False; "
        "set trainer.gradient_clip to 0, and call self.clip_gradients in training_step",
    ),
    (
        r"Automatic gradient accumulation is not supported for manual optimization",
        "trainer.accumulate needs automatic optimization, and the model sets automatic_optimization=False; "
        "set trainer.accumulate to 1, and accumulate gradients in training_step",
    ),
    (
        r"No `training_step\(\)` method defined",
        "the model has no training_step, expected a method that returns the loss of a batch; write one",
    ),
    (
        r"Unknown configuration for model optimizers",
        "configure_optimizers returned no optimizer, expected an optimizer, a list of optimizers, or a dictionary "
        '{"optimizer": ..., "lr_scheduler": ...}; return one of these',
    ),
    (
        r"element 0 of tensors does not require grad",
        "the loss depends on no trainable parameter, expected at least one; look for .detach(), .item(), "
        "torch.no_grad() and requires_grad=False between the parameters and the loss",
    ),
    (
        r"Expected to have finished reduction in the prior iteration",
        "some parameters got no gradient in a training step, but strategy=ddp needs one for each on several ranks; set "
        "ddp.find_unused_parameters to true, or call requires_grad_(False) on parameters that you do not train",
    ),
    (
        r"Expected to mark a variable ready only once",
        "a parameter got two gradients in a training step, but strategy=ddp allows one on several ranks; use "
        "checkpoint(..., use_reentrant=False) to recompute activations, and one backward pass per forward pass",
    ),
    (
        r"scalar types: Long, Int; but got torch.*Float",
        "integers are needed, and the model got floating point numbers; if these are the features of the data, such as "
        "tokens, set data.normalize to raw, which leaves integers in their type",
    ),
    (
        r"CUDA out of memory",
        "a GPU has too little memory for a training step; use a smaller global_batch or a larger trainer.accumulate, "
        "precision=bf16-mixed, or strategy=fsdp on several GPUs",
    ),
    (
        r"(?s)Cannot use `?\w+`? callback with (a )?`?Trainer.*logger",
        "a callback of the model needs a logger, and this process has none; add the callback in configure_callbacks, "
        "which only a training calls",
    ),
    (
        r"gloo.*(Connection (reset|closed) by peer|Read error|Broken pipe)|Connection closed by peer \[",
        "another rank ended first and closed its connection; the log of that rank names the cause",
    ),
    (
        r"GradientAccumulationScheduler",
        "GradientAccumulationScheduler changes the number of batches per step, expected trainer.accumulate batches in "
        "each step; remove the callback, and set trainer.accumulate",
    ),
)  # fmt: skip
_PATTERNS = [(re.compile(pattern), sentence) for pattern, sentence in _KNOWN]

# A name with an underscore is always an argument; a plain word such as `logger` only before `=`.
_ARGUMENT = re.compile(
    r"\b(?:{}|(?:{})\s*=|ddp_\w+|find_unused_parameters)|limit_|Fabric\(|accelerator\(\)|DDPStrategy".format(
        "|".join(name for name in REASONS if "_" in name),
        "|".join(name for name in REASONS if "_" not in name),
    ),
    re.IGNORECASE,
)
_CALL = re.compile(r"\bTrainer\((?:\.\.\.,\s*)?([^()]*(?:\([^()]*\)[^()]*)*)\)")
_RENAMED = re.compile(rf"(?<![\w.])({'|'.join(name for name in SETTINGS if '_' in name)})\b")
_SENTENCE_START = re.compile(r"(?<=[.!?])(?=\s+[A-Z`])")
_OF_LIGHTNING = {"pytorch_lightning", "lightning_fabric", "lightning"}


def import_class(path: str, what: str) -> Any:
    """Import a class or function by its path `module:Class`, `module:Class.method` or `module.Class`.

    Raises:
        ConfigError: the import fails; the message contains the traceback's frames of user code.
    """
    module, colon, name = path.partition(":")
    try:
        found, names = (
            _import_longest(path) if not colon else (importlib.import_module(module), name)
        )
        for one in names.split("."):
            found = getattr(found, one)
        return found
    except Exception as error:
        if path.startswith("shardline.") and (package := extra_package(error)):
            shown = module.rpartition(".")[2]  # as in a config: csv
            raise ConfigError(missing_package(package, f"{what}={shown}")) from error
        raise ConfigError(f"{what}={path} does not import: {short_traceback(error)}") from error


def _import_longest(path: str) -> tuple[Any, str]:
    """Import the longest module in a dotted path, and return the module and the rest of the path."""
    module, _, name = path.rpartition(".")
    while True:
        try:
            return importlib.import_module(module), name
        except ModuleNotFoundError as error:
            is_within = error.name and f"{module}.".startswith(f"{error.name}.")
            if not is_within or "." not in module:
                raise
        module, _, above = module.rpartition(".")
        name = f"{above}.{name}"


def check_arguments(
    cls: Callable[..., Any], arguments: Mapping[str, Any], what: str, remedy: str, *,
    kind: type[ShardlineError] = ConfigError, written: Mapping[str, Any] | None = None,
    passed: Sequence[str] = (),
) -> None:  # fmt: skip
    """Reject arguments that a class named by the user does not accept.

    Args:
        what: start of the message: the key and the class.
        remedy: end of the message.
        kind: class of the error.
        written: arguments to print, if Shardline added others; None prints all.
        passed: names of the arguments that a model may have from Shardline; empty for other classes.

    Raises:
        ConfigError: or `kind`.
    """
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        if passed and (sentence := _wrong_arguments(cls, arguments, passed, remedy)):
            raise kind(f"{what} {sentence}") from None
        given = arguments if written is None else written
        raise kind(f"{what} does not take {given} ({error}); {remedy}") from None


def _wrong_arguments(
    cls: Callable[..., Any], arguments: Mapping[str, Any], passed: Sequence[str], remedy: str
) -> str:
    """Return the sentence on the arguments that a model lacks or does not take; empty for other errors."""
    found = inspect.signature(cls).parameters
    names = {
        name: one
        for name, one in found.items()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }
    is_open = any(one.kind is one.VAR_KEYWORD for one in found.values())
    if unknown := [name for name in arguments if name not in names and not is_open]:
        takes = f"takes {', '.join(names)}, but not" if names else "does not take"
        free = [name for name in names if name not in arguments]
        hint = did_you_mean(unknown[0], free, otherwise=remedy)
        return f"{takes} {', '.join(unknown)}; {hint}"
    required = [name for name, one in names.items() if one.default is one.empty]
    if missing := [name for name in required if name not in arguments]:
        columns = ", ".join(f"model_args.{name}" for name in missing)
        return (
            f"needs {', '.join(missing)}; Shardline passes {' and '.join(passed)} to arguments of these names; "
            f"rename the argument, or add a column {columns}"
        )
    return ""


def short_traceback(error: BaseException) -> str:
    """Return the text of an error and the traceback's frames of user code, deepest last.

    Frames of installed packages, Python's own modules and Shardline are left out.
    """
    package = Path(__file__).parents[1]
    ours = {package, package.with_name("shardline_io"), Path(sysconfig.get_path("stdlib"))}
    frames = [
        f"{from_here(frame.filename)}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        # relative to the project's folder, since the folder itself may have any name
        if not {"site-packages", "dist-packages"} & set(Path(from_here(frame.filename)).parts)
        and ours.isdisjoint(Path(frame.filename).parents)
        and not frame.filename.startswith("<")
    ]
    if isinstance(error, SyntaxError):
        frames.append(
            f"{from_here(error.filename or '')}, line {error.lineno}: {(error.text or '').strip()}"
        )
    return "\n  ".join([describe(error), *frames[-_MAX_FRAMES:]])


def describe(error: BaseException) -> str:
    """Return the message for an error: a sentence of ours if the error is known, else its type and text."""
    if package := extra_package(error):
        return f"{type(error).__name__}: {missing_package(package)}"
    text = str(error)
    for pattern, sentence in _PATTERNS:
        if pattern.search(text):
            return sentence
    frames = traceback.extract_tb(error.__traceback__)
    is_lightning = frames and _OF_LIGHTNING & set(Path(frames[-1].filename).parts)
    return f"{type(error).__name__}: {without_arguments(text) if is_lightning else text}"


def without_arguments(text: str) -> str:
    """Return a message of Lightning with settings in place of arguments of the Trainer."""
    sentences = _SENTENCE_START.split(text.strip())
    kept = [one for one in sentences if not _ARGUMENT.search(one)]
    plain = _CALL.sub(r"\1", "".join(kept).strip() or "Lightning rejects this training")
    renamed = _RENAMED.sub(lambda found: SETTINGS[found[1]], plain)
    if len(kept) == len(sentences):
        return renamed
    return f"{renamed} (the log has Lightning's own advice, which is about the Trainer that Shardline creates)"
