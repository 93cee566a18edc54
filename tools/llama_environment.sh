#!/usr/bin/env bash
# llama.cpp's server in an environment of its own, for `python -m bench.engine`: never a dependency of headrace.
#
#   tools/llama_environment.sh FOLDER        (`make llama` calls it with .llama)
#
# FOLDER gets bin/python with xllamacpp, which carries llama.cpp built for this kind of machine: some 100 MB.
set -euo pipefail

folder=${1:?usage: tools/llama_environment.sh FOLDER}
version=2026.10.11549

"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "xllamacpp==$version"
