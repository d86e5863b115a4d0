#!/bin/sh
# Snakemake runs this in an environment that it has made of the .yaml or .pin.txt beside it. It adds
# Shardline itself, from the copy that rules/common.smk names: PYTHONPATH would not reach the jobs.
set -eu
site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$SHARDLINE_LIBRARY" >"$site/shardline.pth"
