"""What is masked, what is not, and what is recorded of an environment."""

import sys

import pytest

from shardline.core.redaction import mask, mask_values
from shardline.core.variables import recorded_variables
from shardline.provenance.actions import Action
from shardline.provenance.crate.contents import without_secrets
from tests.support.workspace import REPOSITORY


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://me:pw@host/x.git", "https://***@host/x.git"),
        ("https://t0ken@host/x", "https://***@host/x"),
        ("https://box/a.csv?sv=1&sig=a%2Fb next", "https://box/a.csv?*** next"),
        ("s3://bucket/a?X-Amz-Signature=f", "s3://bucket/a?***"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("HF_TOKEN=abc AWS_SECRET_ACCESS_KEY=a/b+c= X=1", "HF_TOKEN=*** AWS_SECRET_ACCESS_KEY=*** X=1"),
        ("--api-key abc --lr 1", "--api-key *** --lr 1"),
        ('{"client_secret": "abc", "name": "x"}', '{"client_secret": "***", "name": "x"}'),
        ("--build-arg=PIP_PASSWORD=abc", "--build-arg=PIP_PASSWORD=***"),
        ("AccountName=a;AccountKey=abc==;Suffix=x", "AccountName=a;AccountKey=***;Suffix=x"),
    ],
)  # fmt: skip
def test_secrets_are_masked_and_the_rest_is_kept(text, masked):
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "tokenizer=bert max_tokens=512 monkey=3 keys=4",
        "git@host:x/y.git", "https://host/path/a.csv", "user@example.org", "python -m x --key value",
        "module.secretary: Net", "detect-secrets==1.5.0", "pyjwt==2.8.0rc1 ; python_version < '3.12'",
        "{'detect-secrets': '1.5.0'}", "--nodes=2 --secretly",
    ],
)  # fmt: skip
def test_what_only_looks_similar_is_kept(text):
    assert mask(text) == text


def test_known_values_are_masked_the_longer_first():
    assert mask("a=abc-def b=abc", ["abc", "abc-def", ""]) == "a=*** b=***"


def test_values_of_documents_are_masked_by_their_names():
    document = {
        "token": "a",
        "max_tokens": 5,
        "nested": [{"url": "https://u:p@h/"}],
        "tokenizer": "b",
    }
    assert mask_values(document) == {
        "token": "***", "max_tokens": 5, "nested": [{"url": "https://***@h/"}], "tokenizer": "b",
    }  # fmt: skip


def test_only_named_variables_are_recorded():
    env = {
        "OMP_NUM_THREADS": "2", "SLURM_JOB_ID": "17", "NCCL_IB_HCA": "mlx5", "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_SECRET": "a", "SLURM_JWT": "b", "CUDA_TOKEN": "c", "HOME": "d", "WANDB_API_KEY": "e",
    }  # fmt: skip
    assert set(recorded_variables(env)) == {
        "OMP_NUM_THREADS", "SLURM_JOB_ID", "NCCL_IB_HCA", "CUDA_VISIBLE_DEVICES",
    }  # fmt: skip


def test_an_actions_command_is_masked_word_by_word(monkeypatch):
    words = ["python", "x.py", "--token", "abc", "--store=s3://u:p@h/", "a b"]
    monkeypatch.setattr(sys, "orig_argv", words)
    record = Action(id="train/run-0123456789ab", git={}).record()
    assert record.command == ["python", "x.py", "--token", "***", "--store=s3://***@h/", "a b"]
    assert record.rule == "train"


def test_a_config_without_secrets_is_published_as_it_is():
    content = (REPOSITORY / "config" / "config.yaml").read_bytes()
    assert without_secrets(content) == content


@pytest.mark.parametrize(
    "line",
    [
        "runtime: {variables: {SITE_SETTING: geh3im}}",
        "image: {build_args: [--build-arg=A=geh3im, geh3im]}",
        "# https://me:geh3im@host/old",
        "datasets: {a: {source: {type: csv, files: [{url: 'https://h/a?sig=geh3im'}]}}}",
    ],
)
def test_a_published_config_holds_no_secret(line):
    published = without_secrets(f"runs: config/runs.tsv\n{line}\n".encode())
    assert b"geh3im" not in published
    assert b"runs: config/runs.tsv" in published
