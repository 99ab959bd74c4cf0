#!/usr/bin/env bash
# Set up the tools that `paceline bench --peers ROOT` compares with, and convert one pair of checkpoints for them.
#
#   bench/peers/setup.sh [TOOL|all] ROOT --model DIR --draft DIR [--weights 4-bit,8-bit] \
#     [--gguf MODEL DRAFT] [--server FILE]
#
# TOOL: paceline, transformers, openvino, llamacpp, nodellama, ikllama. --weights: those that are converted and
# compared, of bf16, 8-bit and 4-bit. --gguf: two files for nodellama and ikllama, which convert none (default:
# llamacpp's own of 4 bits), and which Paceline then serves, too. --server: the llama-server that you built of
# ik_llama.cpp; `all` leaves it out without.
#
# PYTHON (default: .venv/bin/python of this repository) is an interpreter with Paceline installed. A second call with
# the same ROOT keeps environments and builds, and converts again.
set -euo pipefail

HERE=$(cd "$(dirname "$0")" && pwd)
USAGE="usage: bench/peers/setup.sh [paceline|transformers|openvino|llamacpp|nodellama|ikllama|all] ROOT --model DIR \
  --draft DIR [--weights bf16,8-bit,4-bit] [--gguf MODEL DRAFT] [--server FILE]"
OPENVINO=(openvino-genai==2026.4.1.0 'optimum-intel[openvino]==2.2.0' torch==2.13.0)
LLAMACPP=llama-cpp-python==0.3.36 # its source package brings all of llama.cpp
NODELLAMA=node-llama-cpp@3.22.1 # llama.cpp v0.5.0, built beforehand
PYTHON=${PYTHON:-$HERE/../../.venv/bin/python}
export HF_HUB_OFFLINE=1

die() { echo "setup.sh: $1" >&2; exit 2; }
say() { echo "setup.sh: $1" >&2; }

WHICH=all ROOT='' MODEL='' DRAFT='' SERVER='' WEIGHTS=bf16,8-bit,4-bit GGUF=()
while [ $# -gt 0 ]; do
  case $1 in
    paceline | transformers | openvino | llamacpp | nodellama | ikllama | all) WHICH=$1 ;;
    --weights)
      [[ ,${2:-}, =~ ^(,(bf16|8-bit|4-bit))+,$ ]] || die "--weights are of bf16, 8-bit and 4-bit; $USAGE"
      WEIGHTS=$2; shift ;;
    --gguf)
      [ -f "${2:-}" ] && [ -f "${3:-}" ] || die "--gguf needs two files, of the model and of the draft; $USAGE"
      GGUF=("$(realpath "$2")" "$(realpath "$3")"); shift 2 ;;
    --server)
      [ -x "${2:-}" ] || die "--server needs the program llama-server; $USAGE"
      SERVER=$(realpath "$2"); shift ;;
    --model | --draft)
      [ $# -gt 1 ] || die "$1 needs a directory; $USAGE"
      if [ "$1" = --model ]; then MODEL=$2; else DRAFT=$2; fi
      shift ;;
    -h | --help) echo "$USAGE"; exit ;;
    -*) die "unknown option $1; $USAGE" ;;
    *) [ -z "$ROOT" ] || die "there is a second ROOT, $1; $USAGE"; ROOT=$1 ;;
  esac
  shift
done
[ -n "$ROOT" ] && [ -n "$MODEL" ] && [ -n "$DRAFT" ] || die "$USAGE"
for DIR in "$MODEL" "$DRAFT"; do
  [ -f "$DIR/config.json" ] || die "$DIR holds no config.json; give a local checkpoint in Hugging Face layout."
done
command -v "$PYTHON" > /dev/null || die "$PYTHON is not there; set PYTHON to the interpreter that has Paceline."
mkdir -p "$ROOT"
ROOT=$(cd "$ROOT" && pwd) MODEL=$(cd "$MODEL" && pwd) DRAFT=$(cd "$DRAFT" && pwd)

# Another pair: what was converted from the last one counts as not set up.
SOURCE="$MODEL $DRAFT"
[ "$(cat "$ROOT/models/source" 2> /dev/null)" = "$SOURCE" ] || rm -rf "$ROOT/models"
mkdir -p "$ROOT/models"
echo "$SOURCE" > "$ROOT/models/source"

paceline() {
  "$PYTHON" -c 'import paceline' || die "$PYTHON lacks Paceline; set PYTHON to the interpreter that has it."
}

transformers() {
  "$PYTHON" -c 'import torch, transformers' || die "$PYTHON lacks transformers; set PYTHON to the one with Paceline."
}

