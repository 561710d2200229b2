"""Times the launches of one token of Llama-3.1-8B (Q4_K_M mix, random weights) from the templates of this checkout, without
the engine: NVRTC, one graph with early begin, kernels cut as named. For trying how decode kernels are cut.

usage: decode_layers.py [NAME=CUT ...] [skip=norm,qkv_post,attention]
       decode_layers.py KIND:ROWSxK=CUT ...     one projection alone (epilogue store), each cut of it
NAME is qkv, o, gate_up, down or head; CUT is CELLS,STAGES,SHARED_GROUPS,SHARERS,TURN_SLABS; KIND is q4_k or q6_k. Needs a GPU of
sm_90, PyTorch and libnvrtc.so.13 where the loader finds them.
"""

import ctypes as c
import os
import pathlib
import re
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
LAYERS, WIDTH, FF, VOCABULARY, KV_ROWS = 32, 4096, 14336, 128256, 512
HALF_SHARED = 115 << 10  # runtime/cuda/launch.cpp
CELL_BYTES = {"q4_k": 2304, "q6_k": 3360}
nvrtc = c.CDLL(os.environ.get("QUERN_NVRTC", "libnvrtc.so.13"))
cuda = c.CDLL("libcuda.so.1")


class KernelArgs(c.Structure):  # templates/cuda/abi.h
    _fields_ = [("buffers", c.c_void_p * 16), ("state", c.c_void_p), ("rows_are_outputs", c.c_uint),
                ("operand_rows", c.c_uint), ("kv_capacity", c.c_uint), ("saturated", c.c_void_p),
                ("x_scale", c.c_float), ("out_scale", c.c_float), ("weight_scale", c.c_float),
                ("params", c.c_uint * 2)]


class LaunchAttribute(c.Structure):
    _fields_ = [("id", c.c_uint), ("pad", c.c_uint), ("value", c.c_ulonglong * 8)]


class LaunchConfig(c.Structure):
    _fields_ = [("grid", c.c_uint * 3), ("block", c.c_uint * 3), ("shared", c.c_uint),
                ("stream", c.c_void_p), ("attributes", c.POINTER(LaunchAttribute)), ("n", c.c_uint)]


def check(code, what):
    if code:
        raise SystemExit(f"{what}: error {code}")


def headers(text, found):
    for name in re.findall(r'#include "([^"]+)"', text):
        if name not in found:
            found[name] = (ROOT / name).read_text()
            headers(found[name], found)
    return found


def compile_kernel(family, spec_type, fields):
    text = (f'#include "templates/cuda/{family}.cuh"\nnamespace quern::spec {{\nconstexpr {spec_type} quern_spec = {{'
            + " ".join(f".{name} = {value}," for name, value in fields.items()) + "};\n}\n"
            "using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;\n"
            'extern "C" __global__ void __launch_bounds__(QuernKernel::threads, QuernKernel::min_blocks)\n'
            "quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) { QuernKernel::run(args); }\n")
    found = headers(text, {})
    texts = (c.c_char_p * len(found))(*[t.encode() for t in found.values()])
    names = (c.c_char_p * len(found))(*[n.encode() for n in found])
    program, size = c.c_void_p(), c.c_size_t()
    nvrtc.nvrtcCreateProgram(c.byref(program), text.encode(), b"k.cu", len(found), texts, names)
    options = [b"--gpu-architecture=sm_90a", b"--std=c++20", b"--fmad=false", b"--device-as-default-execution-space"]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (c.c_char_p * len(options))(*options))
    nvrtc.nvrtcGetProgramLogSize(program, c.byref(size))
    log = c.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    check(code, log.value.decode()[:2000])
    nvrtc.nvrtcGetCUBINSize(program, c.byref(size))
    cubin = c.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    module, function = c.c_void_p(), c.c_void_p()
    check(cuda.cuModuleLoadData(c.byref(module), cubin.raw), "cuModuleLoadData")
    check(cuda.cuModuleGetFunction(c.byref(function), module, b"quern_kernel"), "cuModuleGetFunction")
    return function


class Kernel:
    def __init__(self, function, grid, threads, shared=0):
        self.function, self.grid, self.threads, self.shared = function, grid, threads, shared
        if shared:
            check(cuda.cuFuncSetAttribute(function, 8, shared), "cuFuncSetAttribute")

    def launch(self, stream, args):
        early = LaunchAttribute(id=6)
        early.value[0] = 1
        config = LaunchConfig(grid=self.grid, block=(self.threads, 1, 1), shared=self.shared, stream=stream,
                              attributes=c.pointer(early), n=1)
        pointers = (c.c_void_p * 1)(c.cast(c.pointer(args), c.c_void_p))
        check(cuda.cuLaunchKernelEx(c.byref(config), self.function, pointers, None), "cuLaunchKernelEx")


