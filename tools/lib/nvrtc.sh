# NVIDIA's run-time compiler for the tests that compile GPU kernels (no GPU needed): the machine's
# own where the loader finds one, else PyPI's wheel in build/nvrtc.
# shellcheck shell=bash

NVRTC_PACKAGE=nvidia-cuda-nvrtc==13.0.88

# Exports QUERN_NVRTC where the wheel's library is used.
fetch_nvrtc() {
  local folder="$BUILD/nvrtc" python
  if [ -n "${QUERN_NVRTC:-}" ] || ldconfig -p | grep -q 'libnvrtc\.so\.1[23]'; then return; fi
  if [ ! -e "$folder/libnvrtc.so.13" ]; then
    say "fetching $NVRTC_PACKAGE from PyPI"
    python="$(python_with_pip)"
    rm -rf "$folder.new"
    mkdir -p "$folder.new/wheel"
    "$python" -m pip download --quiet --no-deps --no-input --dest "$folder.new/wheel" "$NVRTC_PACKAGE"
    "$python" - "$folder.new" <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
(wheel,) = (folder / "wheel").iterdir()
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if "/lib/libnvrtc" in name:
            (folder / pathlib.Path(name).name).write_bytes(archive.read(name))
wheel.unlink()
wheel.parent.rmdir()
PYTHON
    mv "$folder.new" "$folder"
  fi
  export QUERN_NVRTC="$folder/libnvrtc.so.13"
}
