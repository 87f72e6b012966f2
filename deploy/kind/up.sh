#!/usr/bin/env bash
# kruntimes on kind, for machines with Docker: the same images and chart as scripts/cluster.
#   deploy/kind/up.sh [HELM ARGUMENTS…]     makes the cluster if need be, builds, loads, installs
#   deploy/kind/up.sh --down                removes the cluster
# Needs docker, kind and helm. BASE may name another base image of the Debian family with Python 3.11 or newer.
set -euo pipefail
cd "$(dirname "$0")/../.."

cluster=kruntimes
images=(controlplane gateway runtimed python-runtime bash-runtime)
version=$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' deploy/chart/Chart.yaml)

if [[ ${1:-} == --down ]]; then
  exec kind delete cluster --name "$cluster"
fi
for tool in docker kind helm; do
  command -v "$tool" > /dev/null || { echo "deploy/kind/up.sh needs $tool" >&2; exit 1; }
done
kind get clusters 2> /dev/null | grep -qx "$cluster" || kind create cluster --config deploy/kind/cluster.yaml --wait 120s

built=()
for image in "${images[@]}"; do
  name=docker.io/kruntimes/$image:$version
  docker build ${BASE:+--build-arg "BASE=$BASE"} --file "deploy/images/$image/Dockerfile" --tag "$name" .
  kind load docker-image --name "$cluster" "$name"
  # Every build has the same tag: the image's id makes Pods new whose image is.
  id=$(docker image inspect --format '{{.Id}}' "$name")
  case $image in
    controlplane | gateway) built+=(--set-string "$image.podAnnotations.built=$id") ;;
    *) runtimes=${runtimes:-}${id#sha256:} ;;
  esac
done
built+=(--set-string "defaultRuntimes.podAnnotations.built=$runtimes")

helm upgrade --install kruntimes deploy/chart --kube-context "kind-$cluster" --namespace kruntimes-system \
  --create-namespace --wait --timeout 180s --set 'defaultRuntimes.namespaces={default}' "${built[@]}" "$@"
