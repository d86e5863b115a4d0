"""Lightning's `ModelCheckpoint` as a callback of the user: its folder, and a state that can be resumed anywhere.

Its files are the user's. Shardline neither resumes from them nor seals them.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning.callbacks import ModelCheckpoint

from shardline.core.lightning_compat import State, pending_saves, set_pending_saves

_FOLDER = "model_checkpoints"
_PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")


def use_work_folder(callback: ModelCheckpoint, work: Path, *, is_new: bool) -> None:
    """Let a callback write below the run's work folder, and resume with its files and its whole state.

    Args:
        callback: Callback before a training. A folder in the project keeps its relative path.
        work: Work folder of the run.
        is_new: Whether the training starts from the beginning, so that older files are removed.
    """
    asked = callback.dirpath
    folder = work / _FOLDER / (_below(str(asked)) if asked else "")
    callback.dirpath = str(folder)
    if asked:
        _say(f"{type(callback).__name__} writes to {folder}, not to {asked}")
    if is_new:
        _remove(folder)
    save, load = callback.state_dict, callback.load_state_dict

    def state_dict() -> State:
        state = with_paths(save(), lambda path: os.path.relpath(path, folder))
        there = sorted(path.name for path in folder.glob(f"*{callback.FILE_EXTENSION}"))
        return {**state, "files": there, "pending": pending_saves(callback)}

    def load_state_dict(state_dict: State) -> None:
        state = with_paths(state_dict, lambda path: str(folder / path))
        load({**state, "dirpath": callback.dirpath})
        if "files" not in state:  # of an earlier Shardline
            return
        callback.current_score = state["current_score"]
        set_pending_saves(callback, state["pending"])
        for path in folder.glob(f"*{callback.FILE_EXTENSION}"):
            if path.name not in state["files"]:  # saved after this state
                _remove(path)

    callback.state_dict = state_dict  # type: ignore[method-assign]
    callback.load_state_dict = load_state_dict  # type: ignore[method-assign]


def with_paths(state: Mapping[str, object], change: Callable[[str], str]) -> State:
    """Return the state of a `ModelCheckpoint` with other paths and without its folder."""
    changed: State = {key: change(str(state[key])) if state[key] else "" for key in _PATHS}
    listed: State = state["best_k_models"]  # type: ignore[assignment]
    best = {change(path): score for path, score in listed.items()}
    return {**state, **changed, "best_k_models": best, "dirpath": ""}


def _below(asked: str) -> str:
    inside = os.path.relpath(asked)
    return Path(asked).name if "://" in asked or inside.startswith("..") else inside


@rank_zero_only
def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@rank_zero_only
def _say(text: str) -> None:
    print(text, flush=True)
