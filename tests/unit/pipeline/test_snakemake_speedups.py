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


def test_parameters_of_a_function_are_read_once():
    program = (
        "import inspect\nfrom snakemake import common, jobs, rules\n"
        "from shardline.pipeline import snakemake_speedups\nsnakemake_speedups.begin()\nsnakemake_speedups.begin()\n"
        "class Bare:\n    __hash__ = None\n    def __call__(self, wildcards, threads): pass\n"
        "def own(wildcards, input): pass\n"
        "for module in (common, rules):\n"
        "    assert list(module.get_function_params(own)) == ['wildcards', 'input']\n"
        "    assert module.get_function_params(own) is common.get_function_params(own)\n"
        "    assert list(module.get_function_params(Bare())) == ['wildcards', 'threads']\n"
        "assert common.get_input_function_aux_params(own, {'input': 1, 'threads': 2}) == {'input': 1}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
