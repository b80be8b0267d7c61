"""Architectures with the truth about them, written by hand from papers, model cards and sources, never from what inspect says.

A row: how to build a tiny one, its norms by (kind, gain, eps), blocks, placement, whether branches are parallel, norms on what
enters and leaves a stack, on queries and keys, and modules called norms that must be reported as unknown.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import styles
import torch
from torch import nn

import normlab
from normlab import surgery

Facts = dict[tuple[str, str, float], int]
PLAIN = ("layer", "rms", "scale", "group", "batch")  # kinds whose formula is written out in ``plain``
BEGIN, END = "<!-- table: make zoo -->\n", "<!-- end of table -->"


@dataclass(frozen=True)
class Row:
    name: str
    make: Callable[[], tuple[nn.Module, Any]]
    norms: Facts
    blocks: int
    placement: str
    parallel: bool = False
    final: int = 1
    embedding: int = 0
    qk: int = 0
    unknown: int = 0
    functions: int = 0
    few: bool = False  # part of the ordinary suite


def rms(n: int, eps: float = 1e-6, gain: str = "direct") -> Facts:
    return {("rms", gain, eps): n}


def ln(n: int, eps: float = 1e-5, gain: str = "direct") -> Facts:
    return {("layer", gain, eps): n}


TINY = {
    "vocab_size": 37, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 3, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ENCODER = {**{k: v for k, v in TINY.items() if k != "num_key_value_heads"}}
PAIR = {
    "vocab_size": 37, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
IMAGE = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 16,
    "patch_size": 8, "num_channels": 3,
}  # fmt: skip


def hf(
    name: str, kind: str = "Model", inputs: Any = None, config: str | None = None, **settings: Any
) -> Callable[[], Any]:
    """A model of Hugging Face's from a configuration; ``inputs`` None: inspect makes them."""

    def make() -> tuple[nn.Module, Any]:
        import transformers

        torch.manual_seed(0)
        made = getattr(transformers, config or f"{name}Config")(**settings)
        return getattr(transformers, f"{name}{kind}")(made), inputs

    return make


def own(placement: str) -> Callable[[], Any]:
    def make() -> tuple[nn.Module, Any]:
        settings = {
            "architecture": "decoder",
            "dim": 16,
            "num_layers": 4,
            "num_heads": 2,
            "vocab_size": 31,
            "max_length": 16,
        }
        return normlab.build(placement=placement, **settings), None

    return make


def built(build: Callable[[], nn.Module], *inputs: torch.Tensor) -> Callable[[], Any]:
    return lambda: (build(), inputs)


def encoder(first: bool, norm: bool = False) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, norm_first=first, batch_first=True)
    return nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(16) if norm else None, enable_nested_tensor=False)


X = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0))
TOKENS = torch.arange(2, 10).unsqueeze(0)
SOUND = torch.randn(1, 1200, generator=torch.Generator().manual_seed(0))

LLAMA = hf("Llama", "ForCausalLM", **TINY)

