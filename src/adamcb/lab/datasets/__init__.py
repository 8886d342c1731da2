"""Image datasets in memory, by name: digits, mnist, fashion-mnist, cifar10, or a folder of class folders.

`load_dataset` is the door. Files are looked for in `data_dir`, then in $ADAMCB_DATA, then in the user's cache, and are
fetched where there is a network. Every reader checks what it reads before it believes it; no pickle is ever loaded.
"""

from adamcb.lab.datasets._images import ImageData
from adamcb.lab.datasets._load import DATASET_NAMES, load_dataset
from adamcb.lab.datasets._reading import DataFileError

__all__ = ["DATASET_NAMES", "DataFileError", "ImageData", "load_dataset"]
