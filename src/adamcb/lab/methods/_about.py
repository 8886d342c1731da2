"""What each method is, in a sentence, and where it was published: the report page shows both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from adamcb.lab.methods._method import Method

_ADAM = "https://arxiv.org/abs/1412.6980"
_AMSGRAD = "https://arxiv.org/abs/1904.09237"
_ADAMX = "https://arxiv.org/abs/1904.03590"
_ADAMBS = "https://arxiv.org/abs/2010.12986"
_ADAMCB = "https://arxiv.org/abs/2512.06795"

ABOUT = {
    "adam": ("Shuffled epochs: every sample once an epoch. The baseline that most people train with.", _ADAM),
    "amsgrad": ("Shuffled epochs, with the AMSGrad optimizer.", _AMSGRAD),
    "adamx": ("Shuffled epochs, with the AdamX optimizer.", _ADAMX),
    "adamx-paper": ("Shuffled epochs, with AdamX as the AdamCB paper has it: no bias correction.", _ADAMX),
    "adambs": ("A bandit chooses one sample at a time, with replacement; in the AdamCB paper's form.", _ADAMBS),
    "adambs-original": ("A bandit chooses one sample at a time, with replacement; as first published.", _ADAMBS),
    "adamcb-paper": ("A bandit chooses whole batches; the paper's algorithm, with the feedback of its proof.", _ADAMCB),
    "adamcb-listing": ("A bandit chooses whole batches; the paper's algorithm, as its listing prints it.", _ADAMCB),
    "adamcb": (
        "This package as it comes: samples with large gradients return sooner, and their losses weigh less in turn.",
        _ADAMCB,
    ),
    "adamcb-smaller": ("As AdamCB, with batches as small as is no noisier than K uniform samples.", _ADAMCB),
    "small-batches": ("A control: shuffled epochs in batches of a part of K. As many steps, on fewer samples.", ""),
    "balanced-sampler": (
        "Samples of rare classes are drawn more often, as by WeightedRandomSampler. It is biased.",
        "",
    ),
    "weighted-loss": ("Shuffled epochs; losses of rare classes weigh more.", ""),
    "focal-loss": ("Shuffled epochs; losses of easy samples weigh less.", "https://arxiv.org/abs/1708.02002"),
    "undersampling": ("An epoch has all samples of the rarest class and as many of each other. It is biased.", ""),
    "rad": (
        "Points of an equation are drawn by their residual, anew every so often.",
        "https://arxiv.org/abs/2207.10289",
    ),
    "last-norm": (
        "Samples are drawn by the gradient norm they had when last seen.",
        "https://arxiv.org/abs/1511.06481",
    ),
    "last-loss": ("Samples are drawn by the loss they had when last seen.", "https://arxiv.org/abs/1511.06343"),
    "vrb": (
        "The variance reducer bandit: probabilities follow the root of all squared norms seen.",
        "https://arxiv.org/abs/1802.04715",
    ),
    "infobatch": (
        "Each epoch leaves out some samples of low loss and weighs the others up.",
        "https://arxiv.org/abs/2303.04947",
    ),
    "selective-backprop": (
        "Samples of high loss are likelier to be trained on, after a forward pass over all. It is biased.",
        "https://arxiv.org/abs/1910.00762",
    ),
    "presampling": (
        "A large uniform batch is looked at first, and a smaller one is drawn from it by importance.",
        "https://arxiv.org/abs/1803.00942",
    ),
}


def described(methods: Iterable[Method]) -> dict[str, Method]:
    """Return methods by name, each with what is known about it."""
    found = {}
    for method in methods:
        about, link = ABOUT.get(method.name, (method.about, method.link))
        found[method.name] = replace(method, about=about, link=link)
    return found
