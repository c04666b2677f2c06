#!/usr/bin/env bash
# Set up a machine without a container registry for cibuildwheel: podman with runc, and an image that is built here from
# Debian's packages. Run this as root; it prints the variables for the next commands.
#
#   tools/local/podman.sh > engine.env && set -a && . ./engine.env && set +a
#   python -m tools build --label cu121 --out wheelhouse --driver cibuildwheel
#
# Environment variables adapt it to the machine:
#   FOLDER         where image and configuration are kept (~/.cache/precast-podman)
#   MIRROR         the Debian mirror (the one that apt uses here, else deb.debian.org)
#   SSL_CERT_FILE  a certificate bundle that containers must trust, if they need a special one
#   PIP_CONFIG_FILE, PIP_FIND_LINKS  a pip configuration, and a folder of wheels, that containers can read
set -euo pipefail

FOLDER=${FOLDER:-${XDG_CACHE_HOME:-$HOME/.cache}/precast-podman}
IMAGE=localhost/precast-cibuildwheel
SUITE=bookworm
CONF=$FOLDER/containers.conf
say() { echo "podman.sh: $*" >&2; }

missing=()
for program in podman runc debootstrap; do command -v $program >/dev/null || missing+=($program); done
if [ ${#missing[@]} -gt 0 ]; then
    say "installing ${missing[*]}"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
fi
mkdir -p "$FOLDER"

# Mounts a file or folder of this machine in containers, read-only and at the same path.
volumes=()
env=('"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"')
share() { [ -e "$1" ] && volumes+=("\"$1:$1:ro\"") || { say "$1 is not there"; exit 1; }; }
if [ -n "${SSL_CERT_FILE:-}" ]; then
    share "$SSL_CERT_FILE"
    env+=("\"SSL_CERT_FILE=$SSL_CERT_FILE\"" "\"PIP_CERT=$SSL_CERT_FILE\"")
fi
if [ -n "${PIP_CONFIG_FILE:-}" ]; then share "$PIP_CONFIG_FILE" && env+=("\"PIP_CONFIG_FILE=$PIP_CONFIG_FILE\""); fi
if [ -n "${PIP_FIND_LINKS:-}" ]; then share "$PIP_FIND_LINKS" && env+=("\"PIP_FIND_LINKS=$PIP_FIND_LINKS\""); fi
list() { local IFS=,; echo "[$*]"; }

# runc, because crun refuses mixed cgroups; the host's network, because no other is needed; limits, because podman would
# request more than a process without CAP_SYS_RESOURCE may have.
cat > "$CONF" <<END
[containers]
netns = "host"
default_ulimits = ["nofile=4096:4096", "nproc=32768:32768"]
env = $(list "${env[@]}")
volumes = $(list "${volumes[@]}")
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
END
export CONTAINERS_CONF=$CONF

if ! podman image exists "$IMAGE:$SUITE"; then
    if [ ! -e "$FOLDER/$SUITE.tar" ]; then
        MIRROR=${MIRROR:-$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)}
        say "debootstrap $SUITE"
        root=$(mktemp -d "$FOLDER/root.XXXXXX")
        debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-pip \
            "$SUITE" "$root" "${MIRROR:-http://deb.debian.org/debian}" > "$FOLDER/debootstrap.log"
        tar -C "$root" --exclude='./proc/*' --exclude='./sys/*' --exclude='./var/cache/apt/archives/*.deb' \
            -cf "$FOLDER/$SUITE.tar.part" .
        mv "$FOLDER/$SUITE.tar.part" "$FOLDER/$SUITE.tar"
        rm -rf "$root"
    fi
    say "podman import"
    podman import -q "$FOLDER/$SUITE.tar" "$IMAGE-base:$SUITE" >&2
    # cibuildwheel needs interpreters at the paths of manylinux images. Nothing is compiled in the image.
    podman build -q -t "$IMAGE:$SUITE" - >&2 <<END
FROM $IMAGE-base:$SUITE
RUN python3 -m venv /opt/python/cp311-cp311 && ln -s cp311-cp311 /opt/python/cp39-cp39 && \
    /opt/python/cp311-cp311/bin/pip install -q --no-cache-dir build virtualenv
END
fi
say "ready: $IMAGE:$SUITE"
echo "CONTAINERS_CONF=$CONF"
echo "CIBW_CONTAINER_ENGINE=podman"
echo "CIBW_MANYLINUX_$(uname -m | tr a-z A-Z)_IMAGE=$IMAGE:$SUITE"
