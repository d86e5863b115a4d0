#!/bin/sh
# See data.post-deploy.sh.
set -eu
python -m pip install --no-deps --requirement "$SHARDLINE_LIBRARY/../requirements-azureml.lock"
site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$SHARDLINE_LIBRARY" >"$site/shardline.pth"
