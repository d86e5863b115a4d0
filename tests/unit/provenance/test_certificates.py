"""Which resume certificate a training finds."""

from pathlib import Path

import pytest
from msgspec import convert

from shardline.provenance.resume_certificates import find_certificate, identify, write_certificate
from shardline.records.certificates import ResumeCertificate
from shardline.records.environments import Installed
from shardline.records.trainings import TrainingProvenance
from tests.support.job_records import job_record

ENVIRONMENT = {"python": "3.11.7", "packages": {"torch": "2.13.0", "numpy": "2.1.0"}}
HERE = Installed(**ENVIRONMENT)
RANK = dict.fromkeys(("rank", "local_rank", "node_rank", "threads", "joined_s"), 0)
RANK |= dict.fromkeys(
    ("host", "device", "device_name", "cpus", "interface", "address", "launcher", "job"), "a"
)
RANK |= {"settings": {}, "latency_us": None, "bandwidth_mb_s": None}
WORLD = {
    "world_size": 2,
    "launcher": "torchrun",
    "ranks": [RANK, RANK],
}


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(verdict: str = "survived", ended: str = "2026-01-01T00:00:00Z", **environment) -> Path:
    provenance = {"world": WORLD, "environment": {**ENVIRONMENT, **environment}}
    identity = identify(convert(provenance, TrainingProvenance))
    certificate = ResumeCertificate(
        identity=identity,
        interruptions=[],
        compared={},
        verdict=verdict,
        action=job_record("drill/resume", ended=ended),
    )
    return write_certificate(certificate)


def test_it_is_of_the_same_code_and_packages():
    assert find_certificate(HERE) is None
    write(packages={**ENVIRONMENT["packages"], "numpy": "2.2.0"})
    assert find_certificate(HERE) is None
    path = write()
    found = find_certificate(HERE)
    assert (found.path, found.verdict) == (str(path), "survived")


def test_the_newest_counts_even_where_it_did_not_survive():
    write()
    newest = write("not survived", ended="2026-02-01T00:00:00Z")
    assert find_certificate(HERE).path == str(newest)
    assert len(list(newest.parent.iterdir())) == 2, "none is overwritten"


@pytest.mark.parametrize("content", ["", "{}", '{"action": {}, "sha256": "ab"}'])
def test_a_damaged_one_is_none(content):
    write().write_text(content)
    assert find_certificate(HERE) is None