ROWS = [
    # ---- decoders of Hugging Face
    Row("Llama", LLAMA, rms(5), 2, "pre", few=True),
    Row("Mistral", hf("Mistral", **TINY), rms(5), 2, "pre"),
    Row("Qwen2", hf("Qwen2", **TINY), rms(5), 2, "pre"),
    Row("Qwen3", hf("Qwen3", head_dim=8, **TINY), rms(9), 2, "pre", qk=4),
    Row("SmolLM3", hf("SmolLM3", **TINY), rms(5), 2, "pre"),
    Row("Helium", hf("Helium", head_dim=8, **TINY), rms(5, 1e-8), 2, "pre"),
    Row("Phi-3", hf("Phi3", **TINY), rms(5, 1e-5), 2, "pre"),
    Row("Granite", hf("Granite", residual_multiplier=0.22, **TINY), rms(5), 2, "pre"),
    Row("GLM", hf("Glm", head_dim=8, **TINY), rms(5, 1.5625e-07), 2, "pre"),
    Row("GLM-4", hf("Glm4", head_dim=8, **TINY), rms(9, 1.5625e-07), 2, "sandwich", few=True),
    Row("Gemma", hf("Gemma", head_dim=8, **TINY), rms(5, gain="offset"), 2, "pre"),
    Row("Gemma 2", hf("Gemma2", head_dim=8, **TINY), rms(9, gain="offset"), 2, "sandwich", few=True),
    Row("Gemma 3", hf("Gemma3Text", config="Gemma3TextConfig", head_dim=8, **TINY), rms(13, gain="offset"), 2, "sandwich", qk=4),
    Row("OLMo", hf("Olmo", **TINY), ln(5, gain="none"), 2, "pre"),
    Row("OLMo 2", hf("Olmo2", **TINY), rms(9, 1e-5), 2, "reordered", qk=4, few=True),
    Row("OLMo 3", hf("Olmo3", **TINY), rms(9, 1e-5), 2, "reordered", qk=4),
    Row("EXAONE 4", hf("Exaone4", **TINY), rms(9, 1e-5), 2, "reordered", qk=4),
    Row("Cohere", hf("Cohere", use_qk_norm=True, **TINY), ln(7), 2, "pre", parallel=True, qk=4, few=True),
    Row("Cohere 2", hf("Cohere2", **TINY), ln(3), 2, "pre", parallel=True),
    Row("Phi", hf("Phi", **TINY), ln(3), 2, "pre", parallel=True),
    Row("Persimmon", hf("Persimmon", **ENCODER), ln(9), 2, "pre", qk=4),
    Row("StableLM", hf("StableLm", **TINY), ln(5), 2, "pre"),
    Row("StarCoder 2", hf("Starcoder2", **TINY), ln(5), 2, "pre"),
    Row("Nemotron", hf("Nemotron", **TINY), ln(5, gain="offset"), 2, "pre"),
    Row("Mixtral", hf("Mixtral", num_local_experts=3, **TINY), rms(5, 1e-5), 2, "pre"),
    Row("Qwen2-MoE", hf("Qwen2Moe", num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16, **TINY), rms(5), 2, "pre"),
    Row("Qwen3-MoE", hf("Qwen3Moe", num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8, **TINY), rms(9), 2, "pre", qk=4),
    Row("DeepSeek-V3", hf("DeepseekV3", q_lora_rank=12, kv_lora_rank=12, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, moe_intermediate_size=16, **TINY), rms(9), 2, "pre"),
    Row("gpt-oss", hf("GptOss", num_local_experts=3, num_experts_per_tok=2, head_dim=8, **TINY), rms(5, 1e-5), 2, "pre"),
    Row("Llama 4", hf("Llama4Text", config="Llama4TextConfig", head_dim=8, num_local_experts=2, intermediate_size_mlp=40, interleave_moe_layer_step=2, use_qk_norm=True, **{**TINY, "num_hidden_layers": 2}), {("rms", "direct", 1e-5): 5, ("rms", "none", 1e-5): 2}, 2, "pre", qk=2),
    Row("BitNet", hf("BitNet", **TINY), rms(9, 1e-5), 2, "sub-ln"),
    Row("Jamba", hf("Jamba", num_experts=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, use_mamba_kernels=False, **TINY), rms(8), 2, "pre", few=True),
    Row("Mamba", hf("Mamba", vocab_size=37, hidden_size=24, num_hidden_layers=2, state_size=4, use_mambapy=False), rms(3, 1e-5), 2, "pre"),
    Row("Mamba 2", hf("Mamba2", vocab_size=37, hidden_size=24, num_hidden_layers=2, state_size=8, num_heads=6, head_dim=8, n_groups=1, chunk_size=8), rms(3, 1e-5), 2, "pre", unknown=2),
    Row("Qwen3-Next", hf("Qwen3Next", head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"], **TINY), rms(7, gain="offset"), 2, "pre", qk=2, unknown=1, functions=2),
    Row("GPT-2", hf("GPT2", vocab_size=37, n_embd=24, n_layer=2, n_head=3, n_positions=32), ln(5), 2, "pre", few=True),
    Row("GPT-J", hf("GPTJ", vocab_size=37, n_embd=24, n_layer=2, n_head=3, n_positions=32, rotary_dim=4), ln(3), 2, "pre", parallel=True),
    Row("GPT-NeoX", hf("GPTNeoX", **ENCODER), ln(5), 2, "pre", parallel=True),
    Row("GPT-Neo", hf("GPTNeo", vocab_size=37, hidden_size=24, num_layers=2, num_heads=3, attention_types=[[["global", "local"], 1]], max_position_embeddings=32, window_size=8), ln(5), 2, "pre"),
    Row("GPT-BigCode", hf("GPTBigCode", vocab_size=37, n_embd=24, n_layer=2, n_head=3, n_positions=32), ln(5), 2, "pre"),
    Row("CodeGen", hf("CodeGen", vocab_size=37, n_embd=32, n_layer=2, n_head=4, n_positions=32, rotary_dim=4), ln(3), 2, "pre", parallel=True),
    Row("GPT", hf("OpenAIGPT", vocab_size=37, n_embd=24, n_layer=2, n_head=3, n_positions=32), ln(4), 2, "post", final=0),
    Row("CTRL", hf("CTRL", vocab_size=37, n_embd=24, n_layer=2, n_head=3, n_positions=32, dff=40), ln(5, 1e-6), 2, "pre"),
    Row("BLOOM", hf("Bloom", vocab_size=37, hidden_size=24, n_layer=2, n_head=3), ln(6), 2, "pre", embedding=1),
    Row("OPT", hf("OPT", ffn_dim=40, word_embed_proj_dim=24, **ENCODER), ln(5), 2, "pre"),
    Row("OPT-350m", hf("OPT", ffn_dim=40, word_embed_proj_dim=24, do_layer_norm_before=False, **ENCODER), ln(4), 2, "post", final=0),
    Row("Falcon", hf("Falcon", vocab_size=37, hidden_size=24, num_hidden_layers=2, num_attention_heads=3), ln(3), 2, "pre", parallel=True),
    Row("MPT", hf("Mpt", vocab_size=37, d_model=32, n_layers=2, n_heads=4, max_seq_len=32), ln(5), 2, "pre"),
    Row("BioGPT", hf("BioGpt", **ENCODER), ln(5), 2, "pre"),
    Row("XGLM", hf("XGLM", vocab_size=37, d_model=24, num_layers=2, attention_heads=3, ffn_dim=40, max_position_embeddings=32), ln(5), 2, "pre"),
    # ---- encoders
    Row("BERT", hf("Bert", **ENCODER), ln(5, 1e-12), 2, "post", final=0, embedding=1, few=True),
    Row("RoBERTa", hf("Roberta", **{**ENCODER, "max_position_embeddings": 40}), ln(5, 1e-12), 2, "post", final=0, embedding=1),
    Row("RoBERTa-PreLayerNorm", hf("RobertaPreLayerNorm", **{**ENCODER, "max_position_embeddings": 40}), ln(6, 1e-12), 2, "pre", embedding=1),
    Row("ALBERT", hf("Albert", embedding_size=12, **ENCODER), ln(3, 1e-12), 2, "post", final=0, few=True),
    Row("ELECTRA", hf("Electra", embedding_size=24, **ENCODER), ln(5, 1e-12), 2, "post", final=0, embedding=1),
    Row("DistilBERT", hf("DistilBert", vocab_size=37, dim=24, hidden_dim=40, n_layers=2, n_heads=3), ln(5, 1e-12), 2, "post", final=0, embedding=1),
    Row("MPNet", hf("MPNet", **{**ENCODER, "max_position_embeddings": 40}), ln(5, 1e-12), 2, "post", final=0, embedding=1),
    Row("DeBERTa-v2", hf("DebertaV2", **ENCODER), ln(5, 1e-7), 2, "post", final=0, embedding=1),
    Row("Megatron-BERT", hf("MegatronBert", **ENCODER), ln(5, 1e-12), 2, "pre"),
    Row("XLM", hf("XLM", vocab_size=37, emb_dim=24, n_layers=2, n_heads=3), ln(5, 1e-12), 2, "post", final=0, embedding=1),
    Row("XLNet", hf("XLNet", vocab_size=37, d_model=24, n_layer=2, n_head=3, d_inner=40), ln(4, 1e-12), 2, "post", final=0),
    Row("FNet", hf("FNet", vocab_size=37, hidden_size=24, num_hidden_layers=2, intermediate_size=40, max_position_embeddings=32), ln(5, 1e-12), 2, "post", final=0),
    Row("ModernBERT", hf("ModernBert", **{**ENCODER, "num_hidden_layers": 3, "cls_token_id": 1, "sep_token_id": 2}), ln(7), 3, "pre", embedding=1),
    Row("ESM", hf("Esm", position_embedding_type="rotary", **{**ENCODER, "mask_token_id": 3}), ln(5, 1e-12), 2, "pre"),
    # ---- encoder-decoders
    Row("T5", hf("T5", vocab_size=37, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3, decoder_start_token_id=0), rms(12), 4, "pre", final=2, few=True),
    Row("BART", hf("Bart", **PAIR), ln(12), 4, "post", final=0, embedding=2),
    Row("mBART", hf("MBart", **PAIR), ln(14), 4, "pre", final=2, embedding=2),
    Row("Marian", hf("Marian", **PAIR), ln(10), 4, "post", final=0),
    Row("Pegasus", hf("Pegasus", **PAIR), ln(12), 4, "pre", final=2),
    Row("Whisper", hf("Whisper", inputs={"input_features": torch.randn(1, 8, 40), "decoder_input_ids": TOKENS}, num_mel_bins=8, max_source_positions=20, max_target_positions=32, **{k: v for k, v in PAIR.items() if k != "max_position_embeddings"}), ln(12), 4, "pre", final=2),
    # ---- images and sound
    Row("ViT", hf("ViT", **IMAGE), ln(5, 1e-12), 2, "pre"),
    Row("DeiT", hf("DeiT", **IMAGE), ln(5, 1e-12), 2, "pre"),
    Row("DINOv2", hf("Dinov2", **IMAGE), ln(5, 1e-6), 2, "pre"),
    Row("BEiT", hf("Beit", **IMAGE), ln(5, 1e-12), 2, "pre"),
    Row("CLIP", hf("CLIP", inputs={"input_ids": TOKENS, "pixel_values": torch.randn(1, 3, 16, 16)}, text_config={**ENCODER, "projection_dim": 12}, vision_config={**IMAGE, "projection_dim": 12}, projection_dim=12), ln(11), 4, "pre", final=2, embedding=1, functions=2),
    Row("Swin", hf("Swin", image_size=32, patch_size=4, embed_dim=12, depths=[2, 2], num_heads=[2, 2], window_size=4), ln(11), 4, "pre", final=1, embedding=1, few=True),
    Row("Swin v2", hf("Swinv2", image_size=32, patch_size=4, embed_dim=12, depths=[2, 2], num_heads=[2, 2], window_size=4), ln(11), 4, "reordered", final=1, embedding=2, qk=8, functions=8),
    Row("ConvNeXt", hf("ConvNext", hidden_sizes=[12, 16], depths=[2, 2], num_stages=2, image_size=32), {("layer", "direct", 1e-6): 6, ("layer", "direct", 1e-12): 1}, 4, "inner", final=2, embedding=1),
    Row("wav2vec 2.0", hf("Wav2Vec2", inputs={"input_values": SOUND}, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, **ENCODER), {("layer", "direct", 1e-5): 6, ("group", "direct", 1e-5): 1}, 2, "post", final=0, embedding=1),
    Row("wav2vec 2.0, stable", hf("Wav2Vec2", inputs={"input_values": SOUND}, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, do_stable_layer_norm=True, feat_extract_norm="layer", **ENCODER), ln(8), 2, "pre", final=1),
    # ---- added after the classifier stood, as a test of it
    Row("SigLIP", hf("Siglip", inputs={"input_ids": TOKENS, "pixel_values": torch.randn(1, 3, 16, 16)}, text_config={**ENCODER}, vision_config={**IMAGE}), ln(11, 1e-6), 4, "pre", final=2, functions=2),
    Row("Conformer", hf("Wav2Vec2Conformer", inputs={"input_values": SOUND}, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, position_embeddings_type=None, **ENCODER), {("layer", "direct", 1e-5): 12, ("group", "direct", 1e-5): 1, ("batch", "direct", 1e-5): 2}, 2, "feedforward pre, attention pre, mixing sub-ln, feedforward post+pre"),
    Row("Nemotron-H", hf("NemotronH", hybrid_override_pattern="M*-", layers_block_type=None, mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, n_groups=1, chunk_size=8, head_dim=8, **{**TINY, "num_hidden_layers": 3}), rms(4, 1e-5), 3, "pre", unknown=1),
    Row("Falcon-H1", hf("FalconH1", mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8, mamba_chunk_size=8, **TINY), rms(5, 1e-5), 2, "pre", parallel=True),
    Row("Bamba", hf("Bamba", mamba_n_heads=6, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8, mamba_chunk_size=8, attn_layer_indices=[1], **TINY), rms(5, 1e-5), 2, "pre", unknown=1),
    Row("RWKV-4", hf("Rwkv", vocab_size=37, hidden_size=24, num_hidden_layers=2, context_length=32), ln(6), 2, "pre", embedding=1),
    Row("RecurrentGemma", hf("RecurrentGemma", lru_width=24, attention_window_size=8, **{**TINY, "num_hidden_layers": 3}), rms(7, gain="offset"), 3, "pre"),
    Row("LFM2", hf("Lfm2", layer_types=["conv", "full_attention"], **TINY), rms(7, 1e-5), 2, "pre", qk=2),
    Row("MobileBERT", hf("MobileBert", embedding_size=12, intra_bottleneck_size=12, **ENCODER), {}, 2, "none", final=0, unknown=17),
    Row("BigBird", hf("BigBird", attention_type="original_full", **ENCODER), ln(5, 1e-12), 2, "post", final=0, embedding=1),
    Row("LayoutLM", hf("LayoutLM", **ENCODER), ln(5, 1e-12), 2, "post", final=0, embedding=1),
    Row("ConvBERT", hf("ConvBert", embedding_size=24, **{**ENCODER, "num_attention_heads": 4}), ln(5, 1e-12), 2, "post", final=0, embedding=1),
    Row("Nystromformer", hf("Nystromformer", num_landmarks=4, segment_means_seq_len=8, **ENCODER), ln(5), 2, "post", final=0, embedding=1),
    Row("RoFormer", hf("RoFormer", embedding_size=24, **ENCODER), ln(5, 1e-12), 2, "post", final=0, embedding=1),
    Row("Funnel", hf("Funnel", vocab_size=37, d_model=24, n_head=3, d_head=8, d_inner=40, block_sizes=[1, 1], num_decoder_layers=1), ln(7, 1e-9), 3, "post", final=0, embedding=1),
    Row("SegFormer", hf("Segformer", num_encoder_blocks=2, depths=[2, 2], sr_ratios=[2, 1], hidden_sizes=[12, 16], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], inputs={"pixel_values": torch.randn(1, 3, 32, 32)}), ln(14), 4, "pre", final=2, embedding=2),
    Row("PoolFormer", hf("PoolFormer", depths=[2, 2], hidden_sizes=[12, 16], num_encoder_blocks=2, patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1], mlp_ratio=2.0, inputs={"pixel_values": torch.randn(1, 3, 32, 32)}), {("group", "direct", 1e-5): 8}, 4, "pre", final=0),
    Row("Perceiver", hf("Perceiver", inputs={"inputs": torch.randn(1, 9, 24)}, d_model=24, d_latents=16, num_latents=5, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=2, num_cross_attention_heads=2), ln(7), 3, "pre", final=0),
    Row("Blenderbot", hf("Blenderbot", **PAIR), ln(12), 4, "pre", final=2),
    Row("ProphetNet", hf("ProphetNet", vocab_size=37, hidden_size=24, encoder_ffn_dim=40, num_encoder_layers=2, num_encoder_attention_heads=3, decoder_ffn_dim=40, num_decoder_layers=2, num_decoder_attention_heads=3, max_position_embeddings=32), ln(12), 4, "post", final=0, embedding=2),
    Row("M2M-100", hf("M2M100", **PAIR), ln(12), 4, "pre", final=2),
    Row("HuBERT", hf("Hubert", inputs={"input_values": SOUND}, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, **ENCODER), {("layer", "direct", 1e-5): 6, ("group", "direct", 1e-5): 1}, 2, "post", final=0, embedding=1),
    Row("ERNIE 4.5", hf("Ernie4_5", head_dim=8, **TINY), rms(5, 1e-5), 2, "pre"),
    Row("Arcee", hf("Arcee", **TINY), rms(5, 1e-5), 2, "pre"),
    Row("Apertus", hf("Apertus", **TINY), rms(9, 1e-5), 2, "pre", qk=4),
    # MiniMax-01's report: post-norm in DeepNorm's form. Each layer begins with a norm on the stream, so that the norm behind its last
    # sum is the next layer's first, behind the last layer the model's; the lightning attention has an RMSNorm inside.
    Row("MiniMax", hf("MiniMax", num_local_experts=2, num_experts_per_tok=1, block_size=4, head_dim=8, layer_types=["linear_attention", "full_attention"], **TINY), {**rms(5, 1e-5), **rms(1)}, 2, "post", embedding=1, few=True),
    Row("MiniMax-01's factors", hf("MiniMax", num_local_experts=2, num_experts_per_tok=1, block_size=4, head_dim=8, layer_types=["linear_attention", "full_attention"], linear_attn_alpha_factor=3.5565588200778455, full_attn_alpha_factor=3.5565588200778455, mlp_alpha_factor=3.5565588200778455, **TINY), {**rms(5, 1e-5), **rms(1)}, 2, "deepnorm", embedding=1),
    # ---- torch's own
    Row("nn.TransformerEncoder", built(lambda: encoder(False), X), ln(6), 3, "post", final=0, few=True),
    Row("nn.TransformerEncoder, norm first", built(lambda: encoder(True, True), X), ln(7), 3, "pre"),
    Row("nn.TransformerEncoderLayer", built(lambda: nn.TransformerEncoderLayer(16, 2, 32, norm_first=True, batch_first=True), X), ln(2), 1, "pre", final=0),
    # ---- in the styles of others
    Row("norms as functions", built(styles.FunctionNorms, TOKENS), {}, 3, "pre", embedding=1, qk=6, functions=14, few=True),
    Row("lists never called", built(styles.NeverCalled, TOKENS), rms(7, 1e-12), 3, "pre", few=True),
    Row("lists never called, ScaleNorm", built(lambda: styles.NeverCalled(norm=lambda d: styles.UnitNorm(d, one=True)), TOKENS), {("scale", "direct", 1e-12): 7}, 3, "pre"),
    Row("pairs, added by the parent", built(styles.PairsInBody, torch.randn(1, 5, 12)), ln(7), 3, "pre"),
    Row("DeepNorm by hand", built(lambda: styles.Stacked([styles.ScaledPostBlock(1.7) for _ in range(3)], final=False), TOKENS), ln(6), 3, "deepnorm", final=0, few=True),
    Row("sub-LN by hand", built(lambda: styles.Stacked([styles.InnerNormBlock() for _ in range(3)]), TOKENS), ln(13), 3, "sub-ln"),
    Row("ReZero by hand", built(lambda: styles.Stacked([styles.LearnedFactorBlock() for _ in range(3)], final=False), TOKENS), {}, 3, "rezero", final=0),
    Row("adapters inside", built(lambda: styles.Stacked([styles.AdaptedBlock() for _ in range(3)]), TOKENS), ln(7), 3, "pre"),
    Row("no residual", built(styles.NoResidual, TOKENS), ln(3), 0, "unknown", final=0, few=True),
    Row("broken path", built(styles.BrokenPath, TOKENS), ln(3), 0, "unknown", final=0, few=True),
    Row("gated path", built(styles.Gated, TOKENS), ln(3), 0, "unknown", final=0),
    Row("nn.Transformer", built(lambda: nn.Transformer(16, 2, 2, 2, 32, batch_first=True), X, X), ln(12), 4, "post", final=2),
]  # fmt: skip

