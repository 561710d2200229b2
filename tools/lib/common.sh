# Shared by the scripts of tools/: messages, the checkout's paths, and running as root.
# shellcheck shell=bash

QUERN_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
BUILD="$QUERN_ROOT/build"
MODELS="$BUILD/models"
QUERN="$BUILD/bin/quern"

say() { printf '==> %s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# Runs a command as root: directly, or through sudo.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "needs root for: $* (run as root, or install sudo)"
  fi
}

# Processors that this process may use.
jobs() { nproc; }
