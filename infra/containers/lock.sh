#!/usr/bin/env bash
# Writes NAME.txt, the packages that each image installs, every file with its hash. They
# follow from pyproject.toml, NAME.in, and the versions that infra/constraints.txt and
# accelerators.txt pin.
#
#   infra/containers/lock.sh        # after a change of any of these files
set -euo pipefail
cd "$(dirname "$0")/../.."

lock() { # NAME, and the extras it installs
  local name=$1
  shift
  uv pip compile pyproject.toml "infra/containers/$name.in" "${@/#/--extra=}" \
    --constraint infra/constraints.txt \
    --constraint infra/containers/accelerators.txt \
    --generate-hashes --no-annotate --no-header --quiet \
    --python-version 3.11 --python-platform x86_64-manylinux_2_36 \
    --output-file "infra/containers/$name.txt"
}

lock pipeline pipeline cloud
lock trainer-cuda trainer eval report
lock trainer-tpu trainer eval report
