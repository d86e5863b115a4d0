"""What forked ranks used is in the benchmark of their job."""

from pathlib import Path

import pytest
from snakemake import benchmark

from shardline.pipeline.forked_usage import add_to_benchmarks, note_usage
from shardline.supervision.warm.messages import WarmAnswer


@pytest.fixture
def write(monkeypatch, tmp_path):
    """Return a function that writes a job's benchmark as Snakemake does, and returns its columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmark, "write_benchmark_records", benchmark.write_benchmark_records)
    add_to_benchmarks()
    add_to_benchmarks()
    Path("benchmarks/train").mkdir(parents=True)

    def make(is_measured: bool = True) -> dict[str, str]:
        record = benchmark.BenchmarkRecord(
            running_time=10.0, max_rss=40.0, cpu_time=0.5, cpu_usage=5.0, io_in=1.0, io_out=2.0
        )
        record.data_collected = is_measured
        benchmark.write_benchmark_records([record], "benchmarks/train/0123.tsv", False)
        head, line = Path("benchmarks/train/0123.tsv").read_text().splitlines()
        return dict(zip(head.split("\t"), line.split("\t"), strict=True))

    return make


def test_usage_of_forked_ranks_is_added_once(write):
    used = WarmAnswer(
        code=0, cpu_s=20.0, peak_rss_bytes=300 << 20, read_bytes=1 << 20, written_bytes=3 << 20
    )
    note_usage(Path("elsewhere/logs/train/0123.log"), used)
    found = write()
    assert found["cpu_time"] == "20.50"
    assert found["max_rss"] == "340.00"
    assert found["mean_load"] == "200.50"
    assert (found["io_in"], found["io_out"]) == ("2.00", "5.00")
    assert write()["cpu_time"] == "0.50", "the next attempt is measured afresh"


def test_a_job_without_forked_ranks_or_without_samples_stays_as_it_is(write):
    note_usage(Path("logs/train/0123.log"), None)
    assert write()["cpu_time"] == "0.50"
    note_usage(Path("logs/train/0123.log"), WarmAnswer(code=0, cpu_s=20.0))
    assert write(is_measured=False)["cpu_time"] == "NA"
