#!/usr/bin/env bash
# Runs the pipeline on a real Apache Flink cluster, all of it on loopback: a job manager,
# two task managers that start their own workers, and Beam's job server. The script
# shards one file there and on the local runner, and compares the two stores byte for
# byte. It repeats this with a task manager killed in the middle. At last it ends a
# launcher, and checks that the launcher's job ends, too.
#
#   pip install --no-deps --target flink 'apache-flink-libraries==1.20.*'
#   BEAM_JOB_SERVER_JAR=... FLINK_HOME=flink/pyflink \
#     infra/flink/run_local.sh FILE.npz DATASET [OUT]
#
# Without BEAM_JOB_SERVER_JAR, Maven downloads it. CLUSTER_ONLY=1 only starts the cluster,
# waits until both task managers are registered, and stops.
set -euo pipefail

BEAM_VERSION=${BEAM_VERSION:-$(python -c 'import apache_beam; print(apache_beam.__version__)')}
ARTIFACT=beam-runners-flink-1.20-job-server
FLINK_HOME=${FLINK_HOME:?expected FLINK_HOME, the folder that holds the lib/ of Flink}
REST_PORT=${REST_PORT:-18081}
RPC_PORT=${RPC_PORT:-16123}
JOB_PORT=${JOB_PORT:-18099}
WORKER=$(command -v vast-rl-worker || true)

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

work=$(mktemp -d)
processes=()
stop() {
  for process in "${processes[@]}"; do kill "$process" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT

# Starts a command in the background and sets $started to its process.
start() {
  local log=$work/$1.log
  shift
  "$@" >"$log" 2>&1 &
  started=$!
  processes+=("$started")
}

# Waits up to 90 s for a command to succeed.
await() {
  local what=$1
  shift
  for ((i = 0; i < 180; i++)); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.5
  done
  tail -n 20 "$work"/*.log >&2
  fail "$what did not come up in 90 s; their logs are above"
}

flink() {
  # exec, so that the process to kill later is Java itself.
  exec java -Xmx768m \
    --add-opens=java.base/java.lang=ALL-UNNAMED \
    --add-opens=java.base/java.net=ALL-UNNAMED \
    --add-opens=java.base/java.nio=ALL-UNNAMED \
    --add-opens=java.base/java.util=ALL-UNNAMED \
    --add-opens=java.base/java.util.concurrent=ALL-UNNAMED \
    --add-exports=java.base/sun.net.util=ALL-UNNAMED \
    -cp "$FLINK_HOME/lib/*" "$@" --configDir "$work/conf"
}

task_managers() {
  [[ $(curl -sf "http://127.0.0.1:$REST_PORT/overview" |
    python -c 'import json, sys; print(json.load(sys.stdin)["taskmanagers"])') == "$1" ]]
}

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

start_cluster() {
  mkdir "$work/conf"
  # Flink restarts nothing. The launcher does, because it can tell lost workers from wrong
  # data.
  cat >"$work/conf/config.yaml" <<END
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: $RPC_PORT
jobmanager.bind-host: 127.0.0.1
jobmanager.memory.process.size: 1024m
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
taskmanager.cpu.cores: 1
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 256m
taskmanager.memory.task.off-heap.size: 64m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
taskmanager.memory.managed.size: 128m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
taskmanager.numberOfTaskSlots: 1
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: $REST_PORT
restart-strategy.type: none
heartbeat.timeout: 5000
heartbeat.interval: 1000
END
  local base=org.apache.flink.runtime
  start job-manager flink "$base.entrypoint.StandaloneSessionClusterEntrypoint"
  await "the job manager" curl -sf "http://127.0.0.1:$REST_PORT/overview"
  local number
  for number in 1 2; do
    start "task-manager-$number" flink "$base.taskexecutor.TaskManagerRunner"
    task_manager=$started
  done
  await "two task managers" task_managers 2
}

job_server_jar() {
  local coordinates=org.apache.beam:$ARTIFACT:$BEAM_VERSION answer
  answer=$(mvn -q dependency:copy -Dartifact="$coordinates" \
    -DoutputDirectory="$work" 2>&1) ||
    fail "$coordinates cannot be had: $(grep -m1 -o 'Could not .*' <<<"$answer" ||
      tail -n1 <<<"$answer"); set BEAM_JOB_SERVER_JAR to a copy of it"
  printf '%s/%s-%s.jar' "$work" "$ARTIFACT" "$BEAM_VERSION"
}

shard() {
  local out=$1
  shift
  exec python -m pipeline shard "$input" --dataset "$dataset" --part-rows 100000 \
    --out "$out" "$@"
}

# Runs in a shell of its own, which becomes the launcher: a signal to the shell's process
# reaches the launcher.
on_flink() (
  shard "$1" -- --runner=PortableRunner --job_endpoint="localhost:$JOB_PORT" \
    --flink_master="127.0.0.1:$REST_PORT" --environment_type=PROCESS \
    --environment_config="{\"command\": \"$WORKER\"}" --parallelism=2
)

compare() {
  diff -r "$out/local" "$1" || fail "$1: differs from the store of the local runner"
  echo "$1: the same bytes as the local runner's"
}

running_jobs() {
  curl -sf "http://127.0.0.1:$REST_PORT/jobs/overview" |
    python -c 'import json, sys
print(sum(j["state"] == "RUNNING" for j in json.load(sys.stdin)["jobs"]))'
}

no_jobs() { [[ $(running_jobs) == 0 ]]; }

if [[ -z ${CLUSTER_ONLY:-} ]]; then
  input=${1:?expected FILE.npz DATASET [OUT]}
  dataset=${2:?expected FILE.npz DATASET [OUT]}
  out=${3:-flink-out}
  [[ -n $WORKER ]] || fail "vast-rl-worker is not in PATH; activate the environment"
  jar=${BEAM_JOB_SERVER_JAR:-$(job_server_jar)}
fi

start_cluster
echo "a job manager and two task managers are up"
if [[ -n ${CLUSTER_ONLY:-} ]]; then exit; fi

start job-server java -jar "$jar" --flink-master="127.0.0.1:$REST_PORT" \
  --job-host=127.0.0.1 --job-port="$JOB_PORT" --artifacts-dir="$work/artifacts"
await "the job server" listening "$JOB_PORT"

(shard "$out/local")
on_flink "$out/flink"
compare "$out/flink"

on_flink "$out/killed" &
job=$!
part() { compgen -G "$1/parts/*/part.json"; }
await "a first part" part "$out/killed"
kill -9 "$task_manager"
start task-manager-3 flink org.apache.flink.runtime.taskexecutor.TaskManagerRunner
wait "$job" || fail "$out/killed: the job did not survive its task manager"
compare "$out/killed"

on_flink "$out/ended" &
job=$!
await "a first part" part "$out/ended"
kill "$job"
wait "$job" || true
await "the end of the job" no_jobs
echo "$out/ended: the job ended with its launcher"
