#!/usr/bin/env bash
# What only a GPU can tell, in one command of at most seven minutes: builds for the GPU of this machine and runs the
# tests on it, one rank over NCCL, the benches, a short training and compute-sanitizer. Needs no network, but nvcc,
# CMake, g++ and a Python that has torch. All stages run, whatever fails; a table at the end tells how each went.
#   scripts/gpu_check.sh          on the machine with the GPU
#   scripts/gpu_check.sh --pack   before that, where scripts/setup.sh has been run: copies into gpu_deps/, to be taken
#                                 along, what the other may lack: GoogleTest, CLI11, nlohmann-json, xxhash
# From the environment:
#   OUT=out-gpu               folder for table.txt, bench.txt and log.txt
#   LIMIT=420                 seconds for everything
#   BUILD_LIMIT=200           of them for the build
#   OUTERLOOP_TORCH=FOLDER    the `torch` folder to use instead of that of python3 or .venv
#   USE_GPU_DEPS=1            take all of gpu_deps/, also what the system has: to try out what --pack made
#   OUTERLOOP_BUILD=FOLDER    where to build (default: build-gpu-check)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/gpu_stages.sh

if [ "${1:-}" = --pack ]; then
  pack
  exit
elif [ $# -gt 0 ]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
fi

out=${OUT:-out-gpu}
limit=${LIMIT:-420}
export build=${OUTERLOOP_BUILD:-build-gpu-check}
logs=$build/logs
mkdir -p "$out" "$logs" || exit 1
rm -f "$logs"/*
: >"$out/log.txt"
# So that nothing of an earlier build is run where this one fails.
for target in $gpu_targets; do find "$build" -name "$target" -type f -perm -u+x -delete; done
[ -x /usr/local/cuda/bin/nvcc ] && PATH=$PATH:/usr/local/cuda/bin
rows=()
failed=0

# row NAME RESULT SECONDS LINE: into the table, which is written anew each time: it is there whatever happens next.
row() {
  rows+=("$(printf '%-22s %-8s %4s s  %s' "$1" "$2" "$3" "${4:0:110}")")
  [ "$2" = passed ] || failed=$((failed + 1))
  printf '%s\n' "${rows[@]}" >"$out/table.txt"
}

# told LOG: the line that says most: the first that tells of an error, or the last.
told() {
  grep -m 1 -E 'rror:|rror [0-9]|WRONG|^missing|^no GPU' "$1" || grep -v '^ *$' "$1" | tail -n 1
}

# stage NAME LEAST MOST COMMAND...: runs it for at most MOST seconds; not at all if fewer than LEAST are left.
stage() {
  local name=$1 least=$2 most=$3 start=$SECONDS left=$((limit - SECONDS)) log status=0
  shift 3
  log=$logs/${name// /-}.log
  if [ "$left" -lt "$least" ]; then
    row "$name" skipped 0 "skipped for time: $left s are left, it needs $least"
    return 1
  fi
  [ "$most" -le "$left" ] || most=$left
  printf '== %s (at most %d s)\n' "$name" "$most"
  timeout -k 5 "$most" bash -o pipefail -c '"$@"' stage "$@" >"$log" 2>&1 </dev/null || status=$?
  { printf '\n== %s\n' "$name"; cat "$log"; } >>"$out/log.txt"
  case $status in
    0) row "$name" passed $((SECONDS - start)) "$(grep -v '^ *$' "$log" | tail -n 1)" ;;
    124 | 137) row "$name" FAILED $((SECONDS - start)) "stopped after $most s: $(tail -n 1 "$log")" ;;
    *) row "$name" FAILED $((SECONDS - start)) "$(told "$log")" ;;
  esac
  return "$status"
}

gpu_there=no
# on_gpu NAME...: a stage that has nothing to say without a GPU.
on_gpu() {
  if [ $gpu_there = yes ]; then
    stage "$@"
  else
    row "$1" skipped 0 "there is no GPU here"
  fi
}

stage "gpu" 1 20 find_gpu && gpu_there=yes
stage "build" 60 "${BUILD_LIMIT:-200}" build_all
on_gpu "kernels" 10 60 suite test_cuda_kernels
on_gpu "optimizer" 10 60 suite test_cuda_optimizer
on_gpu "nccl" 10 40 suite test_cuda_nccl
on_gpu "bench" 15 70 bench 40
cp "$logs/bench.log" "$out/bench.txt" 2>/dev/null
on_gpu "training" 15 60 training
for tool in memcheck racecheck initcheck synccheck; do
  on_gpu "sanitizer $tool" 15 40 sanitizer $tool
done

printf '\n%-22s %-8s %6s  %s\n' stage result time "what it said"
cat "$out/table.txt"
printf '%d of %d stages passed, %d s; logs are in %s\n' $((${#rows[@]} - failed)) ${#rows[@]} $SECONDS "$out"
[ $failed = 0 ]
