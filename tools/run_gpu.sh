#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the programs of a bundle on a machine with a GPU and keeps what they print. A copy travels in
# the bundle, so nothing else is needed there but the driver (and Python for racecheck). Golden sets
# in shared/golden beside it are used too.
# shellcheck disable=SC2317  # steps are called by name
set -euo pipefail

usage() {
  cat <<'EOT'
usage: run_gpu.sh --bundle DIR --out DIR [STEP...]

  STEP   check    do the programs start, and what is this machine
         test     the op suite and the kernel tests (GoogleTest; GTEST_FILTER limits them)
         verify   every golden set of the bundle, on the device
         bench    all op benches (BENCH_FILTER: only names with that part)
         memcheck synccheck
                  compute-sanitizer over the tests (GTEST_FILTER limits them)
         racecheck
                  the same for a reduced run of every suite (GTEST_FILTER limits suites), which
                  passes when racecheck_known.txt explains every report; tests of
                  racecheck_left_out.txt do not run; RACE_JOBS processes at once (4), RACE_LIMIT seconds a
                  suite (120), RACE_TOTAL seconds in all (1800)
         Without a step: check test verify bench.

--out receives text, GoogleTest XML and JSON lines. The status is that of the worst step.
EOT
}

die() {
  printf 'run_gpu: %s\n' "$1" >&2
  exit 2
}

bundle='' out=''
steps=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --bundle | --out)
      [[ $# -ge 2 ]] || die "$1 needs a folder"
      printf -v "${1#--}" '%s' "$2"
      shift 2
      ;;
    check | test | verify | bench | memcheck | racecheck | synccheck)
      steps+=("$1")
      shift
      ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && die "unknown argument: $1" ;;
  esac
done
[[ -d $bundle ]] || die "no bundle: $bundle"
[[ -n $out ]] || die "say where the results go: --out DIR"
[[ ${#steps[@]} -gt 0 ]] || steps=(check test verify bench)
mkdir -p "$out"
bundle=$(cd "$bundle" && pwd)
out=$(cd "$out" && pwd)
programs=$bundle/programs
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

unpack() {
  if command -v xz >/dev/null; then
    tar -xJmf "$programs.tar.xz" -C "$bundle"
  else
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
      "$programs.tar.xz" "$bundle"
    touch "$programs"
  fi
}

if [[ ! -d $programs || $programs.tar.xz -nt $programs ]]; then
  unpack
fi

# The output of a program, on the screen and in a file.
keep() { # FILE COMMAND...
  local file=$out/$1
  shift
  "$@" 2>&1 | tee "$file"
  return "${PIPESTATUS[0]}"
}

describe() {
  printf 'bundle: %s\n' "$(cat "$bundle/commit.txt" 2>/dev/null || echo unknown)"
  printf 'system: %s\n' "$(uname -srm)"
  command -v nvidia-smi >/dev/null &&
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory \
      --format=csv,noheader
  return 0
}

starts() { # PROGRAM ARGUMENT...
  [[ -x $programs/$1 ]] || return 0
  "$programs/$1" "${@:2}" >/dev/null 2>"$out/start.txt" && return
  printf 'does not start here: %s\n' "$1"
  cat "$out/start.txt"
  return 1
}

step_check() {
  keep environment.txt describe
  local status=0
  starts tessera --version || status=1
  starts op_suite_test --gtest_list_tests || status=1
  starts cuda_test --gtest_list_tests || status=1
  starts cuda_engine_test --gtest_list_tests || status=1
  starts cuda_bench --list || status=1
  rm -f "$out/start.txt"
  [[ $status -eq 0 ]] && printf 'every program starts\n'
  return "$status"
}

# Tests look for models/ in their working directory, which the bundle holds.
step_test() {
  local program status=0
  for program in op_suite_test cuda_test cuda_engine_test; do
    [[ -x $programs/$program ]] || continue
    (cd "$bundle" && GTEST_BRIEF=1 keep "$program.txt" "$programs/$program" \
      "--gtest_output=xml:$out/$program.xml") || status=1
  done
  return "$status"
}

step_verify() {
  local model name status=0 options device=()
  [[ -x $programs/cuda_test ]] && device=(--device cuda)
  for model in "$bundle"/models/*/ "$bundle"/../shared/golden/*/; do
    options=("${device[@]}")
    if [[ -f $model/reference.json ]]; then
      options+=(--reference "$model/reference.json")
    elif [[ ! -f $model/golden.safetensors ]]; then
      continue
    fi
    name=$(basename "$model")
    keep "verify_$name.txt" "$programs/tessera" verify "${options[@]}" "$model" || status=1
  done
  return "$status"
}

step_bench() {
  local options=(--json "$out/cuda_bench.jsonl")
  [[ -n ${BENCH_FILTER:-} ]] && options+=(--filter "$BENCH_FILTER")
  keep cuda_bench.txt "$programs/cuda_bench" "${options[@]}"
}

sanitize_shard() { # TOOL INDEX COUNT
  cd "$bundle"
  GTEST_SHARD_INDEX=$2 GTEST_TOTAL_SHARDS=$3 GTEST_BRIEF=1 compute-sanitizer --tool "$1" \
    --error-exitcode 1 --kernel-regex kns=tessera --launch-timeout 120 "$programs/cuda_test" \
    "--gtest_filter=${GTEST_FILTER:-*}-DelayedProducerTest.*" >"$out/$1.$2.part" 2>&1
}

require_sanitizer() {
  command -v compute-sanitizer >/dev/null || die "compute-sanitizer is not on this machine"
  compute-sanitizer --version | grep -i version
}

# Leaks are not looked for: contexts and pinned memory live as long as the program. The tools run one
# kernel after the other, so the tests that provoke an early read cannot work under them.
sanitize() { # TOOL
  require_sanitizer
  local shards=$((($(nproc) + 1) / 2)) index status=0 jobs=()
  for ((index = 0; index < shards; ++index)); do
    sanitize_shard "$1" "$index" "$shards" &
    jobs+=($!)
  done
  for index in "${jobs[@]}"; do
    wait "$index" || status=1
  done
  cat "$out/$1".*.part >"$out/$1.txt"
  rm "$out/$1".*.part
  grep -E 'ERROR SUMMARY|FAILED|PASSED|WARNING SUMMARY' "$out/$1.txt"
  return "$status"
}

step_memcheck() { sanitize memcheck; }
step_synccheck() { sanitize synccheck; }

step_racecheck() {
  require_sanitizer
  "$here/racecheck.py" "$programs/cuda_test" --folder "$bundle" --out "$out" \
    --filter "${GTEST_FILTER:-*}" --jobs "${RACE_JOBS:-4}" --limit "${RACE_LIMIT:-120}" \
    --total "${RACE_TOTAL:-1800}"
}

status=0
for step in "${steps[@]}"; do
  printf '\n== %s\n' "$step"
  "step_$step" || {
    status=1
    printf '== %s: FAILED\n' "$step"
  }
done
exit "$status"
