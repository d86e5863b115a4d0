"""Chains of kills and resumes end with the bits of a training that nothing has ended.

The campaign takes a seed from the commit, so that each commit tries other chains and repeats its own;
`SHARDLINE_CAMPAIGN_CHAINS=500 SHARDLINE_SEED=...` says how many and which (`make campaign`).
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from shardline.core.one_lightning import loaded
from shardline.errors import DataError, Diverged
from tests.support.campaigns import campaign_seed
from tests.support.killed_models import Counting
from tests.support.lightning_packages import in_turn, run_tests_with
from tests.support.rotation import rotating
from tests.support.simulated_kills import Case, Chain, Kill, Trainings, build_trainings

CHAINS = int(os.environ.get("SHARDLINE_CAMPAIGN_CHAINS", "8"))


SEED = campaign_seed()
PARTITION = {"data.epoch": "partition", "data.partition_shards": 2, "trainer.max_epochs": 5}


def case(model: str, name: str = "", best_kept: int = 1, of: str = "rows", **settings) -> Case:
    path = f"tests.support.killed_models:{model}"
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return Case(name=name or model, model=path, settings=dotted, data=of, best_kept=best_kept)


COUNTING = case("Counting")
JITTER, GUESS = "tests.support.killed_data:Jitter", "tests.support.killed_data:Guess"
LABEL = "tests.support.killed_data:Label"
HIDE = "tests.support.killed_data:Hide"
LABELLED = {"data.transform": LABEL, "data.eval_transform": LABEL}
PACK = {"column": "tokens", "length": 5, "method": "concat"}
SAMPLES = [  # mixed, packed, transformed, drawn by class
    case("Counting", "mixed", of="mix", data__transform=JITTER, data__epoch_samples=18),
    case(
        "Averaged", "packed", of="tokens", trainer__accumulate=2, data__normalize="none", data__pack=PACK,
        data__transform=[GUESS, JITTER], data__eval_transform=GUESS, data__workers="threads:2",
        model_args={"num_classes": 2},
    ),
    case(
        "Counting", "packs", of="tokens", data__normalize="none", model_args={"num_classes": 2},
        data__pack={"column": "tokens", "length": 9, "method": "best_fit"}, data__transform=[GUESS, JITTER],
        data__eval_transform=GUESS,
    ),
    case("Duel", "by class", data__class_weights="balanced", data__transform=JITTER),
]  # fmt: skip
GROUPS = [{"match": "body.*", "lr": 0.01}, {"match": "*.bias", "weight_decay": 0.1}]
SCHEDULES = "torch.optim.lr_scheduler:"
OPTIMISED = [
    case(
        "Counting", "one cycle of groups", optim__name="torch.optim:RAdam", optim__groups=GROUPS,
        optim__args={"betas": [0.8, 0.9]}, schedule__name=f"{SCHEDULES}OneCycleLR",
        schedule__args={"max_lr": 0.1}, freeze=["body.0.*"], trainer__gradient_clip=0.5,
    ),
    case(
        "Averaged", "plateau of groups", optim__name="torch.optim.NAdam", optim__groups=GROUPS,
        schedule__name=f"{SCHEDULES}ReduceLROnPlateau", schedule__interval="epoch",
        schedule__monitor="val_loss", schedule__args={"patience": 0, "factor": 0.5},
        trainer__accumulate=2, freeze=["head.bias"],
    ),
]  # fmt: skip
CASES = [
    COUNTING,
    case("Averaged", schedule__name="cosine", schedule__warmup_steps=3, optim__name="adamw"),
    case("Averaged", "accumulated", trainer__accumulate=2, trainer__gradient_clip=0.5),
    case("OwnOptimizer", "own optimiser, accumulated", trainer__accumulate=2),
    case("OwnOptimizer", best_kept=3),
    case("Plateau", best_kept=2),
    case("Plateau", "late", trainer__validate_every_epochs=2),
    case("Duel"),
    case("Duel", "duel by partitions", **{k.replace(".", "__"): v for k, v in PARTITION.items()}),
    case("Hidden"),
    case(
        "Stopping", early_stopping__monitor="score", early_stopping__patience=1,
        checkpoint__monitor="score", trainer__max_epochs=6,
    ),
    case("StopsItself", trainer__accumulate=1),
    case("SkipsTheRest"),
    case("Thawing"),
    case("Wild", divergence__policy="skip"),
    case("Counting", "partitions", **{k.replace(".", "__"): v for k, v in PARTITION.items()}),
    case("Averaged", "padded", data__last_batch="pad", data__streams=2, precision="64-true"),
    case("Averaged", "top", best_kept=3, checkpoint__monitor="distance", checkpoint__mode="max"),
    *OPTIMISED,
    *SAMPLES,
    case("Counting", "interval", trainer__val_check_interval=3),
    case("Duel", "often", trainer__val_check_interval=0.25, best_kept=2, trainer__accumulate=1),
    case("Plateau", "steps", trainer__val_check_interval=2, trainer__max_steps=10, trainer__accumulate=2),
    case("OwnOptimizer", "limited", trainer__limit_train_batches=3, trainer__limit_val_batches=1, trainer__max_steps=7),
    case(
        "Stopping", "late stop", early_stopping__monitor="score", early_stopping__patience=1,
        checkpoint__monitor="score", trainer__max_epochs=6, trainer__min_steps=19, trainer__min_epochs=2,
    ),
    case("Averaged", "overfit", trainer__overfit_batches=2, trainer__max_epochs=-1, trainer__max_steps=9),
]  # fmt: skip


FORGOTTEN = [
    case for case in CASES if case.name in ("Duel", "Hidden", "Thawing", "SkipsTheRest", "late")
]
FORGOTTEN += OPTIMISED


@pytest.fixture(scope="module")
def trainings(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Trainings:
    terminal = request.config.pluginmanager.getplugin("terminalreporter")
    if terminal:  # there is none in a worker of xdist
        terminal.write_line(f"{CHAINS} chains, SHARDLINE_SEED={SEED}")
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


def at(*steps: int) -> list[Kill]:
    """Kills in the step after each of these, when the state of before is on disk."""
    return [Kill(place="model.training_step", step=step) for step in steps]


# an epoch has four steps: 4, 8 and 12 are epochs' ends
@pytest.mark.parametrize("steps", [(4, 8, 10), (4, 8, 10, 14), (2, 4, 8, 9, 12, 15)], ids=str)
def test_kills_at_epochs_ends_and_between_them_change_nothing(trainings, steps):
    unbroken, _ = trainings.unbroken(COUNTING)
    assert trainings.killed(COUNTING, at(*steps)).differences(unbroken) == []


def test_an_epochs_own_record_stands_once_where_the_state_before_it_is_resumed_from(trainings):
    (case,) = (case for case in CASES if case.name == "SkipsTheRest")
    unbroken, _ = trainings.unbroken(case)
    kill = Kill(place="callback.on_after_backward", step=6)
    killed = trainings.killed(case, [kill], every_steps=1, keep=1, lateness=10)
    assert killed.differences(unbroken) == []


def test_a_batch_that_was_skipped_is_in_no_ledger_whatever_state_is_resumed_from(trainings):
    """Else the end of that epoch would be a state from which the ledger has no such batch."""
    skips = case("SkipsTheRest", "skips", checkpoint__milestones=[2])
    unbroken, _ = trainings.unbroken(skips)
    kill = Kill(place="model.training_step", step=6)
    assert trainings.killed(skips, [kill], every_steps=9, keep=1).differences(unbroken) == []
    assert {len(rows) for rows in unbroken.ledger.values()} == {4}
    assert [*unbroken.ledger] == [*range(1, 15)]


@pytest.mark.parametrize("case", [*FORGOTTEN, *SAMPLES], ids=lambda case: case.name)
def test_what_lightnings_states_forget_is_there_after_a_resume(trainings, case):
    unbroken, _ = trainings.unbroken(case)
    assert trainings.killed(case, at(2, 4, 9, 15)).differences(unbroken) == []


_HUB = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
_GPT2 = {"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2}
_LLAMA = {**_HUB, "model_type": "llama", "intermediate_size": 8, "tie_word_embeddings": True}
_BERT = {**_HUB, "model_type": "bert", "intermediate_size": 8, "dtype": "bfloat16"}
HUB_MODELS = [  # dropout, tied weights, three classes
    ("hf_causal_lm:CausalLM", {"config": _GPT2}, {}),
    ("hf_sequence_classification:SequenceClassification", {"config": _BERT, "num_classes": 3}, LABELLED),
    *rotating(
        ("hf_masked_lm:MaskedLM", {"config": _BERT}, {"data.transform": HIDE, "data.eval_transform": HIDE}),
        ("hf_causal_lm:CausalLM", {"config": {**_LLAMA, "attention_dropout": 0.1}}, {}),
        ("hf_causal_lm:CausalLM", {"config": {**_BERT, "is_decoder": True}}, {}),
        ("hf_sequence_classification:SequenceClassification", {"config": _LLAMA, "num_classes": 3}, LABELLED),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "args", "data"), HUB_MODELS, ids=[f"hub{n}" for n in range(len(HUB_MODELS))]
)
def test_a_model_of_transformers_resumes_with_its_bits(trainings, model, args, data):
    settings = {"data.normalize": "none", "data.pack": PACK, "model_args": args, **data}
    path = f"shardline.training.models.{model}"
    hub = Case(name=f"{model} {args}", model=path, settings=settings, data="tokens")
    unbroken, _ = trainings.unbroken(hub)
    kills = [Kill(place="callback.on_after_backward", step=step) for step in (3, 4, 9)]
    assert trainings.killed(hub, kills).differences(unbroken) == []


class EndsInNumbers(Counting):
    """Has no numbers left when its last epoch is over."""

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        if self.current_epoch == 3:
            self.head.weight.data.fill_(torch.nan)


class Miscounts(Counting):
    """Ends with an epoch that counts as begun."""

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.trainer.fit_loop.epoch_progress.total.started += self.current_epoch == 3


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (EndsInNumbers, Diverged, "ended at step 16 with weights that are NaN or infinite"),
        (Miscounts, DataError, "ended within an epoch, after step 16, so its last state is not"),
    ],
)
def test_an_end_that_cannot_be_saved_is_an_error(trainings, tmp_path, model, error, message):
    own = Case(name=model.__name__, model=f"{__name__}:{model.__name__}")
    with pytest.raises(error, match=message):
        Chain(trainings, own, tmp_path).attempt(None)
    assert not list(tmp_path.rglob("model.safetensors"))


class Plain(Counting):
    """Keeps tensors where no state has them."""

    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.head.scale = torch.ones(2)
        self.history = {"losses": [torch.zeros(())]}
        self.limits = (0.0, 1.0)


def test_tensors_that_no_state_has_are_named_once(trainings, tmp_path, capsys):
    own = Case(name="Plain", model=f"{__name__}:Plain")
    Chain(trainings, own, tmp_path).attempt(None)
    Chain(trainings, COUNTING, tmp_path / "counting").attempt(None)
    told = [line for line in capsys.readouterr().out.splitlines() if "do not contain" in line]
    assert len(told) == 1
    assert told[0].startswith(
        "warning: training checkpoints do not contain the model's history, head.scale, which are"
    )


def test_chains_of_kills_in_any_place_change_nothing(trainings):
    """By the commit with one package of Lightning or the other, in a process of its own if it is not this one's."""
    package = in_turn()
    if package != loaded():
        file = "tests/unit/training/test_resume_chains.py"
        assert "1 passed" in run_tests_with(package, file, "-k", "chains_of_kills")
        return
    print(f"{CHAINS} chains with {package}, SHARDLINE_SEED={SEED}")
    campaign(trainings)


@settings(
    max_examples=CHAINS, deadline=None, database=None, print_blob=True,
    suppress_health_check=[*HealthCheck],
)  # fmt: skip
@seed(SEED)
@given(data=st.data())
def campaign(trainings, data):
    note(f"SHARDLINE_SEED={SEED}")
    case = data.draw(st.sampled_from(CASES), "case")
    unbroken, places = trainings.unbroken(case)
    last = max(places.values())
    kill = st.builds(
        Kill, place=st.sampled_from(sorted(places)), step=st.integers(0, last),
        torn=st.none() | st.floats(0, 1),
    )  # fmt: skip
    kills = sorted(data.draw(st.lists(kill, min_size=1, max_size=8), "kills"), key=lambda k: k.step)
    killed = trainings.killed(
        case,
        kills,
        every_steps=data.draw(st.integers(0, 5), "every_steps"),
        keep=data.draw(st.integers(1, 3), "keep"),
        lateness=data.draw(st.integers(0, 40), "lateness"),
    )
    assert killed.differences(unbroken) == []
