# The Debian packages that Quern is built from, and installing those that are missing.
# Debian 12 and Ubuntu 24.04 have all of them in their own registries.
# shellcheck shell=bash

# What building the command needs.
BUILD_PACKAGES=(
  g++ cmake ninja-build ccache git
  clang-19 llvm-19-dev             # CPU templates to bitcode; LLVM as the kernel compiler
  libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libpcre2-dev
  zlib1g-dev libzstd-dev           # LLVM's CMake files ask for them
  ca-certificates python3 python3-pip  # fetching models from PyPI
)

# What the tests need beside that.
TEST_PACKAGES=(
  libgtest-dev libgmock-dev libbenchmark-dev
  clang-format-19 clang-tidy-19
  libclang-rt-19-dev               # sanitizer and fuzzer runtimes of clang
)

# install_packages NAME...: installs those that are not installed; silent and free when all are.
install_packages() {
  local name missing=()
  for name in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  command -v apt-get >/dev/null || die "apt-get is not here; install by hand: ${missing[*]}"
  say "installing ${missing[*]}"
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}
