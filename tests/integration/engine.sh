#!/usr/bin/env bash
# A Docker engine and the images for the tests, also on a machine that has neither.
#
#   engine.sh start    uses the engine that runs; else, as root, installs apt's and starts it
#   engine.sh images   makes a base image without pulling where nothing can be pulled; builds
#   engine.sh stop     stops the engine if `start` started it
#
# Where the machine does not allow it, they print "skipped: " and why, and exit with 3.
set -euo pipefail
cd "$(dirname "$0")/../.."
state=${FEDRC_ENGINE_STATE:-${TMPDIR:-/tmp}/fedrc-engine}
mkdir -p "$state"

skip() {
    echo "skipped: $*"
    exit 3
}

installed() {
    command -v docker >/dev/null && { docker compose version || docker-compose version; } &>/dev/null
}

install_packages() { # names
    [ "$(id -u)" = 0 ] || skip "$* not installed, and only root can install it"
    command -v apt-get >/dev/null || skip "$* not installed, and there is no apt-get"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y "$@"; } \
        > "$state/apt.log" 2>&1 || skip "apt-get could not install $*: $(tail -n 1 "$state/apt.log")"
}

start() {
    installed || install_packages docker.io docker-compose
    docker info &>/dev/null && return
    [ "$(id -u)" = 0 ] || skip "no Docker engine answers, and only root can start one"
    command -v dockerd >/dev/null || install_packages docker.io
    setsid dockerd > "$state/dockerd.log" 2>&1 < /dev/null &
    echo $! > "$state/dockerd.pid"
    for _ in $(seq 60); do
        docker info &>/dev/null && return
        kill -0 "$(cat "$state/dockerd.pid")" 2>/dev/null || break
        sleep 1
    done
    rm "$state/dockerd.pid"
    skip "dockerd does not start: $(tail -n 1 "$state/dockerd.log")"
}

stop() {
    if [ -e "$state/dockerd.pid" ]; then
        kill "$(cat "$state/dockerd.pid")" 2>/dev/null || true
        rm "$state/dockerd.pid"
    fi
}

# Debian as on this machine, from where this machine takes it.
bootstrap() {
    command -v debootstrap >/dev/null || install_packages debootstrap
    local codename mirror root
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    # shellcheck disable=SC2016  # apt's own variables
    mirror=$(apt-get indextargets --format '$(REPO_URI)' \
        'Created-By: Packages' "Codename: $codename" 'Component: main' | head -n 1)
    root=$(mktemp -d "$state/root.XXXXXX")
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
        "$codename" "$root" "$mirror" > "$state/debootstrap.log" 2>&1 \
        || skip "no base image: debootstrap says $(tail -n 1 "$state/debootstrap.log")"
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" -c . | docker import - fedrc-test-base
    rm -rf "$root"
}

images() {
    local python=.venv/bin/python torch
    [ -x $python ] || python=python3
    torch=$(grep '^torch==' docker/constraints.txt)
    if ! timeout 120 docker pull --quiet python:3.11-slim; then
        docker image inspect fedrc-test-base &>/dev/null || bootstrap
        {
            echo FEDRC_BASE_IMAGE=fedrc-test-base
            echo FEDRC_BUILD_NETWORK=host
            # No build of torchvision fits a torch that comes from somewhere else.
            if "$python" -m pip download --quiet --no-deps --dest docker/wheels "$torch+cpu"; then
                echo FEDRC_TORCH_BACKEND=
                echo FEDRC_WITHOUT=torchvision
            fi
        } > "$state/env"
    else
        echo > "$state/env"
    fi
    set -a
    . "$state/env"
    set +a
    local compose="docker compose"
    $compose version &>/dev/null || compose=docker-compose
    $compose --project-name fedrc-test --file docker/compose.yml build
}

"$1"
