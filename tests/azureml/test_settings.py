"""Settings reach the plugin by flag, profile key and variable; what contradicts is refused by name."""

import json
import os
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from snakemake_executor_plugin_azureml.errors import AzureMLError, find_secrets, redact
from snakemake_executor_plugin_azureml.options import (
    JobIdentity,
    check_settings,
    read_identity,
    read_mounts,
    read_resources,
    read_tags,
)
from snakemake_executor_plugin_azureml.settings import ExecutorSettings
from snakemake_executor_plugin_azureml.snakemake_jobs import passed_variables

SETTINGS = ExecutorSettings(
    subscription="s", resource_group="g", workspace="w", compute="cpu", image="registry/image:1"
)
EXAMPLES = {str: "text", int: 7, float: 2.5}
NAMES = [field.name for field in fields(ExecutorSettings)]


def parsed(arguments, environment, folder):
    """What Snakemake's own parser makes of a command line, as JSON of the plugin's settings."""
    program = (
        "import dataclasses, json, sys\n"
        "from snakemake.cli import parse_args\n"
        "from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry\n"
        "_, args = parse_args(sys.argv[1:])\n"
        "plugin = ExecutorPluginRegistry().get_plugin('azureml')\n"
        "print(json.dumps(dataclasses.asdict(plugin.get_settings(args))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        cwd=folder,
        text=True,
        capture_output=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout.splitlines()[-1])


def examples():
    return {
        field.name: EXAMPLES[type(field.default) if field.default is not None else str]
        for field in fields(ExecutorSettings)
    }


def test_every_setting_is_a_flag(tmp_path):
    flags = [
        word
        for name, value in examples().items()
        for word in (f"--azureml-{name.replace('_', '-')}", str(value))
    ]
    assert parsed(flags, {}, tmp_path) == examples()


def test_every_setting_is_a_variable(tmp_path):
    variables = {
        f"SNAKEMAKE_AZUREML_{name.upper()}": str(value) for name, value in examples().items()
    }
    assert parsed([], variables, tmp_path) == examples()


def test_every_setting_is_a_profile_key(tmp_path):
    lines = [f"azureml-{name.replace('_', '-')}: {value}" for name, value in examples().items()]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/profile.yaml").write_text("executor: azureml\n" + "\n".join(lines) + "\n")
    assert parsed(["--profile", "mine"], {}, tmp_path) == examples()


def modules_after(program, prefixes):
    """Modules of some packages that a program has imported when it ends."""
    found = f"[name for name in sorted(sys.modules) if name.startswith({prefixes!r})]"
    tell = (
        f"import atexit, sys\natexit.register(lambda: print('MODULES', {found}, file=sys.stderr))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", tell + program], text=True, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()[-1].removeprefix("MODULES ")


def test_help_imports_no_sdk():
    program = "sys.argv = ['snakemake', '--help']\nfrom snakemake.cli import main\nmain()\n"
    # The storage plugin is found at the same time, and imports Azure's storage and identity.
    text, modules = modules_after(program, ("azure.ai", "azureml", "msrest"))
    assert "--azureml-workspace" in text
    assert modules == "[]"


def test_finding_the_plugin_imports_nothing_of_azure():
    program = "from snakemake_executor_plugin_azureml import Executor, ExecutorSettings, common_settings\n"
    _, modules = modules_after(
        program, ("azure", "msrest", "msal", "tenacity", "requests", "pathspec")
    )
    assert modules == "[]"


def test_the_node_program_needs_no_snakemake():
    program = (
        "import sys\n"
        "import snakemake_executor_plugin_azureml.node.__main__\n"
        "print([name for name in sys.modules if name.startswith('snakemake_interface')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], text=True, capture_output=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sdk": "v3"}, "azureml-sdk='v3' is unknown; set it to v2 or v1"),
        ({"image": None}, "one of azureml-image and azureml-environment must be set, but neither is"),
        ({"environment": "e:1"}, "azureml-environment must be set, but both are"),
        ({"image": None, "environment": "e:1", "lock": "l"}, "azureml-lock='l' has no effect"),
        ({"mounts": "STORE"}, "azureml-mounts has 'STORE' where NAME=PATH"),
        ({"mounts": "A-B=x"}, "azureml-mounts has 'A-B=x'"),
        ({"tags": "team"}, "azureml-tags has 'team' where KEY=VALUE"),
        ({"tags": "snakemake_code=1"}, "does not begin with snakemake_"),
        ({"identity": "me"}, "azureml-identity='me' is not user, managed or"),
        ({"identity": "managed:1234"}, "azureml-identity='managed:1234' is not user, managed or managed:CLIENT_ID"),
        ({"max_requests_per_second": 0.0}, "azureml-max-requests-per-second=0.0"),
    ],
)  # fmt: skip
def test_settings_that_contradict_are_refused(changes, message):
    with pytest.raises(AzureMLError) as error:
        check_settings(replace(SETTINGS, **changes))
    assert message in str(error.value)


