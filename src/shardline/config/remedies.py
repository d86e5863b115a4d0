"""What to write instead of a value that has another form, and the key that was meant."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from shardline.core.suggest import did_you_mean, suggest

_PLAIN = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_COMMA = r"([-+]?[0-9]*),([0-9]+)([eE][-+]?[0-9]+)?"
_SEVERAL = rf"[\[(]?\s*({_PLAIN}(?:(?:\s*[,;]\s*|\s+){_PLAIN})+)\s*[\])]?"
_RANGE = r"range\(\s*(-?[0-9]{1,6}(?:\s*,\s*-?[0-9]{1,6}){0,2})\s*\)"
_MULTIPLE = r"([-+]?[0-9]+(?:\.[0-9]+)?)\s*([kKMG])"
_GROUPED = r"[-+]?[0-9]{1,3}(?:[ _'’][0-9]{3})+"
_PERCENT = rf"({_PLAIN})\s*%"
_FRACTION = r"([0-9]{1,9})\s*/\s*([1-9][0-9]{0,8})"
_POWER = r"([0-9]{1,4})\s*(?:\*\*|\^)\s*([0-9]{1,2})"
_WHOLE = r"[-+]?(?:0|[1-9][0-9]*)"
_FACTORS = {"k": 1000, "K": 1000, "M": 1_000_000, "G": 1_000_000_000}
_TRUTHS = {"yes": True, "on": True, "1": True, "no": False, "off": False, "0": False}
_SHOWN = 8  # numbers of a list

# What other programs call a setting of ours.
_ALIASES = {
    "batch": "global_batch", "batch_size": "global_batch", "train_batch_size": "global_batch",
    "eval_batch_size": "evaluation.batch", "val_batch_size": "evaluation.batch",
    "learning_rate": "optim.lr", "rate": "optim.lr", "wd": "optim.weight_decay", "optimizer": "optim.name",
    "optimiser": "optim.name", "scheduler": "schedule.name", "lr_scheduler": "schedule.name",
    "warmup": "schedule.warmup_steps", "num_warmup_steps": "schedule.warmup_steps",
    "epochs": "trainer.max_epochs", "num_epochs": "trainer.max_epochs", "num_train_epochs": "trainer.max_epochs",
    "max_steps": "trainer.max_epochs", "accumulate_grad_batches": "trainer.accumulate",
    "gradient_accumulation_steps": "trainer.accumulate", "gradient_clip_val": "trainer.gradient_clip",
    "max_grad_norm": "trainer.gradient_clip", "gpus": "devices", "num_gpus": "devices", "ngpus": "devices",
    "num_devices": "devices", "num_nodes": "nodes", "num_machines": "nodes", "random_seed": "seed",
    "dtype": "precision", "metric": "early_stopping.monitor",
}  # fmt: skip


def suggest_setting(
    name: str, known: Iterable[str], below: Iterable[str] = (), elsewhere: Iterable[str] = ()
) -> str:
    """Return what `suggest` does, and know what other programs call a setting.

    Args:
        elsewhere: settings of other tables, which are named where a name is exactly theirs.
    """
    names = {*known, *below}
    plain = name.lower().replace("-", "_")
    last = plain.rpartition(".")[2]
    alias = _ALIASES.get(last, "")
    here, there = (
        {key.rpartition(".")[2]: key for key in sorted(keys)} for keys in (names, elsewhere)
    )
    around = plain.rpartition(".")[0]  # a table that is one setting, such as data.pack
    for meant in (around, plain, alias, f"defaults.{alias}", here.get(last), there.get(last)):
        if meant and (meant in names or meant in there.values()):
            return did_you_mean(meant, [meant], otherwise="")
    return suggest(name, known, below)


def number_meant(value: Any, *, whole: bool, grid: str) -> str:
    """Return what to write for a number that is written in another way; empty where that is unknown.

    Args:
        whole: whether the number has to be whole.
        grid: where several values make a run of each, as the end of the sentence; empty if nowhere.
    """
    if isinstance(value, list):
        several = [one for one in value if _is_number(one)]
        return _list(several, grid) if several == value else ""
    if isinstance(value, float):
        lower = int(value // 1)
        return f"write {lower} or {lower + 1}"
    if not isinstance(value, str):
        return ""
    text = value.strip()
    for number in _numbers_meant(text):
        if not whole or float(number).is_integer():
            return f"write {number}"
    if found := re.fullmatch(_RANGE, text):
        try:
            return _list(list(range(*map(int, found[1].split(",")))), grid)
        except ValueError:  # a step of 0
            return ""
    if found := re.fullmatch(_SEVERAL, text):
        several = re.findall(_PLAIN, found[1])
        if not whole or all(re.fullmatch(_WHOLE, one) for one in several):
            return _list([*map(_plain, several)], grid)
    return ""


def _numbers_meant(text: str) -> Iterator[str]:
    if re.fullmatch(_GROUPED, text):
        yield re.sub(r"[^0-9+-]", "", text)
    if found := re.fullmatch(_COMMA, text):
        is_thousands = len(found[2]) == 3 and found[1].lstrip("+-0")
        point = "" if is_thousands else "."
        yield f"{found[1] or '0'}{point}{found[2]}{found[3] or ''}"
    if found := re.fullmatch(_MULTIPLE, text):
        yield f"{float(found[1]) * _FACTORS[found[2]]:.0f}"
    if found := re.fullmatch(_PERCENT, text):
        yield f"{float(found[1]) / 100:g}"
    if found := re.fullmatch(_FRACTION, text):
        yield f"{int(found[1]) / int(found[2]):.6g}"
    if found := re.fullmatch(_POWER, text):
        yield str(int(found[1]) ** int(found[2]))


def _plain(text: str) -> Any:
    return float(text) if set(text) & set(".eE") else int(text)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list(numbers: list[Any], grid: str) -> str:
    if not numbers:
        return ""
    if not grid:
        return f"write one, such as {json.dumps(numbers[0])}"
    shown = [json.dumps(number) for number in numbers]
    if len(shown) > _SHOWN:
        shown = [*shown[:3], "...", shown[-1]]
    return f"write [{', '.join(shown)}] {grid}"


def truth_meant(value: Any) -> str:
    """Return what to write for true or false; empty where that is unknown."""
    meant = _TRUTHS.get(str(value).lower())
    return "" if meant is None else f"write {json.dumps(meant)}"


def nearest_choice(value: Any, choices: tuple[str, ...]) -> str:
    """Return the choice that is nearest to a value; empty where none is near."""
    if isinstance(value, bool):
        word = "on" if value else "off"  # which YAML takes for a truth value without quotes
        return f'write "{word}" in quotes' if word in choices else ""
    return did_you_mean(str(value).lower(), choices, otherwise="")
