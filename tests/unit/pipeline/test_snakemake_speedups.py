import gc
import inspect
import subprocess
import sys

from shardline.pipeline import snakemake_speedups


class Functions:
    def ours(self, wildcards, attempt):
        return wildcards + attempt


def test_signatures_of_an_object_s_methods_are_kept():
    functions = Functions()
    snakemake_speedups.keep_signatures(functions)
    assert list(functions.ours.__signature__.parameters) == ["wildcards", "attempt"]
    assert inspect.signature(functions.ours) is functions.ours.__signature__
    assert functions.ours(1, attempt=2) == 3


def test_garbage_is_collected_again_once_jobs_start():
    program = (
        "import gc\nfrom shardline.pipeline import snakemake_speedups\nfrom snakemake import sourcecache\n"
        "plain = sourcecache.parse_uri('/a/b.py')\nsnakemake_speedups.begin()\nsnakemake_speedups.begin()\n"
        "assert not gc.isenabled() and sourcecache.parse_uri('/a/b.py') == plain\n"
        "snakemake_speedups.end()\nassert gc.isenabled() and gc.get_freeze_count() > 1000\n"
    )
    assert gc.isenabled()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
