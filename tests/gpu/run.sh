#!/bin/sh
# tests/gpu/run.sh OUT [ARGUMENTS...]: the GPU suite on a machine with Python, torch and NumPy, without a network.
# Installs the wheels of .gpu/ (python -m benchmarks.gpu.wheels) beside them, and writes OUT/figures.json and
# OUT/table.md. Fails where a check fails; ARGUMENTS are those of python -m benchmarks.gpu, PYTHON names a Python.
set -eu
out=${1:?a folder for the results}
shift
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
started=$(date +%s)
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# by this name Shardline takes what is there for installed, and not for the user's code, which it would parse
site=$made/site-packages
# --no-deps: the machine's torch stays
"$python" -m pip install --quiet --no-index --no-deps --disable-pip-version-check --target "$site" .gpu/*.whl
export PYTHONPATH="$site:$PWD/src:$PWD"
# the seconds of the installation are the suite's
"$python" -m benchmarks.gpu --out "$out" --spent "$(($(date +%s) - started))" "$@"
