import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from adamcb.lab.tasks.datasets import DATASET_NAMES, load_dataset
from adamcb.lab.tasks.datasets._images import channel_moments, stratified_subset
from adamcb.lab.tasks.datasets._places import data_roots

LABELS = torch.tensor([0] * 100 + [1] * 30 + [2] * 1)


def test_digits_need_no_files(monkeypatch):
    monkeypatch.setenv("ADAMCB_DATA", "/nowhere")
    data = load_dataset("digits", download=False)
    assert (data.name, data.image_shape, data.num_classes, data.note) == ("digits", (1, 8, 8), 10, "")
    assert (len(data.train), len(data.test)) == (1438, 359)
    images, labels = data.train.tensors
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)


def test_digits_are_split_without_loss_or_repetition():
    from sklearn.datasets import load_digits

    data = load_dataset("digits")
    parts = torch.cat([data.train.tensors[0], data.test.tensors[0]]) * data.std[0] + data.mean[0]
    rows = np.concatenate(
        [(parts * 16).round().flatten(1).numpy(), torch.cat([data.train.tensors[1], data.test.tensors[1]])[:, None]], 1
    )
    pixels, labels = load_digits(return_X_y=True)
    expected = np.concatenate([pixels, labels[:, None]], 1)
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])
    shares = torch.bincount(data.test.tensors[1]) / torch.bincount(torch.from_numpy(labels))
    assert ((shares - 0.2).abs() < 0.01).all()


def test_training_images_have_mean_zero_and_deviation_one():
    images = load_dataset("digits").train.tensors[0].double()
    assert images.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert images.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-6)


def test_moments_are_those_of_each_channel():
    images = torch.randint(0, 256, (7, 3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[:, 2] = 9
    mean, std = channel_moments(images, 255)
    scaled = images.double() / 255
    assert mean == pytest.approx(scaled.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert std[:2] == pytest.approx(scaled[:, :2].std((0, 2, 3), unbiased=False).tolist(), rel=1e-12)
    assert std[2] == 1.0


def test_pictures_come_back_from_standardized_images():
    data = load_dataset("digits")
    pictures = data.to_pixels(data.train.tensors[0][:5])
    assert (pictures.shape, pictures.dtype) == ((5, 8, 8, 1), torch.uint8)
    assert (pictures.min(), pictures.max()) == (0, 255)


def test_fraction_keeps_its_share_of_every_class_in_the_original_order():
    chosen = stratified_subset(LABELS, 0.1, seed=3)
    assert torch.bincount(LABELS[chosen]).tolist() == [10, 3, 1]
    assert chosen.equal(chosen.sort().values)
    assert len(chosen.unique()) == len(chosen)


def test_fraction_is_decided_by_its_seed_and_nested():
    torch.manual_seed(1)
    chosen = stratified_subset(LABELS, 0.1, seed=3)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    assert chosen.equal(stratified_subset(LABELS, 0.1, seed=3))
    assert torch.random.get_rng_state().equal(state)
    assert not chosen.equal(stratified_subset(LABELS, 0.1, seed=4))
    assert set(chosen.tolist()) < set(stratified_subset(LABELS, 0.3, seed=3).tolist())


def test_fraction_shrinks_both_splits_and_leaves_values_alone():
    whole, part = load_dataset("digits"), load_dataset("digits", fraction=0.25)
    for large, small in ((whole.train, part.train), (whole.test, part.test)):
        counts, kept = (torch.bincount(split.tensors[1]) for split in (large, small))
        assert ((kept - 0.25 * counts).abs() <= 0.5).all()
    assert (part.mean, part.std) == (whole.mean, whole.std)
    rows = {row.numpy().tobytes() for row in whole.train.tensors[0]}
    assert all(row.numpy().tobytes() in rows for row in part.train.tensors[0])
    assert not torch.equal(
        part.train.tensors[0], load_dataset("digits", fraction=0.25, fraction_seed=1).train.tensors[0]
    )


def test_the_smallest_fraction_keeps_one_sample_of_each_class():
    data = load_dataset("digits", fraction=1e-9)
    assert data.train.tensors[1].sort().values.tolist() == list(range(10))


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_impossible_fractions_are_refused(fraction):
    with pytest.raises(ValueError, match="`fraction` must be a finite number in"):
        load_dataset("digits", fraction=fraction)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="`name` must be one of 'digits', .*'a folder of class folders', got name='x'"):
        load_dataset("x")
    assert DATASET_NAMES == ("digits", "mnist", "fashion-mnist", "cifar10")


def test_places_come_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ADAMCB_DATA", os.pathsep.join(["/one", "", "/two"]))
    assert data_roots(tmp_path) == [tmp_path, Path("/one"), Path("/two"), tmp_path / "cache" / "adamcb"]
    monkeypatch.delenv("ADAMCB_DATA")
    assert data_roots(None) == [tmp_path / "cache" / "adamcb"]


def test_a_data_dir_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(NotADirectoryError, match="`data_dir` must be an existing folder, got data_dir='.*absent'"):
        load_dataset("mnist", data_dir=tmp_path / "absent")


def test_importing_the_readers_imports_no_scikit_learn():
    code = "import sys, adamcb.lab.tasks.datasets, adamcb.lab.tasks.models; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
