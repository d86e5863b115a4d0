"""What is refused in a config and what is masked, over generated secrets; digests are neither."""

import base64
import json
import string
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.config.load import load_project
from shardline.config.user_files import refuse_credentials
from shardline.core.credentials import credential_in
from shardline.core.masked_output import LineMasker, MaskedStream, masked_output
from shardline.core.rank_environment import check_passed
from shardline.core.redaction import MASK, is_secret, known_values, mask, mask_values, published
from shardline.core.seals import seal
from shardline.errors import ConfigError, DataError
from shardline.supervision.failure_records import read_failures, report_failure
from tests.support.planted_secrets import plant
from tests.support.source_cases import load_dataset
from tests.support.workspace import REPOSITORY

SEEDS = range(4)


def leaked(planted, *texts):
    """Return the secrets that are in one of some texts."""
    shown = "\n".join(texts).encode()
    return [one for one in planted if any(form in shown for form in one.spellings())]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_planted_secret_is_in_what_is_shown(seed, tmp_path, capsys):
    planted = plant(seed)
    assert leaked(planted, *(one.text for one in planted)) == planted, "the campaign looks in vain"
    assert leaked(planted, *(mask(one.text) for one in planted)) == []
    assert leaked(planted, *(mask(json.dumps({"log": one.text})) for one in planted)) == []
    documents = [{one.name: one.value, "said": [one.text]} for one in planted]
    assert leaked(planted, json.dumps(mask_values(documents), ensure_ascii=False)) == []
    assert leaked(planted, json.dumps(seal({"skipped": documents}), ensure_ascii=False)) == []
    assert leaked(planted, *(str(DataError(one.text)) for one in planted)) == []
    with masked_output():
        for one in planted:
            print("it said:", one.text)
        print("; ".join(one.text for one in planted))
    for number, one in enumerate(planted):
        report_failure(tmp_path, one.text, rank=number, log=None)
    assert leaked(planted, *capsys.readouterr()) == []
    assert len(read_failures(tmp_path)) == len(planted)
    assert leaked(planted, *(path.read_text() for path in tmp_path.rglob("*.json"))) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_setting_with_a_planted_secret_is_refused_and_not_shown(seed):
    for one in plant(seed):
        nested = {"defaults": {"model_args": {one.name: one.value, "deep": [1, "x"]}}}
        listed = {"source": {"options": {one.name: [{"value": one.value}, 3]}}}
        for found in (nested, listed):
            with pytest.raises(ConfigError) as error:
                refuse_credentials(found, "config.yaml", [])
            assert leaked([one], str(error.value), str(error.value.args)) == []
            assert "runtime.pass_env" in str(error.value)
            assert one.name in str(error.value)
        refuse_credentials(nested, "config.yaml", [f"model_args.{one.name}"])
        refuse_credentials(nested, "config.yaml", ["defaults.model_args"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pad_token", "<pad>"), ("eos_token", "<|endoftext|>"), ("cls_token", "[CLS]"), ("max_tokens", "512"),
        ("pad_token", "[PAD]"), ("additional_special_tokens", "<a1B2c3D4e5F6g7H8>"), ("token", "word"),
        ("tokenizer", "HuggingFaceH4/zephyr-7b-beta"), ("revision", "e8c2b3" * 6 + "aabb"), ("secret", "none"),
        ("token", "${HF_TOKEN}"), ("url", "https://host/rows.csv?${BLOB_SAS}"),
        ("url", "https://host:8080/a@b?version=3"),
        ("table", "abfss://container@account.dfs.core.windows.net/t"), ("repository", "ssh://git@host/x.git"),
        ("url", "https://me:${PASSWORD}@host/a"), ("password", "$DB_PASSWORD"),
        ("model", "sk-resnet50-large-0123456789ab"),
        ("sha256", "9f" * 32), ("model", "script: train.py --hub-token ${TOKEN} --lr 0.1"),
        ("key_file", "/home/me/.ssh/id"),
        ("image", "registry.example/x@sha256:" + "ab" * 32), ("num_pass", "2"), ("api_key_name", "x" * 40),
    ],
)  # fmt: skip
def test_what_is_no_credential_passes(key, value):
    refuse_credentials({"defaults": {"model_args": {key: value}}}, "config.yaml", [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "script: train.py --hub-token Ab3dEf6hIj9kLm2nOp5q"), ("build_args", "--build-arg=PIP=https://u:p@h/"),
        ("MY_PASSWORD", "a long pass phrase"), ("api_key", str(uuid.UUID(int=7 << 90))),
        ("wandb_api_key", "4be6cd9c3f0e1a2b7d85" * 2),
        ("url", "https://account.blob/x?sv=2024&sig=abc"), ("any", "-----BEGIN PRIVATE KEY-----\nabc"),
    ],
)  # fmt: skip
def test_further_credentials_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"c.yaml: {key} contains "):
        refuse_credentials({key: value}, "c.yaml", [])


