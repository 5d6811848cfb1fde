# SPDX-License-Identifier: Apache-2.0
"""A random checkpoint of the released layer sizes and its reference outputs, made on a GPU.

Usage: released_parity.py FOLDER [TOKENS]

Writes FOLDER/config.json, model.safetensors (BF16, fused experts) and golden.safetensors with the
outputs of the reference implementation (transformers >= 5.17) in float32, for
`tessera verify FOLDER --device cuda`. One GDN layer with an n-gram memory and one QSA layer; the
vocabulary and the n-gram table are small, everything else has its released size. Needs torch with a
GPU of 80 GiB or more.
"""

import collections
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import Qwen4ExpConfig, Qwen4ExpForConditionalGeneration

SEED = 20
VOCAB = 2048
EOS = 7
GREEDY_PROMPT, GREEDY_TOKENS = 500, 12
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 2560,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "qwen_sparse_attention"],
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,
    "hc_count": 4,
    "hc_lowrank": 320,
    "ple_layer_ids": [1],
    "ple_embed_dim": 2560,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 997,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 4,
    "seed": 1234,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "output_gate_type": "sigmoid",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
# The text model alone is compared; the vision tower only has to exist.
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 48,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "out_hidden_size": TEXT["hidden_size"],
    "num_position_embeddings": 36,
}


def order_ties_by_block() -> None:
    """torch.topk leaves ties open; the specification takes the lower block."""
    plain = torch.Tensor.topk
    top = collections.namedtuple("Top", "values indices")

    def ordered(self, k, dim=-1, **options):
        if self.ndim != 1:
            return plain(self, k, dim=dim, **options)
        values, indices = torch.sort(self, descending=True, stable=True)
        return top(values[:k], indices[:k])

    torch.Tensor.topk = ordered


def fill(name: str, parameter: torch.Tensor) -> None:
    """Random values of a size that keeps activations alive, exactly representable in BF16."""
    normal = torch.randn(parameter.shape, device=parameter.device)
    if name.endswith("A_log"):
        value = torch.log(torch.rand_like(parameter) * 4 + 0.05)
    elif name.endswith("linear_attn.norm.weight"):
        value = 1 + 0.2 * normal
    elif parameter.ndim == 1:
        value = 0.2 * normal
    elif "conv1d" in name:
        value = 0.4 * normal
    elif "embed" in name:
        value = normal
    else:
        sharp = "index_qk_proj" in name or name.endswith("mlp.gate.weight")
        value = normal * ((3.0 if sharp else 1.2) / parameter.shape[-1] ** 0.5)
    parameter.copy_(value.to(torch.bfloat16))


def watch(model, captured: dict) -> None:
    def keep(key, pick):
        return lambda module, args, output: captured.__setitem__(key, pick(output))

    def keep_input(key):
        def hook(module, args, options):
            captured[key] = args[0] if args else options["hidden_states"]

        return hook

    def first(output):
        return output if torch.is_tensor(output) else output[0]

    def chosen(output):
        mask = output[:, 0]
        return (mask if mask.dtype == torch.bool else mask == 0).to(torch.uint8)

    for index, layer in enumerate(model.model.language_model.layers):
        mixer = layer.linear_attn if hasattr(layer, "linear_attn") else layer.self_attn
        mixer.register_forward_pre_hook(keep_input(f"text.attn_in{index}"), with_kwargs=True)
        mixer.register_forward_hook(keep(f"text.attn_out{index}", first))
        layer.mlp.register_forward_hook(keep(f"text.mlp_out{index}", first))
        layer.register_forward_hook(keep(f"text.layer{index}", first))
        layer.mlp.gate.register_forward_hook(
            keep(f"text.experts{index}", lambda output: output[2].to(torch.int32))
        )
        if layer.ple is not None:
            layer.ple.register_forward_hook(keep(f"text.ple{index}", first))
        if hasattr(layer, "self_attn"):
            layer.self_attn.indexer.register_forward_hook(keep(f"text.selected{index}", chosen))


def greedy(model, prompt: torch.Tensor, count: int) -> dict:
    """A continuation without a cache, and how far each best logit is above the next."""
    ids, margins = prompt, []
    for _ in range(count):
        best = model(input_ids=ids[None], use_cache=False).logits[0, -1].topk(2)
        margins.append(best.values[0] - best.values[1])
        ids = torch.cat([ids, best.indices[:1]])
    return {
        "greedy.prompt": prompt.to(torch.int32),
        "greedy.output": ids[len(prompt) :].to(torch.int32),
        "greedy.margin": torch.stack(margins),
    }


def released(state: dict) -> dict:
    """The released files hold the n-gram table in shards."""
    files = {}
    for key, value in state.items():
        table = "ngram_embedding.weight"
        if not key.endswith(table):
            files[key] = value
            continue
        for index, shard in enumerate(value.chunk(TEXT["split_ngram_parts"])):
            files[key.replace(table, f"ngram_embedding.shard_{index}.weight")] = shard
    return files


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 6000
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_grad_enabled(False)
    torch.manual_seed(SEED)
    torch.backends.cuda.matmul.allow_tf32 = False
    order_ties_by_block()
    config = Qwen4ExpConfig(
        text_config=TEXT,
        vision_config=VISION,
        image_token_id=2040,
        video_token_id=2041,
        vision_start_token_id=2042,
        vision_end_token_id=2043,
        tie_word_embeddings=False,
    )
    config._attn_implementation = "eager"
    with torch.device("cuda"):
        model = Qwen4ExpForConditionalGeneration(config).float().eval()
    model.config._attn_implementation = "eager"
    for name, parameter in model.named_parameters():
        fill(name, parameter)

    ids = torch.randint(0, 2000, (1, tokens), device="cuda")
    ids[0, [0, 13, 14, 40, tokens - 2]] = EOS
    ids[0, 60:70] = ids[0, 20:30]
    captured: dict = {}
    watch(model, captured)
    logits = model(input_ids=ids, use_cache=False).logits[0]
    golden = {"text.input_ids": ids[0].to(torch.int32), "text.logits": logits}
    for key, value in captured.items():
        batched = value.ndim > 2 or key.startswith("text.selected")
        golden[key] = value[0] if batched else value
    golden |= greedy(model, ids[0, :GREEDY_PROMPT], GREEDY_TOKENS)
    save_file(
        {key: value.contiguous().cpu() for key, value in golden.items()},
        folder / "golden.safetensors",
    )
    half = model.to(torch.bfloat16)
    own = half(input_ids=ids, use_cache=False).logits[0].float()
    error = (own - logits).norm() / logits.norm()
    print(f"the reference's own BF16 pass is off by {float(error):.2e} in relative logit L2")
    half.config.save_pretrained(folder)
    save_file(
        {key: value.contiguous().cpu() for key, value in released(half.state_dict()).items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    print(json.dumps({key: list(value.shape) for key, value in golden.items()}))


if __name__ == "__main__":
    main()
