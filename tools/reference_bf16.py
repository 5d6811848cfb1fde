# SPDX-License-Identifier: Apache-2.0
"""How far the reference implementation strays from itself when it runs in BF16.

Usage: reference_bf16.py MODEL REFERENCE.json

Runs the Hugging Face implementation (transformers >= 5.17) of a trained model in float32 and in
BF16 over the greedy texts and the perplexity texts of its reference file, teacher-forced, and
prints the greedy tokens that BF16 turns with their float32 margins, the change of all margins, and
the perplexities. The figures of docs/numerics.md come from it. Needs torch with a GPU.
"""

import collections
import json
import math
import pathlib
import sys

import torch
from transformers import AutoTokenizer, Qwen4ExpForConditionalGeneration

Top = collections.namedtuple("Top", "values indices")
unordered_topk = torch.Tensor.topk


def ordered_topk(self, k, dim=-1, **options):
    """Ties of block scores go to the lower block; torch.topk leaves them open."""
    if self.ndim != 1:
        return unordered_topk(self, k, dim=dim, **options)
    values, indices = torch.sort(self, descending=True, stable=True)
    return Top(values[:k], indices[:k])


def load(folder, dtype):
    model = Qwen4ExpForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    )
    return model.cuda().eval()


def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]).cuda(), use_cache=False).logits[0].float()


def margins(model, case):
    """The reference's token against the best other one, at every step."""
    prompt, output = case["prompt_ids"], case["output_ids"]
    logits = logits_of(model, prompt + output)[len(prompt) - 1 : -1]
    chosen = torch.tensor(output).cuda()[:, None]
    others = logits.scatter(1, chosen, -torch.inf).amax(1)
    return (logits.gather(1, chosen)[:, 0] - others).tolist()


def mean_nll(model, ids):
    logits = logits_of(model, ids)
    target = torch.tensor(ids[1:]).cuda()
    return torch.nn.functional.cross_entropy(logits[:-1], target).item()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, reference = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.Tensor.topk = ordered_topk
    tokenizer = AutoTokenizer.from_pretrained(folder)
    exact, rounded = load(folder, torch.float32), load(folder, torch.bfloat16)
    changes, turned = [], []
    for name, case in reference["greedy"].items():
        for step, (before, after) in enumerate(zip(margins(exact, case), margins(rounded, case))):
            changes.append(after - before)
            if after < 0:
                turned.append(f"{name} at token {step}: margin {before:.4f} became {after:.4f}")
    print(f"{len(changes)} greedy tokens, {len(turned)} turned by BF16")
    print("\n".join(turned))
    print(f"change of a margin: standard deviation {torch.tensor(changes).std().item():.3f}")
    for name, text in reference["perplexity"].items():
        ids = tokenizer(text["text"])["input_ids"][: text["tokens"]]
        before, after = mean_nll(exact, ids), mean_nll(rounded, ids)
        print(f"{name}: {len(ids)} tokens, perplexity {math.exp(before):.6f}, in BF16 "
              f"{math.exp(after):.6f}, relative {math.expm1(after - before):.1e}")


if __name__ == "__main__":
    main()
