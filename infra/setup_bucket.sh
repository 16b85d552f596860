#!/usr/bin/env bash
# Makes a bucket with four folders, and two service accounts whose rights are limited to
# what their jobs need in these folders. The script may be repeated at any time.
#
#   infra/setup_bucket.sh PROJECT REGION BUCKET [NAMESPACE]
#
#   folder   pipeline         trainer
#   raw/     reads            -
#   tmp/     reads, writes    -
#   stores/  reads, writes    reads
#   runs/    -                reads, writes
#
# Other buckets of the project are closed to both accounts.
#
# NAMESPACE is the namespace of Kubernetes in which accounts of the same two names act as
# these: training as vast-trainer, pipelines on Flink as vast-pipeline. No keys are made,
# because Dataflow and GKE attach accounts to workers. With REPOSITORY, a repository of
# Artifact Registry in REGION, Dataflow's workers may pull their image from it. DRY_RUN=1
# prints the commands that would change something instead of running them.
set -euo pipefail

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

[[ $# -ge 3 ]] || fail "expected PROJECT REGION BUCKET [NAMESPACE]"
project=$1
region=$2
bucket=$3
namespace=${4:-default}
pipeline=vast-pipeline@$project.iam.gserviceaccount.com
trainer=vast-trainer@$project.iam.gserviceaccount.com

command -v gcloud >/dev/null || [[ -n ${DRY_RUN:-} ]] ||
  fail "gcloud is not installed here; see https://cloud.google.com/sdk/docs/install"

# Runs a command that changes something; on a dry run, prints it instead.
change() {
  if [[ -n ${DRY_RUN:-} ]]; then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# Tells whether a resource exists already; a dry run pretends that none does.
there() {
  [[ -z ${DRY_RUN:-} ]] && "$@" >/dev/null 2>&1
}

make_account() {
  local name=$1 shown=$2
  there gcloud iam service-accounts describe \
    "$name@$project.iam.gserviceaccount.com" --project="$project" ||
    change gcloud iam service-accounts create "$name" --project="$project" \
      --display-name="$shown"
}

make_folder() {
  there gcloud storage managed-folders describe "gs://$bucket/$1/" ||
    change gcloud storage managed-folders create "gs://$bucket/$1/"
}

# A role that exists gets the permissions of this script, which may have changed since.
make_role() {
  local name=$1 title=$2 permissions=$3 verb=create
  if there gcloud iam roles describe "$name" --project="$project"; then verb=update; fi
  change gcloud iam roles "$verb" "$name" --project="$project" --title="$title" \
    --permissions="$permissions" --stage=GA
}

# Adding an existing binding again changes nothing.
grant_folder() {
  local folder=$1 account=$2 role=$3
  change gcloud storage managed-folders add-iam-policy-binding "gs://$bucket/$folder/" \
    --member="serviceAccount:$account" --role="$role"
}

make_account vast-pipeline "vast-rl pipeline workers"
make_account vast-trainer "vast-rl trainers"

# Rights to single folders can only be granted in a bucket with uniform access.
there gcloud storage buckets describe "gs://$bucket" ||
  change gcloud storage buckets create "gs://$bucket" --project="$project" \
    --location="$region" --uniform-bucket-level-access --public-access-prevention

for folder in raw tmp stores runs; do make_folder "$folder"; done

grant_folder raw "$pipeline" roles/storage.objectViewer
grant_folder tmp "$pipeline" roles/storage.objectUser
grant_folder stores "$pipeline" roles/storage.objectUser
grant_folder stores "$trainer" roles/storage.objectViewer
grant_folder runs "$trainer" roles/storage.objectUser

# This role shows where the bucket is, but nothing in it.
for account in "$pipeline" "$trainer"; do
  change gcloud storage buckets add-iam-policy-binding "gs://$bucket" \
    --member="serviceAccount:$account" --role=roles/storage.bucketViewer
done

# Rights of a Dataflow worker can only be granted for the whole project. These are those
# of roles/dataflow.worker but for storage.buckets.get, storage.objects.get and
# storage.objects.create, which would open runs/ and all other buckets of the project.
worker=(
  autoscaling.sites.{readRecommendations,writeMetrics,writeState}
  compute.instanceGroupManagers.update
  compute.instances.{delete,setDiskAutoDelete}
  dataflow.jobs.get
  dataflow.shuffle.{read,write}
  dataflow.streamingWorkItems.{ImportState,commitWork,getData,getWork,getWorkerMetadata}
  dataflow.workItems.{lease,sendMessage,update}
  logging.logEntries.{create,route}
  monitoring.timeSeries.create
)
make_role vastDataflowWorker "vast-rl Dataflow worker" "$(IFS=, && echo "${worker[*]}")"
change gcloud projects add-iam-policy-binding "$project" --condition=None \
  --member="serviceAccount:$pipeline" --role="projects/$project/roles/vastDataflowWorker"

if [[ -n ${REPOSITORY:-} ]]; then
  change gcloud artifacts repositories add-iam-policy-binding "$REPOSITORY" \
    --project="$project" --location="$region" \
    --member="serviceAccount:$pipeline" --role=roles/artifactregistry.reader
fi

# Pods of a Kubernetes account act as Google's account of the same name, without a key.
pool=$project.svc.id.goog
for account in "$pipeline" "$trainer"; do
  change gcloud iam service-accounts add-iam-policy-binding "$account" \
    --project="$project" --role=roles/iam.workloadIdentityUser \
    --member="serviceAccount:${pool}[$namespace/${account%%@*}]"
done

echo "# In the cluster, once:"
for account in "$pipeline" "$trainer"; do
  cat <<END
kubectl create serviceaccount ${account%%@*} --namespace $namespace
kubectl annotate serviceaccount ${account%%@*} --namespace $namespace \\
  iam.gke.io/gcp-service-account=$account
END
done
cat <<END
# Before a job:
python -m infra doctor gs://$bucket/runs --region $region
END
