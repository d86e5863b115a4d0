#!/bin/sh
# See data.post-deploy.sh.
set -eu
python -m pip install --no-deps --requirement "$SHARDLINE_LIBRARY/../requirements-azureml.lock"
site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
plugin="$SHARDLINE_LIBRARY/../plugins/snakemake-executor-plugin-azureml/src" # a checkout's; ignored where missing
printf '%s\n' "$SHARDLINE_LIBRARY" "$plugin" >"$site/shardline.pth"
