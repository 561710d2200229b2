"""Writes wgmma.cuh: wrappers of wgmma.mma_async m64nNk16 (f16 operands, f32 sums) with A from registers or shared memory."""
import sys
def wrapper(n, kind, transposed_b=0):
    regs = n // 2
    acc = ','.join(f'%{i}' for i in range(regs))
    if kind == 'rs':
        ops = f'{{%{regs},%{regs+1},%{regs+2},%{regs+3}}}, %{regs+4}'; pred = regs + 5
        args = 'const u32 (&a)[4], u64 b'; ins = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)'; tail = f'1, 1, {transposed_b}'
    else:
        ops = f'%{regs}, %{regs+1}'; pred = regs + 2
        args = 'u64 a, u64 b'; ins = '"l"(a), "l"(b)'; tail = f'1, 1, 0, {transposed_b}'
    outs = ', '.join(f'"+f"(d[{i}])' for i in range(regs))
    name = f'wgmma_m64n{n}k16_{kind}' + ('_tb' if transposed_b else '')
    return f'''__device__ __forceinline__ void {name}(float (&d)[{regs}], {args}, int accumulate = 1) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{pred}, 0;\\nwgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 "
    "{{{acc}}}, {ops}, p, {tail};\\n}}"
    : {outs} : {ins}, "r"(accumulate));
}}
'''
out = '#pragma once\n\n// Written by make_wgmma.py; do not edit.\n\n#include "common.cuh"\n\n'
for n in (64, 128, 256):
    out += wrapper(n, 'rs') + wrapper(n, 'ss')
for n in (128, 256): out += wrapper(n, 'rs', 1)
open(sys.argv[1], 'w').write(out)
