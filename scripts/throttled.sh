#!/usr/bin/env bash
# bench_overlap over a real network that is slow: two namespaces, a replica in each, joined by two cables, an open one
# and one that tc throttles in both directions. Arguments go to bench_overlap, see its --help. Root is needed, and
# everything is taken down again however this ends. From the environment:
#   RATE=100mbit             of the slow cable; the bench takes so many steps for a window as this link asks for
#   OUTERLOOP_BUILD=FOLDER   where the program is (default: build)
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'throttled: %s\n' "$@" >&2; exit 1; }

rate=${RATE:-100mbit}
program=${OUTERLOOP_BUILD:-build}/bench/bench_overlap
[ -x "$program" ] || fail "$program is missing: scripts/setup.sh, or cmake --build ... --target bench_overlap"
[ "$(id -u)" = 0 ] || fail "Namespaces and tc are root's. Run: sudo $0"
for command in ip tc; do command -v $command >/dev/null || fail "$command is missing (Debian: iproute2)"; done

spaces=("outerloop-$$-0" "outerloop-$$-1")
declare -A subnet=([open]=10.117.0 [slow]=10.117.1)
replicas=()
# shellcheck disable=SC2317  # it is the trap that calls it
clean_up() {
  trap - EXIT
  for replica in "${replicas[@]}"; do kill "$replica" 2>/dev/null || true; done
  for replica in "${replicas[@]}"; do wait "$replica" 2>/dev/null || true; done
  for space in "${spaces[@]}"; do ip netns delete "$space" 2>/dev/null || true; done  # cables go with them
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

for space in "${spaces[@]}"; do ip netns add "$space" || fail "This machine permits no network namespaces."; done
for cable in open slow; do
  ip link add "$cable" netns "${spaces[0]}" type veth peer name "$cable" netns "${spaces[1]}"
done
for rank in 0 1; do
  inside=(ip netns exec "${spaces[rank]}")
  "${inside[@]}" ip link set lo up
  # 30 kB at a time, within tbf's burst: it would cut larger ones into packets of 1.5 kB, and wake the receiver for each.
  for cable in open slow; do
    "${inside[@]}" ip address add "${subnet[$cable]}.$((rank + 1))/24" dev $cable
    "${inside[@]}" ip link set $cable gso_max_size 30000 up
  done
  # Packets wait for at most 50 ms; what is sent faster is lost, as on any link, and TCP adapts.
  "${inside[@]}" tc qdisc add dev slow root tbf rate "$rate" burst 32kb latency 50ms
done

for rank in 0 1; do
  ip netns exec "${spaces[rank]}" env RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR="${subnet[open]}.1" \
    MASTER_PORT=29500 GLOO_SOCKET_IFNAME=open "$program" --throttled slow "$@" &  # both exec: signals reach the program
  replicas+=($!)
done
status=0
wait -n || status=$?  # one that fails takes the other with it
[ $status != 0 ] || wait -n || status=$?
exit $status