for placement, count, final, embedding, qk in (
    ("none", 0, 0, 0, 0), ("post", 8, 0, 0, 0), ("pre", 9, 1, 0, 0), ("deepnorm", 8, 0, 0, 0), ("sandwich", 17, 1, 0, 0),
    ("peri", 18, 1, 1, 0), ("sub-ln", 17, 1, 0, 0), ("normformer", 17, 1, 0, 0), ("residual-dual", 9, 1, 0, 0), ("b2t", 8, 0, 0, 0),
    ("mix-ln", 9, 1, 0, 0), ("hybrid-norm", 17, 1, 0, 8), ("layernorm-scaling", 9, 1, 0, 0), ("reordered", 9, 1, 0, 0),
    ("admin", 8, 0, 0, 0), ("rezero", 0, 0, 0, 0),
):  # fmt: skip
    ROWS.append(
        Row(
            f"normlab, {placement}",
            own(placement),
            ln(count) if count else {},
            4,
            placement,
            final=final,
            embedding=embedding,
            qk=qk,
        )
    )


@dataclass(frozen=True)
class Seen:
    """What inspect said of one row, and what of it is wrong."""

    row: Row
    wrong: tuple[str, ...]
    norms: str
    facts: str
    blocks: str
    placement: str
    coverage: str