def test_a_column_of_the_run_table_and_a_list_of_exceptions(tmp_path):
    token = "hf_" + "aB3" * 11
    (tmp_path / "runs.tsv").write_text(
        f"name\tdataset\tmodel\tmodel_args.hub_token\none\td\tlinear\t{token}\n"
    )
    source = {"type": "synthetic", "rows_per_shard": 20, "features": 2}
    config = {
        "runs": "runs.tsv",
        "defaults": {},
        "datasets": {"d": {"source": source, "shards": 1}},
    }
    with pytest.raises(ConfigError) as error:
        load_project(config, workdir=tmp_path)
    assert str(error.value).startswith(
        "runs.tsv line 2: model_args.hub_token contains the form of a cred"
    )
    assert token not in str(error.value)
    allowed = {**config, "runtime": {"not_secret": ["model_args.hub_token"]}}
    (run,) = load_project(allowed, workdir=tmp_path).runs.values()
    assert run.settings.model_args == {"hub_token": token}, "what is allowed is read as it is"


def test_neither_list_is_part_of_an_identity(tmp_path):
    source = {"type": "synthetic", "rows_per_shard": 20, "features": 2}
    before = load_dataset(tmp_path, source).id
    config = {
        "runs": "runs.tsv", "defaults": {}, "datasets": {"d": {"source": source, "shards": 3}},
        "runtime": {"pass_env": [], "not_secret": ["a.b"]},
    }  # fmt: skip
    assert list(load_project(config, workdir=tmp_path).datasets) == [before]


def test_a_variable_that_is_to_be_passed_but_not_set_is_named():
    with pytest.raises(Exception, match="pass_env names HF_TOKEN, which is not set"):
        check_passed(["HF_TOKEN"], {"HF_TOKEN": ""})
    check_passed(["HF_TOKEN"], {"HF_TOKEN": "x"})


def test_values_of_the_environment_are_masked_however_they_are_spelt(monkeypatch):
    monkeypatch.setenv("SITE_PASSWORD", 'a"b\\c/d ü&7')
    monkeypatch.setenv("UNSUSPICIOUS", "value-of-pass-env-1")
    monkeypatch.setenv("SHARDLINE_PASS_ENV", "UNSUSPICIOUS")
    value = 'a"b\\c/d ü&7'
    for text in (value, json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value),
                 "a%22b%5Cc%2Fd%20%C3%BC%267", "x value-of-pass-env-1 y"):  # fmt: skip
        assert MASK in mask(text), text
        assert "b" not in mask(text).replace("pass-env", ""), text


def test_ordinary_values_of_variables_with_a_secret_name_are_no_secrets():
    env = {
        "A_TOKEN": "synthetic",
        "B_KEY": "short",
        "SSH_KEY_PATH": "x" * 20,
        "C_TOKEN": "/run/secrets/token-1",
    }
    assert known_values(env) == []


def test_a_line_is_masked_as_a_whole_and_a_key_over_its_lines(tmp_path):
    with (tmp_path / "out").open("w") as file:
        stream = MaskedStream(file)
        for part in ("pass", "word", "=", "geh3im", "\n", "-----BEGIN PRIVATE KEY-----\n", "line1\nline2\n",
                     "-----END PRIVATE KEY-----\nthe next", " line\rprogress"):  # fmt: skip
            stream.write(part)
        stream.flush()
    shown = (tmp_path / "out").read_text()
    assert "geh3im" not in shown
    assert "line1" not in shown
    assert shown.endswith("the next line\nprogress")


