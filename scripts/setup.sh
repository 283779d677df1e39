#!/usr/bin/env bash
# All that a build needs, and the build: Debian packages, a .venv with libtorch and matplotlib, CMake. A call that finds
# everything in place takes a second. From the environment:
#   OUTERLOOP_TORCH=FOLDER    use this libtorch (the `torch` folder of a pip wheel, or an unpacked zip); installs none
#   OUTERLOOP_SANITIZE=LIST   build the tests with these sanitizers: address,undefined or thread
#   OUTERLOOP_BUILD=FOLDER    where to build (default: build)
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# run HINT COMMAND...: silent if all goes well; else the end of what it printed, and what to do.
run() {
  local hint=$1
  shift
  "$@" >"$log" 2>&1 </dev/null || { tail -n 40 "$log" >&2; fail "failed: $*" "$hint"; }
}

# A package is there if the thing we want from it is: so another system, or another way to install, is as good.
commands="g++:g++ cmake:cmake ninja:ninja-build ccache:ccache bible:bible-kjv"
headers="gtest/gtest.h:libgtest-dev benchmark/benchmark.h:libbenchmark-dev nlohmann/json.hpp:nlohmann-json3-dev
  CLI/CLI.hpp:libcli11-dev xxhash.h:libxxhash-dev"

find_python() { [ -x /usr/bin/python3 ] && echo /usr/bin/python3 || command -v python3; }

missing_packages() {
  local pair
  for pair in $commands; do command -v "${pair%%:*}" >/dev/null || echo "${pair##*:}"; done
  if command -v g++ >/dev/null; then
    for pair in $headers; do printf '#if !__has_include(<%s>)\n"%s"\n#endif\n' "${pair%%:*}" "${pair##*:}"; done |
      g++ -E -P -x c++ - | tr -d '"'
  else
    for pair in $headers; do echo "${pair##*:}"; done
  fi
  "$(find_python)" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

packages=$(missing_packages | xargs)
if [ -n "$packages" ]; then
  command -v apt-get >/dev/null || fail "missing: $packages (names of Debian packages)" \
    "There is no apt-get here: install them by other means, then call this again."
  [ "$(id -u)" = 0 ] || fail "missing: $packages" \
    "Not root, so not installed. Run: sudo apt-get update && sudo apt-get install -y --no-install-recommends $packages"
  say "installing $packages"
  export DEBIAN_FRONTEND=noninteractive
  run "Is a package mirror reachable? See /etc/apt/sources.list and /etc/apt/sources.list.d." apt-get update
  # shellcheck disable=SC2086
  run "Install these by hand, then call this again: $packages" apt-get install -y --no-install-recommends $packages
  packages=$(missing_packages | xargs)
  [ -z "$packages" ] || fail "still missing after apt-get install: $packages" "Is this Debian 12 or newer?"
fi
python=$(find_python)

# install NAME ARGUMENTS...: pip-installs into .venv once. The mark is written last, so that what was interrupted is done
# again, all of it, however complete it looks.
install() {
  local mark=.venv/installed/$1
  shift
  [ "$(cat "$mark" 2>/dev/null)" != "$*" ] || return 0
  say "installing $* into .venv"
  rm -f "$mark"
  run "Is PyPI reachable, and is there room on the disk (2 GB; 8 GB beside an NVIDIA GPU)? $($python --version) must be 3.10 or newer." \
    .venv/bin/python -m pip --disable-pip-version-check install --force-reinstall "$@"
  echo "$*" >"$mark"
}

if [ ! -e .venv/installed/venv ]; then
  run "Delete .venv and call this again." "$python" -m venv --clear .venv
  mkdir -p .venv/installed
  touch .venv/installed/venv
fi
if [ -z "${OUTERLOOP_TORCH:-}" ]; then
  if command -v nvidia-smi >/dev/null || [ -e /dev/nvidia0 ]; then
    install torch torch==2.11.0
  else
    # What a CPU program loads of a CUDA build; the full set is four times as large.
    install torch --no-deps torch==2.11.0 nvidia-cuda-cupti==13.0.85 nvidia-cuda-runtime==13.0.96
  fi
else
  [ -d "$OUTERLOOP_TORCH" ] || fail "OUTERLOOP_TORCH=$OUTERLOOP_TORCH is not a folder." \
    "Give the 'torch' folder of a pip wheel, or an unpacked libtorch zip; or unset it to have one installed into .venv."
  OUTERLOOP_TORCH=$(realpath "$OUTERLOOP_TORCH")
fi
install plot 'matplotlib>=3.6,<4'

build=${OUTERLOOP_BUILD:-build}
target=all
options=(-DOUTERLOOP_TORCH="${OUTERLOOP_TORCH:-}" -DOUTERLOOP_SANITIZE="${OUTERLOOP_SANITIZE:-}" -DCMAKE_BUILD_TYPE=Release)
if [ -n "${OUTERLOOP_SANITIZE:-}" ]; then
  # Optimised just enough to run fast; NDEBUG is not set, so assertions count too.
  options+=(-DCMAKE_CXX_FLAGS_RELEASE=-O1)
  target=tests
fi
# The mark holds the settings, so that other ones start from a fresh cache, which remembers nothing of the old libtorch.
if [ ! -e "$build/build.ninja" ] || [ "$(cat "$build/settings" 2>/dev/null)" != "${options[*]}" ]; then
  say "configuring $build/"
  rm -f "$build/settings"
  run "The message above names what is missing; a damaged build folder is mended by deleting $build/." \
    cmake --fresh -S . -B "$build" -G Ninja "${options[@]}"
  echo "${options[*]}" >"$build/settings"
fi
if [ -t 1 ]; then
  cmake --build "$build" -j "$(nproc)" --target $target || fail "The build failed, see above."
else
  [ -e "$build/built" ] || say "building in $build/ (minutes, the first time)"
  run "The build failed, see above. If it was killed for want of memory: 2 GB for each of $(nproc) compilers are needed." \
    cmake --build "$build" -j "$(nproc)" --target $target
fi
touch "$build/built"
