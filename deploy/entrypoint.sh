#!/bin/sh
# The image's kernel cache may be read-only and owned by root: the process gets a copy of its own.
set -eu
export DUALSTREAM_CACHE_DIR="${DUALSTREAM_CACHE_DIR:-/tmp/dualstream-kernels}"
mkdir -p "$DUALSTREAM_CACHE_DIR"
cp -R --preserve=timestamps /opt/kernels/. "$DUALSTREAM_CACHE_DIR/"
exec dualstream "$@"
