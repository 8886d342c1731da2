"""Architectures of `transformers`, built tiny from their configurations: no download, random numbers, float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

K, T = 3, 6
SIZES = {
    "vocab_size": 23,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}
SEQ2SEQ = {
    **{
        key: SIZES[key]
        for key in ("vocab_size", "max_position_embeddings", "pad_token_id", "bos_token_id", "eos_token_id")
    },
    "d_model": 16,
    **{f"{side}_layers": 1 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 20 for side in ("encoder", "decoder")},
    "decoder_start_token_id": 1,
}
T5 = {
    "vocab_size": 23,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 20,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 1,
}
IMAGE = {**{key: SIZES[key] for key in list(SIZES)[1:5]}, "image_size": 16, "patch_size": 8, "num_labels": 3}
SPEECH = {
    **{key: SIZES[key] for key in list(SIZES)[:5]},
    "conv_dim": (8, 8),
    "conv_kernel": (4, 3),
    "conv_stride": (3, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2,
    "mask_time_length": 2,
    "mask_time_prob": 0.3,
    "mask_feature_prob": 0.0,
}
EXPERTS = {**GROUPED, "moe_intermediate_size": 12}


@dataclass(frozen=True)
class Architecture:
    """How to build one.

    Attributes:
        model: The name of its class.
        settings: Of its configuration.
        inputs: "text", "padded text", "pairs" (text to text), "image", "speech", "both" (text and image).
        output: The field of the result that the loss is taken of.
    """

    model: str
    settings: dict[str, Any]
    inputs: str = "text"
    output: str = "logits"


def text(batch_size: int = K) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {"input_ids": torch.randint(3, 23, (batch_size, T), generator=generator)}


def padded_text() -> dict[str, Tensor]:
    tokens = text()
    mask = torch.ones(K, T, dtype=torch.long)
    mask[1, T - 2 :] = 0
    return {"input_ids": tokens["input_ids"] * mask, "attention_mask": mask}


def pairs() -> dict[str, Tensor]:
    given = padded_text()
    return {**given, "decoder_input_ids": text()["input_ids"].flip(1)[:, : T - 1].contiguous()}


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


INPUTS: dict[str, Callable[[], dict[str, Tensor]]] = {
    "text": text,
    "padded text": padded_text,
    "pairs": pairs,
    "image": lambda: {"pixel_values": numbers(K, 3, 16, 16)},
    "large image": lambda: {"pixel_values": numbers(K, 3, 32, 32)},
    "speech": lambda: {"input_values": numbers(K, 60)},
    "both": lambda: {**clip_text(), "pixel_values": numbers(K, 3, 16, 16)},
    "clip text": lambda: clip_text(),
    "spectrum": lambda: {"input_features": numbers(K, 8, 2 * T), "decoder_input_ids": text()["input_ids"]},
    "patches": lambda: {"input_values": numbers(K, 24, 16)},
    "series": lambda: {"past_values": numbers(K, 16, 2)},
}


def clip_text() -> dict[str, Tensor]:
    given = padded_text()
    tokens = given["input_ids"].clone()
    tokens[:, 4] = 2  # the end of the text, at different places
    tokens[1, 4], tokens[1, 2] = 0, 2
    return {**given, "input_ids": tokens}


def _bert_like(name: str, **more: Any) -> Architecture:
    return Architecture(f"{name}ForSequenceClassification", {**SIZES, "num_labels": 3, **more}, "padded text")


def _causal(name: str, settings: dict[str, Any] = GROUPED, inputs: str = "text", **more: Any) -> Architecture:
    return Architecture(f"{name}ForCausalLM", {**settings, **more}, inputs)


CLIP = {
    "text_config": {**SIZES, "projection_dim": 12},
    "vision_config": {**IMAGE, "projection_dim": 12},
    "projection_dim": 12,
}
ARCHITECTURES: dict[str, Architecture] = {
    "BERT": _bert_like("Bert"),
    "RoBERTa": _bert_like("Roberta"),
    "ALBERT": _bert_like("Albert", embedding_size=8),
    "ELECTRA": _bert_like("Electra", embedding_size=8),
    "DistilBERT": Architecture(
        "DistilBertForSequenceClassification",
        {
            "vocab_size": 23,
            "dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 20,
            "num_labels": 3,
            "pad_token_id": 0,
        },
        "padded text",
    ),
    "DeBERTa-v2": _bert_like(
        "DebertaV2",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        type_vocab_size=0,
        position_biased_input=False,
    ),
    "DeBERTa": _bert_like("Deberta", relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0),
    "MPNet": _bert_like("MPNet"),
    "Camembert": _bert_like("Camembert"),
    "XLM-RoBERTa": _bert_like("XLMRoberta"),
    "ConvBERT": _bert_like("ConvBert", embedding_size=16, head_ratio=2),
    "MobileBERT": _bert_like("MobileBert", embedding_size=8, intra_bottleneck_size=16, true_hidden_size=16),
    "SqueezeBERT": _bert_like(
        "SqueezeBert",
        embedding_size=16,
        q_groups=2,
        k_groups=2,
        v_groups=2,
        post_attention_groups=1,
        intermediate_groups=2,
        output_groups=2,
    ),
    "FNet": Architecture("FNetForSequenceClassification", {**SIZES, "num_labels": 3}, "text"),
    "Funnel": Architecture(
        "FunnelBaseModel",
        {
            "vocab_size": 23,
            "d_model": 16,
            "n_head": 2,
            "d_head": 8,
            "d_inner": 20,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
            "pad_token_id": 0,
        },
        "padded text",
        "last_hidden_state",
    ),
    "XLNet": Architecture(
        "XLNetModel",
        {"vocab_size": 23, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 20},
        "text",
        "last_hidden_state",
    ),
    "XLM": Architecture(
        "XLMModel",
        {"vocab_size": 23, "emb_dim": 16, "n_layers": 2, "n_heads": 2, "pad_index": 0},
        "text",
        "last_hidden_state",
    ),
    "ModernBERT": _bert_like("ModernBert", reference_compile=False, global_attn_every_n_layers=2, local_attention=4),
    "RoFormer": _bert_like("RoFormer", embedding_size=16),
    "Longformer": Architecture(
        "LongformerForSequenceClassification", {**SIZES, "attention_window": 4, "num_labels": 3}, "padded text"
    ),
    "BigBird": _bert_like("BigBird", attention_type="original_full"),
    "YOSO": _bert_like("Yoso", use_expectation=True),
    "GPT-2": Architecture(
        "GPT2LMHeadModel", {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    ),
    "GPT": Architecture(
        "OpenAIGPTLMHeadModel", {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    ),
    "GPT-Neo": Architecture(
        "GPTNeoForCausalLM",
        {
            "vocab_size": 23,
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "max_position_embeddings": 32,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "intermediate_size": 20,
        },
    ),
    "GPT-NeoX": Architecture("GPTNeoXForCausalLM", SIZES),
    "GPT-J": Architecture(
        "GPTJForCausalLM",
        {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "rotary_dim": 4},
    ),
    "GPT-BigCode": Architecture(
        "GPTBigCodeForCausalLM", {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    ),
    "CTRL": Architecture(
        "CTRLLMHeadModel", {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 2, "dff": 20, "n_positions": 32}
    ),
    "OPT": Architecture(
        "OPTForCausalLM",
        {
            "vocab_size": 23,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 20,
            "max_position_embeddings": 32,
            "word_embed_proj_dim": 16,
            "pad_token_id": 0,
        },
    ),
    "BLOOM": Architecture("BloomForCausalLM", {"vocab_size": 23, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "MPT": Architecture(
        "MptForCausalLM", {"vocab_size": 23, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 32}
    ),
    "Falcon": _causal("Falcon", SIZES, new_decoder_architecture=False),
    "Llama": _causal("Llama"),
    "Mistral": _causal("Mistral", sliding_window=4),
    "Qwen2": _causal("Qwen2"),
    "Qwen3": _causal("Qwen3"),
    "Gemma": _causal("Gemma"),
    "Gemma 2": _causal("Gemma2", sliding_window=4),
    "Gemma 3": _causal("Gemma3", sliding_window=4),
    "Phi": _causal("Phi"),
    "Phi-3": _causal("Phi3"),
    "StableLM": _causal("StableLm"),
    "Cohere": _causal("Cohere"),
    "OLMo": _causal("Olmo"),
    "OLMo 2": _causal("Olmo2"),
    "Granite": _causal("Granite"),
    "Starcoder2": _causal("Starcoder2"),
    "Persimmon": _causal("Persimmon"),
    "SmolLM3": _causal("SmolLM3"),
    "GLM": _causal("Glm"),
    "Nemotron": _causal("Nemotron"),
    "Mixtral": _causal("Mixtral", num_local_experts=3, num_experts_per_tok=2),
    "Qwen2-MoE": _causal("Qwen2Moe", EXPERTS, num_experts=3, num_experts_per_tok=2, shared_expert_intermediate_size=12),
    "Qwen3-MoE": _causal("Qwen3Moe", EXPERTS, num_experts=3, num_experts_per_tok=2),
    "OLMoE": _causal("Olmoe", EXPERTS, num_experts=3, num_experts_per_tok=2),
    "GPT-OSS": _causal("GptOss", GROUPED, num_local_experts=3, num_experts_per_tok=2, sliding_window=4),
    "DeepSeek-V3": _causal(
        "DeepseekV3",
        {**SIZES, "moe_intermediate_size": 12},
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        num_key_value_heads=2,
    ),
    "Mamba": Architecture(
        "MambaForCausalLM", {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    ),
    "Mamba 2": Architecture(
        "Mamba2ForCausalLM",
        {
            "vocab_size": 23,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "state_size": 4,
            "num_heads": 4,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 4,
        },
    ),
    "RecurrentGemma": _causal(
        "RecurrentGemma", {**GROUPED, "lru_width": 16, "attention_window_size": 4, "num_hidden_layers": 3}
    ),
    "T5": Architecture("T5ForConditionalGeneration", {**T5}, "pairs"),
    "mT5": Architecture("MT5ForConditionalGeneration", {**T5}, "pairs"),
    "Switch": Architecture(
        "SwitchTransformersForConditionalGeneration",
        {**T5, "num_experts": 2, "expert_capacity": 64, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        "pairs",
    ),
    "BART": Architecture("BartForConditionalGeneration", SEQ2SEQ, "pairs"),
    "mBART": Architecture("MBartForConditionalGeneration", SEQ2SEQ, "pairs"),
    "Pegasus": Architecture("PegasusForConditionalGeneration", SEQ2SEQ, "pairs"),
    "Marian": Architecture("MarianMTModel", SEQ2SEQ, "pairs"),
    "M2M-100": Architecture("M2M100ForConditionalGeneration", SEQ2SEQ, "pairs"),
    "Blenderbot": Architecture("BlenderbotForConditionalGeneration", SEQ2SEQ, "pairs"),
    "Whisper": Architecture(
        "WhisperForConditionalGeneration",
        {
            **{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
            "num_mel_bins": 8,
            "max_source_positions": T,
            "max_target_positions": 32,
        },
        "spectrum",
    ),
    "ViT": Architecture("ViTForImageClassification", IMAGE, "image"),
    "DeiT": Architecture("DeiTForImageClassification", IMAGE, "image"),
    "BEiT": Architecture(
        "BeitForImageClassification",
        {**IMAGE, "use_relative_position_bias": True, "layer_scale_init_value": 0.1},
        "image",
    ),
    "DINOv2": Architecture("Dinov2ForImageClassification", {**IMAGE, "mlp_ratio": 2}, "image"),
    "Swin": Architecture(
        "SwinForImageClassification",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 8,
            "depths": [2, 1],
            "num_heads": [2, 2],
            "window_size": 4,
            "num_labels": 3,
        },
        "large image",
    ),
    "Swin v2": Architecture(
        "Swinv2ForImageClassification",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 8,
            "depths": [2, 1],
            "num_heads": [2, 2],
            "window_size": 4,
            "num_labels": 3,
        },
        "large image",
    ),
    "ConvNeXt": Architecture(
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2, "num_labels": 3},
        "large image",
    ),
    "ConvNeXt v2": Architecture(
        "ConvNextV2ForImageClassification",
        {"hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2, "num_labels": 3},
        "large image",
    ),
    "ResNet": Architecture(
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "num_labels": 3},
        "large image",
    ),
    "RegNet": Architecture(
        "RegNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "groups_width": 4, "num_labels": 3},
        "large image",
    ),
    "MobileViT": Architecture(
        "MobileViTForImageClassification",
        {
            "image_size": 32,
            "hidden_sizes": [8, 12, 16],
            "neck_hidden_sizes": [4, 4, 8, 8, 8, 8, 16],
            "num_attention_heads": 2,
            "num_labels": 3,
        },
        "large image",
    ),
    "PoolFormer": Architecture(
        "PoolFormerForImageClassification",
        {"hidden_sizes": [4, 8, 8, 8], "depths": [1, 1, 1, 1], "num_labels": 3},
        "large image",
    ),
    "SegFormer": Architecture(
        "SegformerForImageClassification",
        {
            "hidden_sizes": [4, 8, 8, 8],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 8,
            "num_labels": 3,
        },
        "large image",
    ),
    "CLIP": Architecture("CLIPModel", CLIP, "both", "text_embeds"),
    "CLIP text": Architecture(
        "CLIPTextModelWithProjection", {**SIZES, "projection_dim": 12}, "clip text", "text_embeds"
    ),
    "SigLIP": Architecture("SiglipModel", {"text_config": SIZES, "vision_config": IMAGE}, "both", "text_embeds"),
    "ViLT": Architecture("ViltModel", {**SIZES, **IMAGE}, "both", "pooler_output"),
    "wav2vec 2.0": Architecture("Wav2Vec2ForCTC", SPEECH, "speech"),
    "HuBERT": Architecture("HubertForCTC", SPEECH, "speech"),
    "WavLM": Architecture("WavLMForCTC", SPEECH, "speech"),
    "AST": Architecture(
        "ASTForAudioClassification",
        {
            **{k: v for k, v in IMAGE.items() if k not in ("image_size",)},
            "patch_size": 8,
            "max_length": 24,
            "num_mel_bins": 16,
            "frequency_stride": 8,
            "time_stride": 8,
        },
        "patches",
    ),
    "Perceiver": Architecture(
        "PerceiverForMaskedLM",
        {
            "vocab_size": 23,
            "d_model": 16,
            "d_latents": 16,
            "num_latents": 4,
            "num_blocks": 1,
            "num_self_attends_per_block": 1,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
            "max_position_embeddings": T,
        },
        "text",
    ),
}
ALWAYS = ("BERT", "GPT-2", "Llama", "Gemma", "T5", "ViT", "Swin", "ConvNeXt", "Mixtral", "CLIP")


def build(name: str, attention: str = "eager", experts: str = "eager") -> nn.Module:
    """Return the model, every parameter drawn at random."""
    import transformers

    architecture = ARCHITECTURES[name]
    kind = getattr(transformers, architecture.model)
    config = kind.config_class(**architecture.settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model = kind._from_config(config, attn_implementation=attention, experts_implementation=experts)
        except ValueError:  # no such attention in this architecture
            model = kind(config)
        for parameter in model.parameters():
            with torch.no_grad():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.double()


def result(model: nn.Module, name: str, inputs: dict[str, Tensor]) -> Tensor:
    """Return the tensor that the loss is taken of."""
    return getattr(model(**inputs), ARCHITECTURES[name].output)