def look(row: Row) -> Seen:
    model, inputs = row.make()
    found = {how: normlab.inspect(model, inputs, capture=how) for how in ("operators", "graph")}
    a, b = found["operators"], found["graph"]
    counted: Facts = {}
    for site in a.norms:
        key = (site.kind, site.gain, site.eps)
        counted[key] = counted.get(key, 0) + 1
    right = sum(min(counted.get(key, 0), n) for key, n in row.norms.items())
    total = sum(row.norms.values())
    checks = {
        "norms": counted == row.norms,
        "unknown norms": len(a.unknown) == row.unknown and all(u.reason for u in a.unknown),
        "blocks": len(a.blocks) == row.blocks,
        "placement": a.placement == row.placement,
        "parallel": any(s.parallel for s in a.stacks) == row.parallel,
        "final norms": len(a.final_norms) == row.final,
        "embedding norms": len(a.embedding_norms) == row.embedding,
        "norms of queries and keys": len({n for s in a.stacks for n in s.queries_keys}) == row.qk,
        "functions": len(a.functions) == row.functions,
        "both captures": _outline(a) == _outline(b),
        "formulas": not formulas(model, inputs, a.norms),
    }
    wrong = tuple(name for name, ok in checks.items() if not ok)
    uses = len(a.norms) - len(a.silent)
    return Seen(
        row, wrong, f"{len(a.norms)} of {total}" + (f", {len(a.unknown)} unknown" if a.unknown else ""), f"{right} of {total}",
        f"{len(a.blocks)} of {row.blocks}", a.placement + (", parallel" if any(s.parallel for s in a.stacks) else ""),
        f"{uses} of {len(a.norms)}",
    )  # fmt: skip


