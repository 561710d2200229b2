#!/usr/bin/env bash
# tidy_one.sh BUILD FILE LOG: runs clang-tidy on one file; findings go to LOG/NAME.bad.
set -euo pipefail
name="${2//\//_}"
if ! clang-tidy-19 --quiet -p "$1" "$2" >"$3/$name.out" 2>/dev/null; then
  mv "$3/$name.out" "$3/$name.bad"
fi
