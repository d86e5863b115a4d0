import gc
import inspect
import subprocess
import sys

from shardline.pipeline import snakemake_speedups


def test_signatures_are_kept_of_the_functions_of_one_namespace():
    namespace = {"inspect": inspect, "signature": inspect.signature}
    exec("def ours(wildcards, attempt): pass", namespace)
    snakemake_speedups.keep_signatures(list(namespace.values()), namespace)
    assert list(namespace["ours"].__signature__.parameters) == ["wildcards", "attempt"]
    assert not hasattr(inspect.signature, "__signature__")


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
