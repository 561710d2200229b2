# What tools/gpu_check takes to a machine that has a GPU, but neither a compiler nor our libraries.
# shellcheck shell=bash

GPU_PROGRAMS=(quern gpu_model_test gpu_kernels_test gpu_kernels_bench)
# Libraries that such a machine may lack, where the programs ask for them.
GPU_PACK_LIBRARIES='^lib(spdlog|fmt|zstd|z|pcre2-8)\.so'
# Fixtures that gpu_model_test runs and tests/data may lack.
GPU_PACK_FIXTURES=(wide/llama wide/qwen3 quant/llama-q8_0 quant/llama-q4_0
  variants/llama-linear variants/llama-yarn)

# pack_programs BIN FILE: the programs of BIN, stripped, with their libraries and fixtures.
pack_programs() {
  local bin=$1 file=$2 shared="${QUERN_SHARED:-$QUERN_ROOT/../shared}"
  local folder name path program fixture
  for program in "${GPU_PROGRAMS[@]}"; do
    [ -x "$bin/$program" ] || die "$bin/$program does not exist; build the target $program"
  done
  folder="$(mktemp -d "${TMPDIR:-/tmp}/gpu_pack.XXXXXX")"
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$folder'" EXIT
  mkdir -p "$folder/pkg/bin" "$folder/pkg/lib" "$folder/pkg/shared/fixtures" "$(dirname "$file")"
  for program in "${GPU_PROGRAMS[@]}"; do
    strip -o "$folder/pkg/bin/$program" "$bin/$program"
    while read -r name path; do
      if [[ $name =~ $GPU_PACK_LIBRARIES ]]; then cp -Lf "$path" "$folder/pkg/lib/$name"; fi
    done < <(ldd "$bin/$program" | awk '$2 == "=>" { print $1, $3 }')
  done
  for fixture in "${GPU_PACK_FIXTURES[@]}"; do
    for name in "$fixture.gguf" "$fixture.golden.gguf"; do
      if [ -f "$QUERN_ROOT/tests/data/fixtures/$name" ]; then continue; fi
      if [ ! -f "$shared/fixtures/$name" ]; then
        say "$shared/fixtures/$name is not there: its cases will be skipped"
        continue
      fi
      mkdir -p "$(dirname "$folder/pkg/shared/fixtures/$name")"
      cp "$shared/fixtures/$name" "$folder/pkg/shared/fixtures/$name"
    done
  done
  # Two programs hold the same LLVM: the window spans both.
  tar -C "$folder" --sort=name --owner=0 --group=0 -cf - pkg |
    xz -T2 --lzma2=preset=2,dict=128MiB >"$file.new"
  mv "$file.new" "$file"
  say "$file: $(du -h --apparent-size "$file" | cut -f1)"
}
