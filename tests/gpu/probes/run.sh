#!/usr/bin/env bash
# Builds and runs the probes on a machine with a Hopper GPU; JSON lines go to $OUT (or the folder given).
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-${OUT:-.}}
work=$(mktemp -d)
python3 make_wgmma.py wgmma.cuh
for probe in gemm gemv attention latency; do
  nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -Xptxas -v "${probe}_probe.cu" -o "$work/$probe" \
    2> "$out/$probe.ptxas.log" &
done
wait
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | tee "$out/card.txt"
date -u +%FT%TZ | tee -a "$out/card.txt"
for probe in gemv gemm attention latency; do
  timeout 120 "$work/$probe" | tee "$out/$probe.jsonl" || echo "$probe failed"
done
timeout 120 python3 controls.py | tee "$out/controls.jsonl" || echo "controls failed"
timeout 120 python3 decode_layers.py | tee "$out/decode_layers.txt" || echo "decode_layers failed"
