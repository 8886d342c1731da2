"""What people train, small: four layers of width 128 on 64 tokens or 64×64 images, sixteen samples."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.norms_models import Problem

VOCABULARY, TOKENS = 1000, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
}
PATCHES = {**{key: SIZES[key] for key in list(SIZES)[1:5]}, "image_size": 64, "patch_size": 8, "num_labels": 10}
RELATIVE = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "type_vocab_size": 0,
    "position_biased_input": False,
}
CONFIGURATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("BertForMaskedLM", "input_ids", SIZES),
    "GPT-2": (
        "GPT2LMHeadModel",
        "input_ids",
        {"vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 128},
    ),
    "Llama": ("LlamaForCausalLM", "input_ids", SIZES),
    "Gemma": ("GemmaForCausalLM", "input_ids", {**SIZES, "head_dim": 32, "num_key_value_heads": 1}),
    "ViT": ("ViTForImageClassification", "pixel_values", PATCHES),
    "Swin": (
        "SwinForImageClassification",
        "pixel_values",
        {
            "image_size": 64,
            "patch_size": 4,
            "embed_dim": 64,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 8,
            "num_labels": 10,
        },
    ),
    "ConvNeXt": (
        "ConvNextForImageClassification",
        "pixel_values",
        {"hidden_sizes": [64, 128], "depths": [2, 2], "num_stages": 2, "num_labels": 10},
    ),
    "DeBERTa-v2": ("DebertaV2ForMaskedLM", "input_ids", {**SIZES, **RELATIVE}),
    "Mamba": (
        "MambaForCausalLM",
        "input_ids",
        {"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 4},
    ),
    "ResNet, BatchNorm in training": (
        "ResNetForImageClassification",
        "pixel_values",
        {"embedding_size": 64, "hidden_sizes": [64, 128], "depths": [2, 2], "layer_type": "basic", "num_labels": 10},
    ),
}


class Logits(nn.Module):
    """Takes one tensor and returns logits, as the other models do."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import transformers

        kind, self.argument, settings = CONFIGURATIONS[name]
        model = getattr(transformers, kind)
        self.model = model(model.config_class(**settings))
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(**{self.argument: inputs}).logits


class Recurrent(nn.Module):
    """Embedding, two recurrent layers, and a class for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, 128), nn.Linear(128, VOCABULARY)
        self.layers = nn.LSTM(128, 128, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(tokens))[0])


def small_cnn() -> nn.Module:
    """Return a network of 10,000 parameters for 8×8 images: a step takes about two milliseconds."""
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10)
    )


def _tokens(batch_size: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch_size, TOKENS))


def _images(batch_size: int) -> Tensor:
    return torch.randn(batch_size, 3, 64, 64)


def _small_images(batch_size: int) -> Tensor:
    return torch.randn(batch_size, 1, 8, 8)


def _classes(batch_size: int) -> Tensor:
    return torch.randint(10, (batch_size,))


def _problem(name: str) -> Problem:
    text = CONFIGURATIONS[name][1] == "input_ids"
    build: Callable[[], nn.Module] = lambda: Logits(name)  # noqa: E731
    return Problem(name, build, _tokens if text else _images, _tokens if text else _classes, batch_size=16)


PROBLEMS = [
    Problem("LSTM", Recurrent, _tokens, _tokens, batch_size=16),
    Problem("small CNN, 8×8", small_cnn, _small_images, _classes, batch_size=32),
]
if importlib.util.find_spec("transformers") is not None:
    PROBLEMS = [*map(_problem, CONFIGURATIONS), *PROBLEMS]
