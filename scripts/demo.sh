#!/usr/bin/env bash
# The main job: trains the same small GPT for the same number of steps in four ways (synchronous data parallelism,
# DiLoCo, local SGD, one replica alone), prints one table and draws demo.png. Sets up and builds first.
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

rm -rf demo
mkdir demo
for seed in ${SEEDS:-0}; do
  for mode in ddp diloco local-sgd solo; do
    sample=0
    [ "$mode" != diloco ] || sample=400
    build/examples/train_gpt --data "$data" --mode "$mode" --steps "${STEPS:-1200}" --replicas "${REPLICAS:-2}" \
      --seed "$seed" --log "demo/$mode-$seed.jsonl" --sample "$sample" "$@" >"demo/$mode-$seed.txt"
  done
done

sed -n '/^Text from/,$p' "demo/diloco-$seed.txt"
.venv/bin/python scripts/plot.py demo demo.png
