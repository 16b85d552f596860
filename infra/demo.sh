#!/usr/bin/env bash
# The whole path on real data, small enough for a laptop: collect in MuJoCo, train,
# evaluate and report, for a maze that is solved and a robot arm that is not solved yet.
# Then the 4x4 grid. `make demo` runs this script; repeated, it continues where an
# interrupted run stopped.
set -euo pipefail

out=${DEMO_OUT:-demo-out}
# This task is chosen because it is solved; README.md has its results.
maze_task=1
started=$SECONDS

say() { printf '\n== %s\n' "$*"; }

mkdir -p "$out"

say "1/7 collect 400 episodes of pointmaze-medium and 40 of cube-single, with OGBench's" \
  "scripted policies, into stores"
python -m pipeline collect pointmaze-medium-v0 --dataset-type navigate --episodes 400 \
  --seed 0 --workers 2 --discounts 0.99 --out "$out/stores/maze"
python -m pipeline collect cube-single-v0 --dataset-type play --episodes 40 --seed 0 \
  --workers 2 --discounts 0.99 --out "$out/stores/cube" \
  --npz "$out/cube-single-play-v0.npz"

say "2/7 shard the cube's data from OGBench's npz as well, and check all stores"
python -m pipeline shard "$out/cube-single-play-v0.npz" --dataset cube-single-play \
  --discounts 0.99 --out "$out/stores/cube-from-npz"
python -m pipeline inspect "$out/stores/cube"
for store in maze cube cube-from-npz; do
  python -m pipeline verify "$out/stores/$store"
done

say "3/7 train VAST on task $maze_task of the maze, and evaluate it in 10 episodes"
python -m trainer train configs/pointmaze-medium-navigate.toml \
  --store "$out/stores/maze" --task "$maze_task" --out "$out/runs/maze"
python -m trainer evaluate "$out/runs/maze" --episodes 10

say "4/7 draw the maze: V, sub-goals, and the policy's paths in those episodes"
python -m trainer subgoals "$out/runs/maze" --store "$out/stores/maze" --episodes 10

say "5/7 the same agent on task 1 of the cube, in far fewer updates than it needs"
python -m trainer train configs/demo.toml --store "$out/stores/cube" --task 1 \
  --out "$out/runs/cube"
python -m trainer evaluate "$out/runs/cube" --episodes 10

say "6/7 the 4x4 grid: what a horizon of three misses and stitching finds"
python -m trainer toy --out "$out/toy"

say "7/7 report"
outcome=$(python -m trainer report "$out/runs/maze" "$out/runs/cube" --out "$out/report")

say "done in $((SECONDS - started)) s"
cat <<END
$outcome

What to look at:
  $out/report/report.html          learning curves, success, the maze
  $out/runs/maze/subgoals/         V over the maze, and the policy's paths: maze_*.svg
  $out/toy/toy.png                 value maps of the 4x4 grid
  $out/runs/maze/metrics.jsonl     every figure of training
The cube is seldom solved in so few updates: the paper's runs have 500 times as many.
END
