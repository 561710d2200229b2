# Configuring and building a preset.
# shellcheck shell=bash

# build_preset NAME [TARGET...]: configures once and builds (all targets where none is named).
build_preset() {
  local preset=$1 folder options=()
  shift
  folder="$QUERN_ROOT/build"
  if [ "$preset" != release ]; then folder="$QUERN_ROOT/build-$preset"; fi
  if command -v ccache >/dev/null; then
    options=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  if [ ! -f "$folder/build.ninja" ]; then
    say "configuring preset $preset"
    (cd "$QUERN_ROOT" && cmake --preset "$preset" "${options[@]}" "${CMAKE_OPTIONS[@]}" >"/tmp/quern-configure.$$" 2>&1) || {
      cat "/tmp/quern-configure.$$" >&2
      rm -f "/tmp/quern-configure.$$"
      die "configuring preset $preset failed"
    }
    rm -f "/tmp/quern-configure.$$"
  fi
  say "building preset $preset"
  ninja -C "$folder" "$@"
}

# Extra -D options for configuring; scripts may set them before build_preset.
CMAKE_OPTIONS=()
