"""Same-minute controls for the probes: cuBLAS bf16 GEMMs, SDPA attention and copy bandwidth through PyTorch, medians of event timings."""
import json, statistics, torch

def median_us(f, runs=20, warm=3):
    times = []
    for i in range(runs + warm):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); torch.cuda.synchronize()
        if i >= warm: times.append(a.elapsed_time(b) * 1e3)
    return statistics.median(times)

torch.manual_seed(1)
for rows, k in ((28672, 4096), (6144, 4096), (4096, 14336)):
    w = torch.randn(rows, k, device='cuda', dtype=torch.float16)
    for tokens in (64, 512, 2048, 8192):
        x = torch.randn(tokens, k, device='cuda', dtype=torch.float16)
        us = median_us(lambda: x @ w.t())
        print(json.dumps({'probe': 'control', 'what': 'cuBLAS f16', 'rows': rows, 'k': k, 'tokens': tokens, 'us': round(us, 1), 'tflops': round(2e-6 * rows * k * tokens / us, 1)}))
for heads, kv, dim in ((32, 8, 128), (16, 4, 256)):
    for tokens in (2048, 8192, 32768):
        q = torch.randn(1, heads, tokens, dim, device='cuda', dtype=torch.float16)
        k, v = (torch.randn(1, kv, tokens, dim, device='cuda', dtype=torch.float16) for _ in range(2))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            us = median_us(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), 10)
        print(json.dumps({'probe': 'control', 'what': 'cuDNN attention', 'head_dim': dim, 'tokens': tokens, 'us': round(us, 1), 'tflops': round(2e-6 * dim * heads * tokens * tokens / us, 1)}))
a = torch.empty(1 << 32, device='cuda', dtype=torch.uint8); b = torch.empty_like(a)
us = median_us(lambda: b.copy_(a), 10)
print(json.dumps({'probe': 'control', 'what': 'device copy', 'tb_per_s': round(2 * (1 << 32) / us * 1e-6, 3)}))
