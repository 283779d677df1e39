#!/usr/bin/env bash
# The main job: trains the same small GPT by synchronous data parallelism, by DiLoCo with rounds that are frequent and small
# (A: every 6 steps, 4 bits per element; and for 10 % more steps) or rare (B: every 20, 8 bits), and by one replica alone,
# all with Muon inside; prints one table and draws demo.png. Sets up and builds first.
# From the environment:
#   SEEDS="0 1 2"   one run of each kind per seed (default: 0)
#   STEPS=1200      inner steps
#   REPLICAS=2      replica processes
#   DATA=FILE       any text of 64 KiB or more (default: the King James Bible, from the Debian package bible-kjv)
# Arguments go to every run of build/examples/train_gpt, see its --help.
set -euo pipefail
[ -z "${DATA:-}" ] || DATA=$(realpath "$DATA")
cd "$(dirname "$0")/.."
scripts/setup.sh

data=${DATA:-data/kjv.txt}
if [ ! -e "$data" ] && [ -z "${DATA:-}" ]; then
  mkdir -p data
  bible Gen1:1-Rev22:21 </dev/null >"$data.part"
  [ "$(wc -c <"$data.part")" -gt 4000000 ] || {
    echo "demo: the program 'bible' gave less than 4 MB of text, see $data.part; or give any text: DATA=FILE $0" >&2
    exit 1
  }
  mv "$data.part" "$data"
fi

steps=${STEPS:-1200} longer=$((${STEPS:-1200} * 11 / 10))
rm -rf demo
mkdir demo

# run NAME OPTIONS...: one method, with one seed.
run() {
  local name=$1
  shift
  build/examples/train_gpt --data "$data" --replicas "${REPLICAS:-2}" --seed "$seed" --inner muon --lr 0.008 \
    --weight-decay 0.02 --lr-decay linear --log "demo/$name-$seed.jsonl" "$@" >"demo/$name-$seed.txt"
}

for seed in ${SEEDS:-0}; do
  same=(--steps "$steps" --warm-up $((steps / 6)) --sample 0)
  often=(--sync-every 6 --outer-lr 0.9 --outer-momentum 0.3 --wire int4)
  run ddp --mode ddp "${same[@]}" "$@"
  run a "${often[@]}" "${same[@]}" --sample 400 "$@"
  run a-longer "${often[@]}" --steps "$longer" --warm-up $((longer / 6)) --sample 0 "$@"
  run b --sync-every 20 --outer-lr 0.7 --outer-momentum 0.5 --wire int8 "${same[@]}" "$@"
  run solo --mode solo "${same[@]}" "$@"
done

sed -n '/^Text from/,$p' "demo/a-$seed.txt"
.venv/bin/python scripts/plot.py demo demo.png
