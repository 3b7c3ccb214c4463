#!/usr/bin/env bash
# Run by snakemake after it has made the conda environment: the package itself.
set -eu
python -m pip install --no-deps --no-build-isolation --editable "${HIDDENSTATE_TREE:-$PWD}"