def test_a_key_that_is_cut_off_hides_no_log():
    masker = LineMasker()
    shown = [
        masker.mask(line + "\n") for line in ["-----BEGIN PRIVATE KEY-----", *["x" * 64] * 200]
    ]
    assert "x" not in "".join(shown[:100])
    assert shown[-1] == "x" * 64 + "\n"
    assert LineMasker().mask("-----BEGIN CERTIFICATE-----\n") == "-----BEGIN CERTIFICATE-----\n"


def test_what_jobs_compute_with_is_written_to_the_letter():
    document = {
        "settings": {"model_args": {"token": "short"}},
        "identity": {"a": "token=x"},
        "said": "token=x",
    }
    assert published(document) == {**document, "said": f"token={MASK}"}
    assert mask_values(document)["settings"] == {"model_args": {"token": MASK}}


# --- digests and their like are never masked -------------------------------------------------

HEX = st.sampled_from([12, 32, 40, 64]).flatmap(
    lambda n: st.text("0123456789abcdef", min_size=n, max_size=n)
)
# but for those whose end is a secret's name, one of 16,384, as whose name they may stand
BASE64 = (
    st.binary(min_size=20, max_size=48)
    .map(lambda b: base64.b64encode(b).decode())
    .filter(lambda text: not text.lower().rstrip("=").endswith(("jwt", "pwd")))
)
NAMED = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=12)
PLAIN = st.one_of(
    HEX, BASE64, BASE64.map(lambda t: t.rstrip("=")), st.uuids().map(str),
    st.tuples(NAMED, HEX).map(lambda t: f"{t[0]}-{t[1][:12]}"),
    st.integers(1, 65535).map(lambda port: f"http://127.0.0.1:{port}/run/a"),
    st.tuples(NAMED, HEX).map(lambda t: f"/data/store/{t[0]}/{t[1]}.safetensors"),
)  # fmt: skip


@settings(max_examples=400, deadline=None, print_blob=True)
@given(
    PLAIN,
    st.sampled_from(["sha256", "identity", "commit", "digest", "blake3", "port", "run", "path"]),
)
def test_digests_ports_paths_and_identities_are_neither_masked_nor_refused(text, name):
    for sentence in (
        text,
        f"{name}={text}",
        f"{name}: {text}, expected {text};",
        f"sha256:{text}",
        f'"{name}": "{text}"',
    ):
        assert mask(sentence) == sentence
    document = {name: text, "files": {text: text}, text: [text]}
    assert mask_values(document) == document
    assert credential_in(text) is None


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_masking_twice_changes_nothing_more(text):
    assert mask(mask(text)) == mask(text)


def test_nothing_of_the_locks_and_the_workflow_is_masked():
    files = [
        *REPOSITORY.glob("*.lock"),
        *REPOSITORY.glob("envs/*"),
        *REPOSITORY.glob("scripts/*.py"),
    ]
    files += [
        REPOSITORY / "Snakefile",
        *REPOSITORY.glob("rules/*.smk"),
        REPOSITORY / "config/config.yaml",
    ]
    assert len(files) > 15
    for path in files:
        text = path.read_text()
        assert mask(text) == text, path


def test_names_of_tokens_of_a_text_are_no_secrets():
    for name in (
        "pad_token",
        "eos_token",
        "cls_token",
        "max_tokens",
        "num_new_tokens",
        "decoder_start_token",
        "tokens",
    ):
        assert not is_secret(name), name
    for name in (
        "source.options.api_token",
        "model_args.hub_token",
        "hubToken",
        "token",
        "client_secret",
        "passphrase",
    ):
        assert is_secret(name), name


def test_the_library_is_imported_only_where_a_form_may_be():
    code = (
        "import sys\nfrom shardline.core.redaction import mask\n"
        f"mask('sha256={'9e' * 32} /work/A/shard-00001.safetensors https://host/x')\n"
        "assert 'detect_secrets' not in sys.modules\n"
        "mask('SG.' + 'a' * 22 + '.' + 'b' * 43)\nassert 'detect_secrets' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