def plain(site: surgery.NormSite, x: torch.Tensor) -> torch.Tensor:
    """What the site says of x before gain and bias, written out; kinds whose statistic is a token's or a sample's, and batch in evaluation."""
    module: Any = site.module
    if site.kind == "batch" and module.running_mean is not None:
        shape = [-1 if a == site.channel_dim % x.dim() else 1 for a in range(x.dim())]
        mean, var = (t.to(x.dtype).view(shape) for t in (module.running_mean, module.running_var))
        return (x - mean) / (var + site.eps).sqrt()
    last = x.movedim(site.channel_dim, -1)
    if site.kind == "group":
        assert site.groups is not None
        last = last.unflatten(-1, (site.groups, -1))
    over = (-1,) if site.kind == "scale" else tuple(range(-site.axes, 0))
    if site.kind == "group":
        over = (*range(1, last.dim() - 2), -1)
    center = last - last.mean(over, keepdim=True) if site.kind in ("layer", "group") else last
    total = center.pow(2).sum(over, keepdim=True)
    count = center.numel() // total.numel()
    root = (total / {"mean": count, "sum": 1, "unbiased": count - 1}[site.square]).sqrt()
    if site.eps_form == "root":
        low = (root**2 + site.eps).sqrt()
    elif site.eps_form == "outside":
        low = root + site.eps
    else:  # of the length
        low = root * (total.sqrt().clamp(min=site.eps) / total.sqrt().clamp(min=1e-300))
    made = center / low
    return (made.flatten(-2) if site.kind == "group" else made).movedim(-1, site.channel_dim)


