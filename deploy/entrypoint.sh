#!/bin/sh
# Chooses writable folders for files outside the store: a copy of the image's kernel cache, which is
# owned by root and may be read-only, and the files that workers share.
set -eu
# With a read-only root the volume may be the only writable place.
if [ -z "${TMPDIR:-}" ] && ! [ -w /tmp ]; then
  export TMPDIR=/data/.tmp
  mkdir -p "$TMPDIR"
  # Remove folders of killed workers; running workers write there every second.
  find "$TMPDIR" -mindepth 1 -maxdepth 1 -name 'dualstream-workers-*' -mmin +60 -exec rm -rf {} +
fi
if [ -z "${DUALSTREAM_CACHE_DIR:-}" ]; then
  if [ -w /tmp ]; then DUALSTREAM_CACHE_DIR=/tmp/dualstream-kernels; else DUALSTREAM_CACHE_DIR=/data/.kernels; fi
fi
export DUALSTREAM_CACHE_DIR
mkdir -p "$DUALSTREAM_CACHE_DIR"
cp -R --preserve=timestamps /opt/kernels/. "$DUALSTREAM_CACHE_DIR/"
exec dualstream "$@"
