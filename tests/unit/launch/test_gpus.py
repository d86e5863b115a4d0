"""The GPUs that a job inherits, by the names of CUDA_VISIBLE_DEVICES."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.errors import LaunchError
from shardline.launch import gpus as gpus_module
from shardline.launch.gpus import Gpu, list_gpus, parse_gpus, usable_gpus

# as `nvidia-smi -L` prints
LISTED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-a4c8bd3e-0e57-9b36-2ab1-4f0c8a3fb1f9)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
"""
A, B = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "GPU-a4c8bd3e-0e57-9b36-2ab1-4f0c8a3fb1f9"
FIRST, SECOND = (
    "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
    "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb",
)
FOUR = tuple(Gpu(uuid=f"GPU-{i}{i}{i}", model="A100") for i in range(4))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (A, FIRST, SECOND)),
        ("0", (A,)),
        ("1", (FIRST,)),  # CUDA uses the first instance of a GPU
        (A[:8], (A,)),  # a beginning of a UUID is enough
        (f"{SECOND}, {A}", (SECOND, A)),
        (f"MIG-{B}/1/0", (f"MIG-{B}/1/0",)),  # of drivers before 470
        ("0,-1,1", (A,)),  # nothing counts from -1 on
        ("", ()),
        ("0,0", (A,)),
    ],
)
def test_what_is_inherited_is_mapped_to_uuids(visible, expected):
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert usable_gpus(parse_gpus(LISTED), env) == expected


@pytest.mark.parametrize("visible", ["2", "GPU-ffff", "GPU-", "none"])
def test_a_name_of_no_gpu_is_rejected(visible):
    found = parse_gpus(LISTED)
    with pytest.raises(LaunchError, match=f"CUDA_VISIBLE_DEVICES={visible} names {visible}"):
        usable_gpus(found, {"CUDA_VISIBLE_DEVICES": visible})


def test_numbers_of_different_gpus_are_rejected_unless_their_order_is_known():
    mixed = (Gpu(uuid="GPU-1", model="T4"), Gpu(uuid="GPU-2", model="A100"))
    env = {"CUDA_VISIBLE_DEVICES": "1"}
    with pytest.raises(LaunchError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        usable_gpus(mixed, env)
    assert usable_gpus(mixed, {**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ("GPU-2",)
    assert usable_gpus(mixed, {"CUDA_VISIBLE_DEVICES": "GPU-2"}) == ("GPU-2",)


@given(st.lists(st.integers(0, 3), unique=True))
def test_what_a_job_passes_on_is_mapped_to_itself(numbers):
    inherited = usable_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers))})
    assert inherited == tuple(FOUR[number].uuid for number in numbers)
    assert usable_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": ",".join(inherited)}) == inherited


def test_gpus_are_listed_without_nvidia_smi_too(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list_gpus() == ()
    driver = tmp_path / "gpus" / "0000:07:00.0"
    driver.mkdir(parents=True)
    (driver / "information").write_text(f"Model: \t\t A100\nIRQ:   \t\t 21\nGPU UUID: \t {A}\n")
    assert gpus_module._of_driver(tmp_path / "gpus") == (Gpu(uuid=A, model="A100"),)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'E'\n{LISTED}E\n".replace("cat", "/bin/cat"))
    tool.chmod(0o700)
    assert list_gpus() == parse_gpus(LISTED)