openvino() {
  local to=$ROOT/models/openvino role weights
  if [ ! -e "$ROOT/openvino/ready" ]; then
    say "installing OpenVINO GenAI into $ROOT/openvino"
    "$PYTHON" -m venv --clear "$ROOT/openvino"
    "$ROOT/openvino/bin/pip" install -q "${OPENVINO[@]}"
    # the one that comes along expects a CUDA build of torch: "operator torchvision::nms does not exist"
    "$ROOT/openvino/bin/pip" uninstall -q -y torchvision
    touch "$ROOT/openvino/ready"
  fi
  rm -rf "$to"
  for weights in $(named bf16 fp16) $(named 8-bit int8) $(named 4-bit int4); do
    for role in model draft; do
      say "converting the $role for OpenVINO, $weights"
      "$ROOT/openvino/bin/optimum-cli" export openvino --model "$(source_of $role)" \
        --task text-generation-with-past --weight-format $weights $([ $weights = int4 ] && echo --group-size 64 --ratio 1.0) \
        "$to/$role-$weights" > "$ROOT/openvino/export.log" 2>&1 \
        || die "the export failed; see $ROOT/openvino/export.log."
    done
  done
}

llamacpp() {
  local at=$ROOT/llamacpp to=$ROOT/models/llamacpp role
  mkdir -p "$at" "$to"
  if [ ! -e "$at/source/ready" ]; then
    say "fetching the source of llama.cpp"
    rm -rf "$at/source" && mkdir "$at/source"
    # without build isolation pip would need scikit-build-core here to read the package's metadata
    "$PYTHON" -m pip download -q --no-deps --no-binary=llama-cpp-python -d "$at" "$LLAMACPP"
    tar xzf "$at"/llama_cpp_python-*.tar.gz -C "$at/source" --strip-components=1
    "$PYTHON" -m pip install -q --no-deps --upgrade --target "$at/lib" sentencepiece
    touch "$at/source/ready"
  fi
  local source=$at/source/vendor/llama.cpp
  say "building llama.cpp (ten minutes on one core, the first time)"
  cmake -S "$source" -B "$at/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF > "$at/build.log" 2>&1 \
    && nice -n 19 cmake --build "$at/build" -j"${JOBS:-1}" --target llama-server llama-quantize >> "$at/build.log" 2>&1 \
    || die "the build failed; see $at/build.log."
  for role in model draft; do
    say "converting the $role for llama.cpp"
    { PYTHONPATH=$at/lib "$PYTHON" "$HERE/to_gguf.py" "$source" "$(source_of $role)" \
      --outtype bf16 --outfile "$to/$role-bf16.gguf" \
      && "$at/build/bin/llama-quantize" "$to/$role-bf16.gguf" "$to/$role-q8_0.gguf" Q8_0 1 \
      && "$at/build/bin/llama-quantize" "$to/$role-bf16.gguf" "$to/$role-q4_k_m.gguf" Q4_K_M 1; } > "$at/convert.log" 2>&1 \
      || die "the conversion failed; see $at/convert.log."
  done
}

nodellama() {
  mkdir -p "$ROOT/nodellama"
  say "installing node-llama-cpp into $ROOT/nodellama"
  npm install --silent --no-fund --no-audit --ignore-scripts --prefix "$ROOT/nodellama" "$NODELLAMA" \
    || die "npm could not install $NODELLAMA; it needs Node.js 20 or later."
  link_gguf nodellama
}

ikllama() {
  [ -n "$SERVER" ] || die "ikllama needs --server, the llama-server that you built of ik_llama.cpp."
  mkdir -p "$ROOT/ikllama"
  ln -sf "$SERVER" "$ROOT/ikllama/llama-server"
  link_gguf ikllama
}

# The files of this tool: those of --gguf, or llamacpp's.
link_gguf() {
  local to=$ROOT/models/$1 role file
  mkdir -p "$to"
  for role in model draft; do
    file=${GGUF[$([ $role = draft ] && echo 1 || echo 0)]:-$ROOT/models/llamacpp/$role-q4_k_m.gguf}
    [ -f "$file" ] || die "$file is not there; set llamacpp up first, or give --gguf MODEL DRAFT."
    ln -sf "$file" "$to/$role.gguf"
  done
}

# The second word where --weights has the first.
named() { if [[ ,$WEIGHTS, == *,$1,* ]]; then echo "$2"; fi; }

source_of() { if [ "$1" = model ]; then echo "$MODEL"; else echo "$DRAFT"; fi; }

if [ "$WHICH" = all ]; then
  transformers; openvino; llamacpp; nodellama; if [ -n "$SERVER" ]; then ikllama; fi
else
  "$WHICH"
fi
if [ ${#GGUF[@]} -gt 0 ]; then link_gguf paceline; fi
"$PYTHON" "$HERE/register.py" "$ROOT" "$MODEL" "$DRAFT" "$WEIGHTS"
say "wrote $ROOT/peers.json"
