# SPDX-License-Identifier: Apache-2.0
"""What the prompt attention is measured against: dense attention of the last rows of a context in
PyTorch, lower-right causal, each backend that takes it."""

import argparse

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

HEADS, KV_HEADS, DIM = 24, 2, 256
RUNS = 5


def milliseconds(run):
    run()
    times = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[RUNS // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--context", type=int, default=65536)
    options = parser.parse_args()
    shape = dict(device="cuda", dtype=torch.bfloat16)
    q = torch.randn(1, HEADS, options.rows, DIM, **shape)
    k, v = (torch.randn(1, KV_HEADS, options.context, DIM, **shape) for _ in range(2))
    wide_k, wide_v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    bias = causal_lower_right(options.rows, options.context)
    mask = torch.ones(options.rows, options.context, dtype=torch.bool, device="cuda").tril(
        options.context - options.rows
    )
    for backend in (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
    ):
        for name, attn_mask in (("bias", bias), ("mask", mask)):
            for grouped in (True, False):
                keys, values = (k, v) if grouped else (wide_k, wide_v)
                label = f"{backend.name} {name}{' grouped' if grouped else ''}"
                try:
                    with sdpa_kernel(backend):
                        time = milliseconds(
                            lambda: scaled_dot_product_attention(
                                q, keys, values, attn_mask=attn_mask, enable_gqa=grouped
                            )
                        )
                except RuntimeError as error:
                    print(f"{label:45} refused: {str(error).splitlines()[0][:80]}")
                    continue
                print(f"{label:45} {time:9.3f} ms")


if __name__ == "__main__":
    main()