def off(site: surgery.NormSite, x: torch.Tensor) -> float:
    """How far the module's answer to x lies from what the site says, over its size; in float64, in evaluation."""
    module = copy.deepcopy(site.module).eval().double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(
                torch.rand(p.shape, generator=torch.Generator().manual_seed(3), dtype=p.dtype)
            )  # a gain of one hides
        site, x = replace(site, module=module), x.double()
        expected = plain(site, x)
        if site.weight is not None:
            expected = expected * _laid(site, site.gain_scale * (site.weight + (site.gain == "offset")), x)
        else:
            expected = expected * site.gain_scale
        if site.bias is not None:
            expected = expected + _laid(site, site.bias, x)
        y = module(x)
    return float((y - expected).norm() / y.norm())


def _laid(site: surgery.NormSite, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p = p.squeeze()
    return p.view([-1 if a == site.channel_dim % x.dim() else 1 for a in range(x.dim())]) if p.dim() == 1 else p


def formulas(model: nn.Module, inputs: Any, norms: tuple[surgery.NormSite, ...]) -> list[str]:
    """Norms whose answer to random input of the shape they are really given is not what their site says."""
    shapes: dict[str, torch.Size] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda _, args, kwargs: shapes.setdefault(name, next(iter((*args, *kwargs.values()))).shape) and None

    handles = [s.module.register_forward_pre_hook(note(s.name), with_kwargs=True) for s in norms]
    normlab.inspect(model, inputs)
    for handle in handles:
        handle.remove()
    draw = torch.Generator().manual_seed(5)
    return [
        s.name for s in norms if s.name in shapes and s.kind in PLAIN
        and off(s, torch.randn(shapes[s.name], generator=draw) * torch.rand(*shapes[s.name][:-1], 1, generator=draw) + 0.1) > 1e-5
    ]  # fmt: skip


def _outline(found: surgery.Structure) -> Any:
    """What both captures must agree on."""
    return [
        (s.name, s.placement, s.parallel, [(b.name, b.use, b.placement) for b in s.blocks], s.final_norms, s.embedding_norms,
         s.queries_keys)
        for s in found.stacks
    ]  # fmt: skip


HEADERS = {
    "en": "| architecture | norms found | facts right | blocks | placement | norms called |",
    "zh": "| 架构 | 找到的归一化层 | 事实正确 | 块 | 归一化位置 | 被调用 |",
}


def write(seen: list[Seen], docs: Path) -> None:
    """The table into both pages."""
    for language, header in HEADERS.items():
        page = docs / language / "inspect.md"
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        rows = [f"| {s.row.name} | {s.norms} | {s.facts} | {s.blocks} | {s.placement} | {s.coverage} |" for s in seen]
        table = "\n".join([header, "|---|---|---|---|---|---|", *rows])
        page.write_text(before + BEGIN + table + "\n" + END + rest.split(END)[1], encoding="utf-8")


def main() -> int:
    import sys
    import warnings

    warnings.filterwarnings("ignore")
    words = [w.lower() for w in sys.argv[1:] if w != "--write"]
    rows = [r for r in ROWS if not words or any(w in r.name.lower() for w in words)]
    seen = []
    for row in rows:
        seen.append(look(row))
        one = seen[-1]
        said = f"WRONG ({', '.join(one.wrong)})" if one.wrong else "ok"
        print(
            f"{said} {row.name}: norms {one.norms}; facts {one.facts}; blocks {one.blocks}; {one.placement}", flush=True
        )
    wrong = [s.row.name for s in seen if s.wrong]
    print(f"{len(seen) - len(wrong)} of {len(seen)} right" + (f"; wrong: {', '.join(wrong)}" if wrong else ""))
    if "--write" in sys.argv and not words and not wrong:
        write(seen, Path(__file__).resolve().parents[2] / "docs")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
