#!/bin/sh
# What the process writes beside its store: a copy of the image's kernel cache, which may be
# read-only and owned by root, and what several workers tell each other.
set -eu
# Where the root is read-only, the volume may be all that can be written.
if [ -z "${TMPDIR:-}" ] && ! [ -w /tmp ]; then
  export TMPDIR=/data/.tmp
  mkdir -p "$TMPDIR"
  # Of workers that were killed; those that live write there each second.
  find "$TMPDIR" -mindepth 1 -maxdepth 1 -name 'dualstream-workers-*' -mmin +60 -exec rm -rf {} +
fi
if [ -z "${DUALSTREAM_CACHE_DIR:-}" ]; then
  if [ -w /tmp ]; then DUALSTREAM_CACHE_DIR=/tmp/dualstream-kernels; else DUALSTREAM_CACHE_DIR=/data/.kernels; fi
fi
export DUALSTREAM_CACHE_DIR
mkdir -p "$DUALSTREAM_CACHE_DIR"
cp -R --preserve=timestamps /opt/kernels/. "$DUALSTREAM_CACHE_DIR/"
exec dualstream "$@"
