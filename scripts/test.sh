#!/usr/bin/env bash
# Sets up, builds and runs the tests; arguments go to ctest, for example  scripts/test.sh -R Round
# OUTERLOOP_SANITIZE=address,undefined or thread does the same under these sanitizers, in a build folder of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

export OUTERLOOP_SANITIZE=${OUTERLOOP_SANITIZE:-}
case $OUTERLOOP_SANITIZE in
  '')
    build=build
    ;;
  address,undefined)
    build=build-asan
    export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1
    export LSAN_OPTIONS=suppressions=$PWD/tests/suppressions/lsan.txt:print_suppressions=0
    export UBSAN_OPTIONS=print_stacktrace=1
    ;;
  thread)
    build=build-tsan
    # libtorch is not instrumented: TSan sees none of its atomics (reference counts, queues), only its calls of memcpy,
    # free and the like, and takes those for races. So accesses made inside libtorch are left out; all of ours count.
    # What is seen all the same is named in tests/suppressions.
    export TSAN_OPTIONS=suppressions=$PWD/tests/suppressions/tsan.txt:ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1
    ;;
  *)
    echo "OUTERLOOP_SANITIZE=$OUTERLOOP_SANITIZE is unknown: use address,undefined or thread, or leave it empty." >&2
    exit 2
    ;;
esac

OUTERLOOP_BUILD=$build scripts/setup.sh
exec ctest --test-dir "$build" -j2 --output-on-failure --no-tests=error "$@"
