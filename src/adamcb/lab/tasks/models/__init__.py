"""The models that the experiments train, by name.

`build_model` is the door: it takes the names that the command line takes. All models map images
[N, channels, height, width] to logits [N, num_classes]; softmax belongs to the loss. Initial parameters come from
torch's global generator, so the caller's `torch.manual_seed` decides them; nothing here seeds.
"""

from adamcb.lab.tasks.models._build import MODEL_NAMES, build_model, forward_layout
from adamcb.lab.tasks.models._convnext import ConvNeXt, ConvNeXtBlock, ConvNeXtStage, convnext_base, convnext_large
from adamcb.lab.tasks.models._paper import cnn, logistic, mlp, vgg
from adamcb.lab.tasks.models._resnet import ResNet, resnet18

__all__ = [
    "MODEL_NAMES",
    "ConvNeXt",
    "ConvNeXtBlock",
    "ConvNeXtStage",
    "ResNet",
    "build_model",
    "cnn",
    "convnext_base",
    "convnext_large",
    "forward_layout",
    "logistic",
    "mlp",
    "resnet18",
    "vgg",
]
