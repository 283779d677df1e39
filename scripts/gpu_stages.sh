# The stages of gpu_check.sh, each a function that prints what it does, last the line for the table. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2154  # $build is set there

gpu_targets="outerloop_cuda test_cuda_kernels test_cuda_optimizer test_cuda_nccl bench_cuda_outer_step train_gpt_cuda"

# pack: what build_all takes from gpu_deps/ where the system lacks it; with configurations as find_package looks for.
pack() {
  local deps=gpu_deps header folder gtest=/usr/src/googletest/googletest
  rm -rf $deps
  mkdir -p $deps/include $deps/googletest $deps/lib/cmake
  for header in CLI/CLI.hpp nlohmann/json.hpp xxhash.h; do
    folder=$(folder_of "$header")
    [ -n "$folder" ] || { echo "pack: $header is missing: run scripts/setup.sh first" >&2; return 1; }
    cp -r "$folder/${header%%/*}" $deps/include/
  done
  folder=$(folder_of xxhash.h)
  cp "$folder/xxh3.h" $deps/include/ 2>/dev/null  # of which older versions of xxhash.h are the half
  [ -e $gtest/src/gtest-all.cc ] || { echo "pack: $gtest is missing: install libgtest-dev" >&2; return 1; }
  cp -r $gtest/include $gtest/src $deps/googletest/
  config CLI11 <<'EOF'
if(NOT TARGET CLI11::CLI11)
  add_library(CLI11::CLI11 INTERFACE IMPORTED GLOBAL)
  target_include_directories(CLI11::CLI11 INTERFACE ${deps}/include)
endif()
EOF
  config nlohmann_json <<'EOF'
if(NOT TARGET nlohmann_json::nlohmann_json)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED GLOBAL)
  target_include_directories(nlohmann_json::nlohmann_json INTERFACE ${deps}/include)
endif()
EOF
  config GTest <<'EOF'
if(NOT TARGET GTest::gtest_main)
  add_library(gpu_deps_gtest STATIC EXCLUDE_FROM_ALL
    ${deps}/googletest/src/gtest-all.cc ${deps}/googletest/src/gtest_main.cc)
  target_include_directories(gpu_deps_gtest SYSTEM PUBLIC ${deps}/googletest/include PRIVATE ${deps}/googletest)
  add_library(GTest::gtest ALIAS gpu_deps_gtest)
  add_library(GTest::gtest_main ALIAS gpu_deps_gtest)
endif()
EOF
  echo "pack: $deps/ holds $(du -sh $deps | cut -f1)"
}
# config NAME: what find_package(NAME) reads, from standard input.
config() {
  mkdir -p "gpu_deps/lib/cmake/$1"
  {
    # shellcheck disable=SC2016
    echo 'get_filename_component(deps "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)'
    cat
  } >"gpu_deps/lib/cmake/$1/$1Config.cmake"
}
# folder_of HEADER: where the compiler finds it; nothing if it does not.
folder_of() {
  echo "#include <$1>" | ${CXX:-g++} -std=c++20 -M -x c++ - 2>/dev/null | grep -m 1 -o "[^ ]*/$1" | sed "s|/$1\$||"
}

find_gpu() {
  command -v nvidia-smi >/dev/null || { echo "no GPU here: nvidia-smi is missing"; return 1; }
  nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader ||
    { echo "no GPU here: nvidia-smi fails"; return 1; }
}

torch_folder() {
  [ -z "${OUTERLOOP_TORCH:-}" ] || { echo "$OUTERLOOP_TORCH"; return; }
  local python
  for python in python3 .venv/bin/python; do
    "$python" -c 'import importlib.util as u, sys
torch = u.find_spec("torch")
sys.exit(1) if torch is None else print(torch.submodule_search_locations[0])' 2>/dev/null && return
  done
  return 1
}

