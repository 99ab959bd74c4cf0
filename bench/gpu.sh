#!/usr/bin/env bash
# Everything that needs a GPU, once, in at most fourteen minutes: bench/gpu.sh [OUT]
#
# Each stage leaves its result in OUT (gpu-results) and the next ones run whatever became of it; OUT/table.md says what
# there is. On a bare machine it installs the package into OUT/venv. No hub is asked for anything.
#   TARGET=DIR DRAFT=DIR   a real pair, measured too
#   WHEELS=DIR             packages that are missing come from there: for a machine that reaches no index
#   GPU_TOY=1              a rehearsal on a CPU: Triton's interpreter, a tiny model, no repeats
set -u
cd "$(dirname "$0")/.."
OUT=${1:-gpu-results}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}" OUT
SLOW=1
if [ -n "${GPU_TOY:-}" ]; then export TRITON_INTERPRET=1 SLOW=5; fi

if [ -n "${WHEELS:-}" ]; then
  "$PYTHON" -m pip install -q --no-index --no-deps --target "$OUT/site" "$WHEELS"/*.whl > "$OUT/install.txt" 2>&1
  export PYTHONPATH="$OUT/site:$PYTHONPATH" PIP_NO_INDEX=1
fi
if ! "$PYTHON" -c "import torch, triton, transformers, typer, pytest, hypothesis" 2> /dev/null; then
  "$PYTHON" -m venv --system-site-packages "$OUT/venv" && PYTHON="$OUT/venv/bin/python"
  timeout 240 "$PYTHON" -m pip install -q ".[test]" triton > "$OUT/install.txt" 2>&1 || echo "install failed: $OUT/install.txt"
fi

stage() {  # NAME SECONDS COMMAND...
  local name=$1 seconds=$(($2 * SLOW)) begun=$SECONDS
  shift 2
  timeout "$seconds" "$@" > "$OUT/$name.txt" 2>&1
  local code=$?
  echo "{\"stage\": \"$name\", \"code\": $code, \"seconds\": $((SECONDS - begun))}" >> "$OUT/stages.jsonl"
  echo "$name: exit code $code after $((SECONDS - begun)) s"
}

: > "$OUT/stages.jsonl"
if [ -n "${GPU_TOY:-}" ]; then TESTS="tests/model/gpu/test_graphs.py"; else TESTS="tests/attend/test_triton.py tests/model/gpu/test_*.py"; fi
stage environment 30 "$PYTHON" -m bench.gpu environment
# each file has a process of its own: a failed assertion on the device fails everything after it in that process
# shellcheck disable=SC2016,SC2086
stage tests 150 bash -c 'bad=0; for file in "${@:2}"; do
  "$1" -m pytest -q -o addopts= -p no:cacheprovider -m "not full" "$file" || bad=1
done; exit $bad' tests "$PYTHON" $TESTS
stage lossless 90 "$PYTHON" -m bench.gpu lossless
stage bf16 70 "$PYTHON" -m bench.gpu bf16
stage int4 60 "$PYTHON" -m bench.gpu int4
stage tiles 90 "$PYTHON" -m bench.gpu tiles
stage spans 70 "$PYTHON" -m bench.gpu spans
stage pair 80 "$PYTHON" -m bench.gpu pair
stage vllm 150 "$PYTHON" -m bench.gpu vllm
stage table 20 "$PYTHON" -m bench.gpu table
cat "$OUT/table.md"
