"""Sort errors of a model check: mistakes of the model, and things this machine cannot check."""

import re
from collections.abc import Iterator

from shardline.config.resolved import RunSpec
from shardline.core.error_texts import LACKS_MEMORY, short_traceback
from shardline.core.errors import ConfigError, ShardlineError
from shardline.training.rank_task import ModelResult

# Texts of errors that the machine causes, not the model.
_OF_GPU = re.compile(
    r"cuda|nvidia|nccl|cudnn|triton|\bgpus?\b|\brocm\b|\bhip\b|not implemented for '(cpu|half|bfloat16)'|"
    r"device-side assert",
    re.IGNORECASE,
)
_OF_RANKS = re.compile(
    r"process group has not been initialized|init_process_group|device_?mesh|fully_shard|fsdp|dtensor",
    re.IGNORECASE,
)
_OF_PACKAGES = re.compile(r"\b(ModuleNotFoundError|ImportError)\b")
_OF_NETWORK = re.compile(
    r"couldn't connect|could ?n[o']t (connect|resolve)|name resolution|connection (refused|reset|error|aborted)|"
    r"max retries|network is unreachable|timed out|offline mode",
    re.IGNORECASE,
)
# a batch of named columns is a dict: its keys are texts, and it has no place 0
_OF_UNPACKING = re.compile(
    r"'str' object (has no attribute|cannot be interpreted|is not callable)|must be Tensor, not str|KeyError: [01]\b|"
    r"(too many|not enough) values to unpack"
)
_OF_STATE = re.compile(r"training state could not be resumed.*?GLOBAL (\S+)")


def sort_error(
    error: Exception, spec: RunSpec, doing: str, found: ModelResult, *, is_elsewhere: bool = False
) -> None:
    """Add an error to the model's problems, or to the checks that this machine cannot do.

    Args:
        doing: The failed step as a verb phrase, such as "is constructed".
        found: Result of the check, which gets one more sentence.
        is_elsewhere: Whether jobs run in an environment with other packages.
    """
    text = " ".join(f"{type(one).__name__}: {one}" for one in _chain(error))
    model = f"model={spec.model or spec.model_class}"
    is_foreign = not isinstance(error, ConfigError)  # our own errors may name strategy=fsdp
    if why := _not_of_model(text, spec, is_elsewhere=is_elsewhere, is_foreign=is_foreign):
        line = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        found.not_checked.append(f"{model} was not checked when it {doing}: it {why} ({line})")
        return
    if unsafe := _OF_STATE.search(text):
        found.problems.append(
            f"{model}: the training state contains a {unsafe[1]}, expected only tensors, numbers and strings, in lists "
            "and dicts; change on_save_checkpoint, the call of save_hyperparameters or the optimiser's state"
        )
        return
    if isinstance(error, ShardlineError):
        sentence = str(error).removeprefix(f'run "{spec.title}": ')
        found.problems.append(sentence)
        return
    remedy = "correct the model or its arguments"
    if _OF_UNPACKING.search(text) and spec.settings.data.collate in (None, "pad"):
        remedy += ", or, if the model unpacks its batch, set data.collate to tuple"
    found.problems.append(f"{model} fails when it {doing}; {remedy}: {short_traceback(error)}")


def _not_of_model(text: str, spec: RunSpec, *, is_elsewhere: bool, is_foreign: bool) -> str:
    if LACKS_MEMORY.search(text):
        return "needs more memory than is free on this machine"
    if is_elsewhere and _OF_PACKAGES.search(text):
        return "needs packages that only the environment of its jobs has"
    if spec.settings.accelerator != "cpu" and _OF_GPU.search(text):
        return "needs a GPU, and this check runs on the CPU"
    if spec.settings.nodes * spec.settings.devices > 1 and is_foreign and _OF_RANKS.search(text):
        return "needs several ranks, and this check has one"
    return "needs the network" if _OF_NETWORK.search(text) else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
