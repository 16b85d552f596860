#!/usr/bin/env bash
# The whole path on real data, small enough for a laptop: collect in MuJoCo, train,
# evaluate, report; and the 4x4 grid. `make demo` runs it; it goes on where an
# interrupted one stopped.
set -euo pipefail

out=${DEMO_OUT:-demo-out}
started=$SECONDS

say() { printf '\n== %s\n' "$*"; }

mkdir -p "$out"

say "1/6 collect 40 episodes of cube-single with OGBench's scripted policy, into a store"
python -m pipeline collect cube-single-v0 --dataset-type play --episodes 40 --seed 0 \
  --workers 2 --discounts 0.99 --out "$out/store" --npz "$out/cube-single-play-v0.npz"

say "2/6 shard the same data from OGBench's npz, and check both stores"
python -m pipeline shard "$out/cube-single-play-v0.npz" --dataset cube-single-play \
  --discounts 0.99 --out "$out/store-from-npz"
python -m pipeline inspect "$out/store"
python -m pipeline verify "$out/store"
python -m pipeline verify "$out/store-from-npz"

say "3/6 train VAST on task 1"
python -m trainer train configs/demo.toml --store "$out/store" --task 1 \
  --out "$out/run"

say "4/6 evaluate in the environment"
python -m trainer evaluate "$out/run" --episodes 10 --all-steps

say "5/6 the 4x4 grid: what fixed horizons miss and stitching finds"
python -m trainer toy --out "$out/toy"

say "6/6 report"
python -m trainer report "$out/run" --out "$out/report"

say "done in $((SECONDS - started)) s"
cat <<END
What to look at:
  $out/report/report.html   learning curves, G's falling error, success beside the paper
  $out/toy/toy.png          value maps of the 4x4 grid
  $out/run/metrics.jsonl    every figure of training
A run this short seldom solves the task; the paper's are 250 times as long.
END
