"""From a task's name to the task."""

from __future__ import annotations

from collections.abc import Callable

from adamcb import _checks
from adamcb.lab.paths import checked_path
from adamcb.lab.references import load_object
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.lab.tasks.heavy_tails import heavy_tails
from adamcb.lab.tasks.images import AUGMENTATIONS, fashion_mnist_augmented, image_task
from adamcb.lab.tasks.kddcup99 import kddcup99
from adamcb.lab.tasks.pinn import allen_cahn, burgers
from adamcb.lab.tasks.protein import protein
from adamcb.lab.tasks.rare_events import rare_events
from adamcb.lab.tasks.shakespeare import shakespeare
from adamcb.lab.tasks.speakers import speakers
from adamcb.lab.tasks.task import Task

# Tasks beside those of a dataset and a model.
TASKS: dict[str, Callable[[str | None], Task]] = {
    "rare-events": rare_events,
    "protein": protein,
    "kddcup99": kddcup99,
    "burgers": burgers,
    "allen-cahn": allen_cahn,
    "heavy-tails": heavy_tails,
    "shakespeare": shakespeare,
    "speakers": speakers,
    "fashion-mnist-cnn-augmented": fashion_mnist_augmented,
}
# What `adamcb compare` trains if nothing is asked for. It needs no file and takes a minute.
DEFAULT_TASK = "rare-events"


def load_task(reference: str, data_dir: str | None = None) -> Task:
    """Return a task by name, or from a file as "FILE.py:NAME": a `Task`, or a function that returns one.

    Args:
        reference: A name of `adamcb compare --task`, such as "protein", or "FILE.py:NAME".
        data_dir: Where to look for data first.

    Raises:
        ValueError: The name is unknown, or the file has no such name.
        FileNotFoundError: There is no such file.
        TypeError: What the file holds under that name is not a task.

    Example:
        >>> from dataclasses import replace
        >>> task = load_task("heavy-tails")
        >>> replace(task, epochs=2).batch_size
        512
    """
    _checks.instance("task", reference, str, "a name, or FILE.py:NAME")
    if data_dir is not None:
        data_dir = checked_path("data_dir", data_dir)
    if ":" not in reference:
        _checks.one_of("task", reference, (*TASKS, "FILE.py:NAME"))
        return TASKS[reference](data_dir)
    found = load_object(reference, "task")
    task = found() if callable(found) and not isinstance(found, Task) else found
    if not isinstance(task, Task):
        raise TypeError(f"`task` must name a Task, got task={reference!r}, a {type(task).__name__}.")
    return task


def load_image_task(
    dataset: str,
    model: str,
    *,
    fraction: float,
    label_noise: float | None,
    data_dir: str | None,
    augmentation: str | None = None,
) -> Task:
    """Return the task of a model on a dataset, both by name."""
    data = load_dataset(dataset, data_dir=data_dir, fraction=fraction)
    return image_task(data, model, label_noise=label_noise, **AUGMENTATIONS.get(augmentation or "", {}))