def gemm(segments, k, epilogue, cut):
    cells, stages, shared_groups, sharers, turn_slabs = cut
    listed = ", ".join(f"{{.type = QuantType::{kind}, .rows = {rows}}}" for kind, rows in segments)
    function = compile_kernel("gemm", "GemmSpec", {
        "segments": "{" + listed + "}", "n_segments": len(segments), "k": k, "epilogue": f"Epilogue::{epilogue}",
        "tile_tokens": 8, "tile_cells": cells, "tier": "Tier::mma", "stages": stages,
        "shared_groups": shared_groups, "sharers": sharers, "turn_slabs": turn_slabs})
    warps = cells - shared_groups + shared_groups * sharers
    ring = stages * max(CELL_BYTES[kind] for kind, _ in segments)
    shared = k * 2 + warps * ring + shared_groups * sharers * 520
    if shared_groups:
        shared = max(shared, HALF_SHARED)
    groups = sum((rows + 127) // 128 * 8 for _, rows in segments)
    return Kernel(function, ((groups + cells - 1) // cells, 1, 1), warps * 32, shared)


def cells(kind, rows, k):
    """Random cells: any codes and scales, small d."""
    n = (rows + 127) // 128 * 8 * (k // 256)
    data = torch.randint(0, 256, (n, CELL_BYTES[kind]), dtype=torch.uint8, device="cuda")
    if kind == "q4_k":
        d = (torch.rand(n, 16, 2, device="cuda") * 2e-4 + 1e-5).to(torch.float16)
        data[:, :256].view(n, 16, 16)[:, :, :4] = d.view(torch.uint8).view(n, 16, 4)
    else:
        d = (torch.rand(n, 16, device="cuda") * 2e-5 + 1e-6).to(torch.float16)
        data[:, 256:288] = d.view(torch.uint8).view(n, 32)
    return data


CUTS = {"qkv": (3, 2, 3, 4, 4), "o": (2, 2, 2, 4, 4), "gate_up": (14, 2, 2, 2, 4), "down": (2, 2, 2, 4, 8),
        "head": (8, 2, 0, 0, 0)}  # compiler/cuda/gemm_choice.cpp
SMALL = {
    "norm": ("norm", "NormSpec", {"width": WIDTH, "group": WIDTH, "eps": "1e-5f", "tier": "Tier::mma"}),
    "qkv_post": ("qkv_post", "QkvPostSpec", {
        "n_head": 32, "n_head_kv": 8, "head_dim": 128, "value_dim": 128, "row_width": 6144, "k_offset": 4096,
        "v_offset": 5120, "rope": "RopePairing::norm", "n_rot": 128, "kv": "KvType::f16", "tier": "Tier::mma"}),
    "attention": ("attention", "AttentionSpec", {
        "n_head": 32, "n_head_kv": 8, "head_dim": 128, "value_dim": 128, "scale": "0.088388346f",
        "kv": "KvType::f16", "block_keys": 128, "segment_keys": 1024, "tier": "Tier::mma", "decode": 1})}


def zeros(n, dtype=torch.float32):
    return torch.zeros(n, dtype=dtype, device="cuda")


class Launches:
    """Launches one after the other, at position 100."""

    def __init__(self, skip=()):
        torch.manual_seed(1)
        self.start, self.launches = torch.randn(WIDTH, device="cuda"), []
        self.h, self.logits = self.start.clone(), zeros(VOCABULARY)
        self.state = torch.tensor([1, 100, 1, 0], dtype=torch.int32, device="cuda")
        self.saturated, self.skip = zeros(4, torch.int32), skip

    def add_token(self, cuts):
        half = torch.float16
        norm_weight, x, gated, heads = torch.rand(WIDTH, device="cuda") + 0.5, zeros(64 * WIDTH, half), zeros(
            64 * FF, half), zeros(64 * WIDTH, half)
        qkv, queries, rope = zeros(6144), zeros(WIDTH, half), torch.rand(KV_ROWS * 128, device="cuda")
        scratch, counters = zeros(1 << 16), zeros(64, torch.int32)
        small = {name: compile_kernel(*spec) for name, spec in SMALL.items()}
        norm = Kernel(small["norm"], (1, 1, 1), 256)
        post = Kernel(small["qkv_post"], (1, 6, 1), 256)
        attention = Kernel(small["attention"], (1, 8, 1), 128, 82688)
        q, k, o = cells("q4_k", 4096, WIDTH), cells("q4_k", 1024, WIDTH), cells("q4_k", 4096, WIDTH)
        gate_up = cells("q4_k", 2 * FF, WIDTH)
        v = {kind: cells(kind, 1024, WIDTH) for kind in CELL_BYTES}
        down = {kind: cells(kind, WIDTH, FF) for kind in CELL_BYTES}
        qkv_kernel = {kind: gemm([("q4_k", 4096), ("q4_k", 1024), (kind, 1024)], WIDTH, "store", cuts["qkv"])
                      for kind in CELL_BYTES}
        down_kernel = {kind: gemm([(kind, WIDTH)], FF, "residual", cuts["down"]) for kind in CELL_BYTES}
        o_kernel = gemm([("q4_k", WIDTH)], WIDTH, "residual", cuts["o"])
        gate_up_kernel = gemm([("q4_k", 2 * FF)], WIDTH, "swiglu", cuts["gate_up"])
        for layer in range(LAYERS):
            kind = "q6_k" if layer < 4 or layer >= 28 or (layer - 4) % 3 == 2 else "q4_k"
            keys, values = zeros(8 * KV_ROWS * 128, half), zeros(8 * KV_ROWS * 128, half)
            self.add("norm", norm, self.h, norm_weight, x)
            self.add("qkv", qkv_kernel[kind], x, qkv, None, q.clone(), k.clone(), v[kind].clone())
            self.add("qkv_post", post, qkv, rope, None, None, keys, values, queries)
            self.add("attention", attention, queries, keys, values, heads, None, scratch, counters)
            self.add("o", o_kernel, heads, self.h, self.h, o.clone())
            self.add("norm", norm, self.h, norm_weight, x)
            self.add("gate_up", gate_up_kernel, x, gated, None, gate_up.clone())
            self.add(f"down {kind}", down_kernel[kind], gated, self.h, self.h, down[kind].clone())
        self.add("norm", norm, self.h, norm_weight, x)
        self.add("head", gemm([("q6_k", VOCABULARY)], WIDTH, "store", cuts["head"]), x, self.logits, None,
                 cells("q6_k", VOCABULARY, WIDTH))

    def add_projection(self, kind, rows, k, cut):
        weights, x = cells(kind, rows, k), torch.randn(64 * k, device="cuda").to(torch.float16)
        kernel, y = gemm([(kind, rows)], k, "store", cut), zeros(rows)
        for _ in range(max(2, (512 << 20) // weights.nbytes)):
            self.add("projection", kernel, x, y, None, weights.clone())

    def add(self, name, kernel, *buffers):
        if name in self.skip:
            return
        args = KernelArgs(state=self.state.data_ptr(), operand_rows=64, kv_capacity=KV_ROWS,
                          saturated=self.saturated.data_ptr(), x_scale=1, out_scale=1, weight_scale=1)
        for i, buffer in enumerate(buffers):
            args.buffers[i] = buffer.data_ptr() if buffer is not None else None
        self.launches.append((name, kernel, args, buffers))

    def time(self, stream, only=None, repeats=25):
        """Median microseconds of a graph of the launches (of that name alone)."""
        chosen = [launch for launch in self.launches if only in (None, launch[0])]
        graph, executable = c.c_void_p(), c.c_void_p()
        check(cuda.cuStreamBeginCapture_v2(stream, 2), "cuStreamBeginCapture")
        for _, kernel, args, _ in chosen:
            kernel.launch(stream, args)
        check(cuda.cuStreamEndCapture(stream, c.byref(graph)), "cuStreamEndCapture")
        check(cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, c.c_ulonglong(0)), "cuGraphInstantiate")
        events, times = [c.c_void_p(), c.c_void_p()], []
        for event in events:
            check(cuda.cuEventCreate(c.byref(event), 0), "cuEventCreate")
        for _ in range(repeats):
            self.h.copy_(self.start)
            torch.cuda.synchronize()
            cuda.cuEventRecord(events[0], stream)
            check(cuda.cuGraphLaunch(executable, stream), "cuGraphLaunch")
            cuda.cuEventRecord(events[1], stream)
            check(cuda.cuEventSynchronize(events[1]), "cuEventSynchronize")
            ms = c.c_float()
            cuda.cuEventElapsedTime(c.byref(ms), *events)
            times.append(ms.value * 1000)
        return sorted(times)[repeats // 2], len(chosen)


def main():
    cuts, skip, projections = dict(CUTS), set(), []
    for argument in sys.argv[1:]:
        name, value = argument.split("=")
        if name == "skip":
            skip = set(value.split(","))
        elif ":" in name:
            kind, shape = name.split(":")
            projections.append((kind, *map(int, shape.split("x")), tuple(map(int, value.split(",")))))
        else:
            cuts[name] = tuple(int(v) for v in value.split(","))
    torch.zeros(1, device="cuda")  # makes the context
    stream = c.c_void_p()
    check(cuda.cuStreamCreate(c.byref(stream), 1), "cuStreamCreate")
    for projection in projections:
        launches = Launches()
        launches.add_projection(*projection)
        us, n = launches.time(stream)
        print(f"{projection}: {us / n:.2f} us a launch, one after the other")
    if projections:
        return
    token = Launches(skip)
    token.add_token(cuts)
    for name in dict.fromkeys(launch[0] for launch in token.launches):
        us, n = token.time(stream, name)
        print(f"{name:10} {us / n:8.2f} us a launch, one after the other")
    us, _ = token.time(stream)
    print(f"a token: {us:.1f} us, {1e6 / us:.1f} tokens/s; finite {bool(torch.isfinite(token.logits).all())}")


if __name__ == "__main__":
    main()
