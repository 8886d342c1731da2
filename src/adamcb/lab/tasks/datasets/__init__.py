"""Image datasets in memory, by name: digits, mnist, fashion-mnist, cifar10, or a folder of class folders.

`load_dataset` is the door. Files are looked for in `data_dir`, then in $ADAMCB_DATA, then in the user's cache, and are
fetched where there is a network. Every reader checks what it reads before it believes it; no pickle is ever loaded.
"""

from adamcb.lab.tasks.datasets._images import ImageData
from adamcb.lab.tasks.datasets._load import DATASET_NAMES, load_dataset
from adamcb.lab.tasks.datasets._places import find_file
from adamcb.lab.tasks.datasets._reading import DataFileError

__all__ = ["DATASET_NAMES", "DataFileError", "ImageData", "find_file", "load_dataset"]