# Those that this version of the project has; the others are told by the stages that want them.
build_all() {
  local torch arch deps="" header tool missing="" known targets=() target generator=() go_on=-k
  for tool in cmake "${CXX:-g++}" nvcc python3; do command -v "$tool" >/dev/null || missing+=" $tool"; done
  [ -z "$missing" ] || { echo "missing here:$missing"; return 1; }
  torch=$(torch_folder) || { echo "missing: torch, in python3 and in .venv; OUTERLOOP_TORCH=FOLDER names another"; return 1; }
  for header in gtest/gtest.h CLI/CLI.hpp nlohmann/json.hpp xxhash.h; do
    [ -z "${USE_GPU_DEPS:-}" ] && [ -n "$(folder_of "$header")" ] && continue
    [ -d gpu_deps ] || { echo "missing: $header; bring gpu_deps/, which scripts/gpu_check.sh --pack makes"; return 1; }
    deps=$PWD/gpu_deps
  done
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
  command -v ninja >/dev/null && generator=(-G Ninja) && go_on="-k 0"
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DOUTERLOOP_CUDA=ON -DOUTERLOOP_TORCH="$torch" \
    -DCMAKE_CUDA_ARCHITECTURES="${arch:-90}" -DCMAKE_PREFIX_PATH="$deps" || { echo "error: CMake failed"; return 1; }
  known=$(cmake --build "$build" --target help)
  for target in $gpu_targets; do
    if grep -qw "$target" <<<"$known"; then targets+=("$target"); else missing+=" $target"; fi
  done
  # shellcheck disable=SC2086
  cmake --build "$build" -j "$(nproc)" --target "${targets[@]}" -- $go_on || return 1
  [ -z "$missing" ] || { echo "missing: this version has no$missing"; return 1; }
  echo "for architecture ${arch:-90} with $torch"
}

# program NAME: its path; says so if there is none.
program() {
  find "$build" -name "$1" -type f -perm -u+x | grep . || { echo "missing: $1 was not built" >&2; return 1; }
}

# suite NAME: a GoogleTest program, of which at least one test must pass; one that skips everything has shown nothing.
suite() {
  local path said status=0 passed skipped
  path=$(program "$1") || return 1
  said=$build/logs/$1.said
  TORCH_FR_BUFFER_SIZE=0 "$path" 2>&1 | tee "$said" || status=1
  passed=$(sed -nE 's/^\[  PASSED  \] ([0-9]+) test.*/\1/p' "$said")
  skipped=$(sed -nE 's/^\[  SKIPPED \] ([0-9]+) test.*/\1/p' "$said")
  grep -E '^\[  FAILED  \] [^ ]+\.' "$said" | sort -u | sed 's/^\[  FAILED  \]/error: failed/'
  echo "${passed:-0} tests passed, ${skipped:-0} skipped, $(grep -cE '^\[  FAILED  \] [^ ]+\..*\)$' "$said") failed"
  [ $status = 0 ] && [ "${passed:-0}" -gt 0 ]
}

# bench SECONDS: begins no case after so many.
bench() {
  local path said=$build/logs/bench.said
  path=$(program bench_cuda_outer_step) || return 1
  "$path" --seconds "$1" 2>&1 | tee "$said" || return 1
  echo "results as on the CPU; targets: $(grep -c ': met)' "$said") met, $(grep -c ': MISSED)' "$said") missed"
}

# The same few steps on the GPU and on the CPU, two replicas, on a text that is here: our own sources.
training() {
  local path mode device bits=() text=$build/logs/text.txt log=$build/logs/training.jsonl
  path=$(program train_gpt_cuda) || return 1
  cat README.md src/*/*.[ch]pp include/outerloop/*.hpp tests/*/*.cpp >"$text"
  for mode in diloco ddp; do
    bits=()
    for device in cuda cpu; do
      "$path" --data "$text" --device $device --mode $mode --steps 40 --eval-every 40 --eval-windows 256 \
        --sample 0 --log "$log" --timeout 30 || return 1
      bits+=("$(sed -nE '/"kind":"result"/s/.*"validation_bits_per_byte":([0-9.]+).*/\1/p' "$log")")
    done
    echo "$mode: ${bits[0]} bits per byte on the GPU, ${bits[1]} on the CPU"
    awk -v a="${bits[0]}" -v b="${bits[1]}" 'BEGIN { d = a - b; exit !(a > 0 && d < 0.02 && d > -0.02) }' ||
      { echo "error: $mode trains otherwise on the GPU: ${bits[0]} and ${bits[1]} bits per byte"; return 1; }
  done
  echo "GPU and CPU agree in both modes, the last: ${bits[0]} and ${bits[1]} bits per byte"
}

# sanitizer TOOL: our kernels on ragged tensors of both types, each tensor an allocation of its own.
sanitizer() {
  local path
  command -v compute-sanitizer >/dev/null || { echo "missing: compute-sanitizer"; return 1; }
  path=$(program bench_cuda_outer_step) || return 1
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$1" --error-exitcode 9 "$path" --ours-only \
    --case 100000/7 --working-set-mib 0 --batch-ms 0
}

export gpu_targets
export -f find_gpu torch_folder folder_of build_all program suite bench training sanitizer
