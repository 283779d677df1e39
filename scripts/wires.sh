#!/usr/bin/env bash
# The demo's GPT by DiLoCo (AdamW inside, a round every 20 steps) with every wire there is, and with error feedback where
# it matters: prints the table of loss against bytes and draws wires.png. Takes what scripts/demo.sh has made.
# From the environment, as in demo.sh:  SEEDS="0 1 2"  STEPS=1200  REPLICAS=2  DATA=data/kjv.txt
# Arguments go to every run of build/examples/train_gpt.
set -euo pipefail
[ -z "${DATA:-}" ] || DATA=$(realpath "$DATA")
cd "$(dirname "$0")/.."
for needed in "${DATA:-data/kjv.txt}" build/examples/train_gpt; do
  [ -e "$needed" ] || { echo "wires: $needed is missing; run scripts/demo.sh first" >&2; exit 1; }
done

rm -rf wires
mkdir wires
for seed in ${SEEDS:-0 1 2}; do
  for wire in fp32 fp16 bf16 int8 fp8-e4m3 int4 nf4 e2m1 e3m0 top-k \
    'int4 --feedback 1' 'top-k --feedback 1' 'top-k --feedback 0.95'; do
    # shellcheck disable=SC2086  # a wire and its options
    build/examples/train_gpt --data "${DATA:-data/kjv.txt}" --steps "${STEPS:-1200}" --replicas "${REPLICAS:-2}" \
      --seed "$seed" --sample 0 --log "wires/${wire// /_}-$seed.jsonl" --wire $wire "$@" >/dev/null
  done
done
.venv/bin/python scripts/plot_wires.py wires wires.png
