"""Class folders of PNG and JPEG files are a data set as well."""

import json

import numpy as np
import pytest

from tests.workload.kit import Workload
from workload import data, pictures
from workload.errors import DATA, DataError

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow


@pytest.fixture
def folders(tmp_path):
    """Two classes of 60 pictures, bright at the top or at the bottom, of mixed kinds and sizes."""
    random = np.random.default_rng(2)
    for name in ("猫", "dog & co"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for n in range(60):
            image = random.integers(0, 60, (16 + n % 3, 14, 3), dtype=np.uint8)
            half = slice(0, 8) if name == "猫" else slice(8, None)
            image[half] += 150
            encode, end = (tf.io.encode_png, "png") if n % 2 else (tf.io.encode_jpeg, "JPG")
            (tmp_path / "set" / name / f"{n:02}.{end}").write_bytes(encode(image).numpy())
    (tmp_path / "set" / "dog & co" / "notes.txt").write_text("not a picture")
    return tmp_path / "set"


def test_every_picture_is_decoded_to_one_size_and_some_are_held_for_the_test(folders):
    found = data.load(folders)
    assert found.names == ("dog & co", "猫") and found.classes == 2
    assert found.image_shape == (16, 14, 3)
    assert (len(found.train.labels), len(found.test.labels)) == (108, 12)
    top = found.train.images[:, :7].mean(axis=(1, 2, 3))
    assert ((top > 128) == (found.train.labels == 1)).all()
    assert data.load(folders, size=10).image_shape == (10, 10, 3)


def test_train_and_test_folders_are_kept_apart(folders, tmp_path):
    both = tmp_path / "both"
    both.mkdir()
    folders.rename(both / "train")
    (both / "test" / "猫").mkdir(parents=True)
    moved = both / "train" / "猫" / "00.JPG"
    moved.rename(both / "test" / "猫" / "00.JPG")
    found = data.load(both)
    assert (len(found.train.labels), len(found.test.labels)) == (119, 1)
    (both / "test" / "bird").mkdir()
    (both / "test" / "bird" / "1.png").write_bytes((both / "train/猫/01.png").read_bytes())
    with pytest.raises(DataError, match="a class that .* does not have"):
        data.load(both)


def test_bad_pictures_are_named(folders):
    path = folders / "猫" / "05.png"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    pictures.look(folders)  # its first bytes are right
    with pytest.raises(DataError, match=r"05\.png: can't be decoded"):
        data.load(folders)
    path.write_bytes(b"<html>please log in</html>")
    with pytest.raises(DataError, match=r"05\.png: is a web page"):
        data.load(folders)


def test_a_larger_set_is_decoded_into_scratch_and_leaves_nothing(folders, tmp_path, monkeypatch):
    plain = data.load(folders)
    monkeypatch.setattr(pictures, "IN_MEMORY", 0)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    mapped = data.load(folders, scratch=scratch)
    assert isinstance(mapped.train.images, np.memmap) and not list(scratch.iterdir())
    np.testing.assert_array_equal(mapped.train.images, plain.train.images)


def test_the_net_learns_them_and_check_counts_them(folders, tmp_path, nursery):
    run = Workload(tmp_path / "run", folders, nursery)
    code, out, _ = run("check")
    assert code == 0 and "108 training and 12 test pictures, 2 classes: dog & co, 猫" in out
    flags = ["--batch", 12, "--conv1", 4, "--conv2", 4, "--dense", 16, "--validation", 0.1]
    code, _, err = run("cnn", *flags, "--steps", 60, "--learning-rate", 0.003)
    assert (code, err) == (0, [])
    result = json.loads((run.output / "result.json").read_text())
    assert result["test_accuracy"] > 0.9 and result["class_names"] == ["dog & co", "猫"]
    (folders / "猫" / "05.png").write_bytes(b"nothing")
    code, _, err = run("check")
    assert code == DATA and "is not a PNG or JPEG file" in err[0]
