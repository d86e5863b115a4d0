"""Checks of the settings of Lightning's Trainer that depend on each other."""

from collections.abc import Iterator

from shardline.config.settings.run_settings import RunSettings
from shardline.config.validate import Problems

_LIMITS = ("val_check_interval", "limit_train_batches", "limit_val_batches", "overfit_batches")


def check_trainer(settings: RunSettings, where: str, *, num_datasets: int = 1) -> None:
    """Reject settings of the Trainer that cannot be combined.

    Args:
        where: File and row, the start of messages.
        num_datasets: Number of datasets of the run; several are a mix.

    Raises:
        ConfigError: Settings cannot be combined; one line for each.
    """
    problems = Problems()
    found = [*_of_length(settings), *_of_limits(settings, num_datasets), *_of_devices(settings)]
    problems.found = [f"{where}: {text}" for text in found]
    problems.refuse()


def _of_length(settings: RunSettings) -> Iterator[str]:
    trainer = settings.trainer
    epochs, steps, every = trainer.max_epochs, trainer.max_steps, trainer.validate_every_epochs
    for name, value in (("max_epochs", epochs), ("max_steps", steps)):
        if value == 0:
            yield f"trainer.{name}=0 trains nothing; use at least 1, or -1 for no maximum"
    if epochs == steps == -1:
        yield "trainer.max_epochs=-1 and trainer.max_steps=-1 have no end; set one of them"
    if every > epochs > 0 and steps < 0:
        yield (
            f"trainer.validate_every_epochs={every} is more than trainer.max_epochs={epochs}, "
            f"so no weights could be chosen; use at most {epochs}"
        )
    for least, most in (("min_epochs", "max_epochs"), ("min_steps", "max_steps")):
        if getattr(trainer, least) > getattr(trainer, most) > 0:
            yield (
                f"trainer.{least}={getattr(trainer, least)} is more than trainer.{most}={getattr(trainer, most)}; "
                f"use at most {getattr(trainer, most)}"
            )


def _of_limits(settings: RunSettings, num_datasets: int) -> Iterator[str]:
    trainer = settings.trainer
    limits = {f"trainer.{name}": getattr(trainer, name) for name in _LIMITS}
    limits["evaluation.limit_test_batches"] = settings.evaluation.limit_test_batches
    for key, value in limits.items():
        if isinstance(value, float) and value > 1:
            yield f"{key}={value} is a share above 1; write a share such as 0.5, or a whole number"
    every, limit = trainer.val_check_interval, trainer.limit_train_batches
    if isinstance(every, int) and isinstance(limit, int) and every > limit:
        yield (
            f"trainer.val_check_interval={every} is more than the trainer.limit_train_batches={limit} steps of an "
            f"epoch; use at most {limit}, or set trainer.validate_every_epochs"
        )
    if trainer.overfit_batches:
        for key in ("trainer.limit_train_batches", "trainer.limit_val_batches"):
            if limits[key] != 1.0 or isinstance(limits[key], int):
                yield f"{key}={limits[key]} is given with trainer.overfit_batches, which limits both; drop one"
    for key in (
        "trainer.limit_val_batches",
        "trainer.overfit_batches",
        "evaluation.limit_test_batches",
    ):
        if num_datasets > 1 and limits[key] not in (0, 1.0):
            yield (
                f"{key}={limits[key]} is given for a mix, whose first rows are of one dataset; leave it out, or give "
                "the split a smaller share in `splits`"
            )


def _of_devices(settings: RunSettings) -> Iterator[str]:
    trainer = settings.trainer
    if trainer.gradient_clip_algorithm == "value" and not trainer.gradient_clip:
        yield (
            "trainer.gradient_clip_algorithm=value is given without trainer.gradient_clip; set trainer.gradient_clip "
            "to the largest value"
        )
    if trainer.benchmark and settings.deterministic:
        yield "trainer.benchmark=true chooses other algorithms in each attempt; set deterministic: false, or drop it"
    if trainer.sync_batchnorm and settings.strategy == "fsdp":
        yield "trainer.sync_batchnorm=true is only for strategy=ddp; use torch.nn.SyncBatchNorm in the model"
    if trainer.sync_batchnorm and settings.accelerator == "cpu":
        yield (
            "trainer.sync_batchnorm=true needs GPUs, since torch.nn.SyncBatchNorm does not run on CPUs, and "
            "accelerator=cpu; drop it, or use accelerator=gpu"
        )
    if trainer.compile and settings.strategy == "fsdp":
        yield (
            "trainer.compile is given with strategy=fsdp, which shards a model before it could be compiled; call "
            "torch.compile in the model, or use strategy=ddp"
        )
