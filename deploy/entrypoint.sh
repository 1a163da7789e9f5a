#!/bin/sh
# The image's kernel cache may be read-only and owned by root: the process gets a copy of its own.
set -eu
if [ -z "${DUALSTREAM_CACHE_DIR:-}" ]; then
  # Where the root is read-only, the volume may be all that can be written.
  if [ -w /tmp ]; then DUALSTREAM_CACHE_DIR=/tmp/dualstream-kernels; else DUALSTREAM_CACHE_DIR=/data/.kernels; fi
fi
export DUALSTREAM_CACHE_DIR
mkdir -p "$DUALSTREAM_CACHE_DIR"
cp -R --preserve=timestamps /opt/kernels/. "$DUALSTREAM_CACHE_DIR/"
exec dualstream "$@"
