from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adamcb.lab.tasks.datasets import DataFileError, load_dataset


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def color(seed: int, height: int = 6, width: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five cats and ten dogs, 6×5 in color."""
    for number in range(15):
        name = "cat" if number < 5 else "dog"
        save(tmp_path / "pets" / name / f"{number:02d}.png", color(number))
    return tmp_path / "pets"


def test_a_folder_becomes_a_dataset(folder):
    data = load_dataset(str(folder))
    assert (data.name, data.class_names, data.num_classes) == ("pets", ("cat", "dog"), 2)
    assert data.image_shape == (3, 6, 5)
    assert data.note == ""
    assert data.train.tensors[1].tolist() == [0] * 4 + [1] * 8
    assert data.test.tensors[1].tolist() == [0] + [1] * 2


def test_the_split_loses_and_repeats_nothing_and_never_changes(folder):
    first, second = load_dataset(str(folder)), load_dataset(str(folder))
    pixels = [
        picture.numpy().tobytes() for part in (first.train, first.test) for picture in first.to_pixels(part.tensors[0])
    ]
    assert sorted(pixels) == sorted(color(number).tobytes() for number in range(15))
    assert first.test.tensors[0].equal(second.test.tensors[0])


def test_given_train_and_test_folders_are_kept(tmp_path):
    for number in range(4):
        save(tmp_path / "train" / "ab"[number % 2] / f"{number}.png", color(number))
    save(tmp_path / "test" / "a" / "x.png", color(10))
    save(tmp_path / "test" / "b" / "y.png", color(11))
    data = load_dataset(str(tmp_path))
    assert data.train.tensors[1].tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(data.to_pixels(data.test.tensors[0]).numpy(), [color(10), color(11)])


def test_gray_images_have_one_channel_and_a_color_one_makes_all_three(folder, tmp_path):
    gray = tmp_path / "gray"
    for number in range(4):
        save(gray / "ab"[number % 2] / f"{number}.png", color(number)[:, :, 0])
    assert load_dataset(str(gray)).image_shape == (1, 6, 5)
    save(gray / "a" / "color.png", color(9))
    assert load_dataset(str(gray)).image_shape == (3, 6, 5)


def test_images_of_different_sizes_are_scaled_with_a_note(folder, caplog):
    save(folder / "cat" / "large.png", np.full((50, 80, 3), 200, dtype=np.uint8))
    data = load_dataset(str(folder))
    assert data.image_shape == (3, 32, 32)
    assert data.note == "Images of different sizes were cropped and scaled to 32×32."
    assert caplog.messages == [data.note]  # which the command line shows


def test_other_files_and_hidden_ones_are_passed_over(folder):
    (folder / ".cache").mkdir()
    (folder / "cat" / "notes.txt").write_text("not a picture")
    (folder / "cat" / "._01.png").write_bytes(b"junk that some systems leave")
    assert len(load_dataset(str(folder)).train) == 12


def test_uppercase_and_jpeg_names_are_read(folder):
    save(folder / "cat" / "PHOTO.JPG", color(3))
    assert len(load_dataset(str(folder)).train) + len(load_dataset(str(folder)).test) == 16


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\0" * 30])
def test_files_that_are_no_images_are_named(folder, data):
    (folder / "dog" / "zz.png").write_bytes(data)
    with pytest.raises(DataFileError, match="dog/zz.png must be a readable image: "):
        load_dataset(str(folder))


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp"])
def test_truncated_images_are_named(folder, suffix):
    path = save(folder / "dog" / f"zz.{suffix}", color(5))
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(DataFileError, match=f"dog/zz.{suffix} must be a readable image: "):
        load_dataset(str(folder))


@pytest.mark.parametrize("side", [10_000, 20_000], ids=["warning", "error"])
def test_a_picture_bomb_is_not_decoded(folder, side):
    """Pillow only warns of the first, and refuses the second itself."""
    Image.new("1", (side, side)).save(folder / "dog" / "zz.png")
    with pytest.raises(DataFileError, match="dog/zz.png is too large to be decoded safely"):
        load_dataset(str(folder))


def test_deep_images_are_refused(folder):
    save(folder / "dog" / "zz.png", np.zeros((6, 5), dtype=np.uint16))
    with pytest.raises(DataFileError, match="dog/zz.png must have 8 bits a channel, got an image of mode I"):
        load_dataset(str(folder))


def test_images_that_fill_the_memory_are_refused(tmp_path):
    """Ninety references to one picture of 5000×5000 would take 27 GB."""
    picture = tmp_path / "picture.png"
    Image.new("RGB", (5000, 5000)).save(picture)
    for number in range(90):
        path = tmp_path / "set" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(picture)
    with pytest.raises(DataFileError, match="set must take at most 8589934592 bytes in memory, got 27000000000"):
        load_dataset(str(tmp_path / "set"))


def test_folders_that_are_no_dataset_are_refused(folder, tmp_path):
    with pytest.raises(DataFileError, match=r"cat must hold at least two class folders, got 0\."):
        load_dataset(str(folder / "cat"))
    (folder / "empty").mkdir()
    with pytest.raises(DataFileError, match=r"empty must hold images \(.bmp, .*\), got none"):
        load_dataset(str(folder))
    save(folder / "empty" / "one.png", color(1))
    with pytest.raises(DataFileError, match="empty must hold at least two images, to split off a test set"):
        load_dataset(str(folder))


def test_test_classes_that_are_not_trained_are_refused(tmp_path):
    for name in ("train/a", "train/b", "test/a", "test/c"):
        save(tmp_path / name / "x.png", color(0))
    with pytest.raises(DataFileError, match="test/c must be a class of the training images too"):
        load_dataset(str(tmp_path))