def test_settings_are_read():
    check_settings(SETTINGS)
    mounts = read_mounts(
        replace(SETTINGS, mounts="STORE=a/b/, DATA=lake:x OTHER=azureml://datastores/d/paths/p/q/")
    )
    assert [(m.variable, m.datastore, m.path) for m in mounts] == [
        ("STORE", "workspaceblobstore", "a/b"),
        ("DATA", "lake", "x"),
        ("OTHER", "d", "p/q"),
    ]
    assert read_tags("team=vision cost=a=b") == {"team": "vision", "cost": "a=b"}
    assert read_identity("managed:12345678-9abc-def0-1234-56789abcdef0") == JobIdentity(
        kind="managed", client_id="12345678-9abc-def0-1234-56789abcdef0"
    )


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"nodes": 0}, "rule train has the resource nodes=0 where a whole number above 0"),
        ({"nodes": "two"}, "resource nodes='two'"),
        ({"nodes": 2}, "rule train has the resource nodes=2, but azureml-mounts is not set"),
        ({"runtime": "1h"}, "resource runtime='1h'"),
        ({"azureml_distribution": "nccl"}, "azureml_distribution='nccl' where mpi or pytorch"),
        ({"shm_size": "16GB"}, "shm_size='16GB' where a number with the unit b, k, m or g"),
        ({"azureml_priority": "urgent"}, "azureml_priority='urgent' where azureml-sdk=v2 expects"),
        (
            {"azureml_instance_type": "x", "azureml_compute": "gpu"},
            "set an instance type for the compute 'serverless'",
        ),
        ({"azureml_compute": "serverless"}, "azureml_instance_type=''"),
    ],
)
def test_resources_that_cannot_be_given_are_refused(resources, message):
    with pytest.raises(AzureMLError) as error:
        read_resources(SETTINGS, resources, rule="train")
    assert message in str(error.value)


def test_a_rule_without_compute_is_named():
    with pytest.raises(AzureMLError, match="rule train has no compute; set azureml-compute"):
        read_resources(replace(SETTINGS, compute=None), {}, rule="train")


def test_serverless_is_of_the_second_sdk():
    resources = {"azureml_instance_type": "Standard_D2_v3"}
    assert read_resources(SETTINGS, resources, rule="a").compute == "serverless"
    with pytest.raises(AzureMLError, match="azureml-core does not support"):
        read_resources(replace(SETTINGS, sdk="v1"), resources, rule="a")


KEY = "Zm9vYmFyYmF6cXV4Zm9vYmFy=="
CONNECTION = f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={KEY};EndpointSuffix=x"


def test_secrets_are_hidden_wherever_they_stand():
    secrets = find_secrets(
        {"MY_TOKEN": "abcdefghij", "STORE": CONNECTION, "PWD": "/home/someone", "KEY_FILE": "/a/long/path"},
        ["STORE"],
    )  # fmt: skip
    assert sorted(secrets) == ["MY_TOKEN", "STORE[0]"]
    shown = redact(
        f"curl https://a/b?sv=1&sig=ab%2Fcd&se=2 -H 'Authorization: Bearer ey.J0' {CONNECTION} abcdefghij {KEY}",
        secrets,
    )
    for secret in (KEY, "ab%2Fcd", "ey.J0", "abcdefghij"):
        assert secret not in shown
    assert "AccountName=a" in shown


def test_declared_variables_stay_behind_unless_they_are_named():
    warnings = []
    given = {
        "MY_TOKEN": "t",
        "THREADS": "2",
        "SNAKEMAKE_STORAGE_AZURE_ACCOUNT_NAME": "a",
        "SNAKEMAKE_STORAGE_AZURE_SAS_TOKEN": "s",
    }
    declared = ["MY_TOKEN", "THREADS"]
    assert list(passed_variables(given, declared, None, warnings.append)) == [
        "SNAKEMAKE_STORAGE_AZURE_ACCOUNT_NAME"
    ]
    assert "not passed to jobs: MY_TOKEN, THREADS" in warnings[0]
    assert list(passed_variables(given, declared, "THREADS", warnings.append)) == [
        "SNAKEMAKE_STORAGE_AZURE_ACCOUNT_NAME",
        "THREADS",
    ]
    assert passed_variables(given, declared, "all", warnings.append) == given
    with pytest.raises(AzureMLError, match="azureml-pass-envvars names OTHER"):
        passed_variables(given, declared, "OTHER", warnings.append)


def test_help_says_what_each_setting_is_for():
    assert all(field.metadata["help"].endswith(".") for field in fields(ExecutorSettings))
