#!/bin/sh
# Chooses a writable folder for the files that workers share.
set -eu
# With a read-only root the volume may be the only writable place.
if [ -z "${TMPDIR:-}" ] && ! [ -w /tmp ]; then
  export TMPDIR=/data/.tmp
  mkdir -p "$TMPDIR"
  # Remove folders of killed workers; running workers write there every second.
  find "$TMPDIR" -mindepth 1 -maxdepth 1 -name 'dualstream-workers-*' -mmin +60 -exec rm -rf {} +
fi
exec dualstream "$@"
