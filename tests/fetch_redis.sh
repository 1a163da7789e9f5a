#!/usr/bin/env bash
# Puts a redis-server under .cache/redis when the machine has none: Debian's own packages,
# downloaded and unpacked without root and without a system service.
set -euo pipefail
cd "$(dirname "$0")/.."
root=".cache/redis"
if command -v redis-server >/dev/null || [ -x "$root/usr/bin/redis-server" ]; then
  exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
  echo "no redis-server found: install Redis 7 or newer for the tests that need it" >&2
  exit 0
fi

# Private package lists: the system's may be missing, and only root may refresh them.
state="$PWD/.cache/apt"
mkdir -p "$state/lists/partial" "$state/archives/partial"
apt=(apt-get -qq -o "Dir::State::lists=$state/lists" -o "Dir::Cache=$state" -o "APT::Sandbox::User=$(id -un)")
packages=(redis-server redis-tools libatomic1 libjemalloc2 liblzf1 libssl3)
if ! { "${apt[@]}" update && (cd "$state/archives" && "${apt[@]}" download "${packages[@]}"); }; then
  echo "could not fetch redis-server: install Redis 7 or newer for the tests that need it" >&2
  exit 0
fi
mkdir -p "$root.partial"
for package in "$state"/archives/*.deb; do
  dpkg -x "$package" "$root.partial"
done
rm -rf "$state"
mv "$root.partial" "$root"
