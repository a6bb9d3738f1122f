"""The locked packages of the images: every one by hash, no index in them, the pins that must hold."""

import re
from pathlib import Path

import pytest

IMAGES = Path(__file__).resolve().parents[2] / "images"
LOCKS = sorted(IMAGES.glob("requirements-*.lock"))


def entries(lock):
    """{name: text} of each requirement with its continuation lines."""
    found = {}
    for block in re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.MULTILINE)[1:]:
        found.setdefault(re.match(r"[A-Za-z0-9._-]+", block).group(), "")
        found[re.match(r"[A-Za-z0-9._-]+", block).group()] += block
    return found


def test_there_is_a_lock_for_every_list():
    lists = {each.stem for each in IMAGES.glob("requirements-*.in")}
    assert lists == {each.stem for each in LOCKS} and len(lists) == 3


@pytest.mark.parametrize("lock", LOCKS, ids=lambda each: each.stem)
def test_every_package_is_pinned_with_hashes_and_from_nowhere(lock):
    packages = entries(lock)
    assert len(packages) > 30
    for name, text in packages.items():
        assert re.match(rf"{re.escape(name)}==\S+", text), text
        assert "--hash=sha256:" in text, name
    assert not re.search(r"://|index-url|find-links|@ file", lock.read_text())


@pytest.mark.parametrize("lock", LOCKS, ids=lambda each: each.stem)
def test_what_both_images_hold_is_the_same_in_each(lock):
    cpu = entries(IMAGES / "requirements-cpu.lock")
    for name, text in entries(lock).items():
        if name in cpu:
            versions = re.findall(r"^\S+==(\S+)", text, flags=re.MULTILINE)
            ours = re.findall(r"^\S+==(\S+)", cpu[name], flags=re.MULTILINE)
            assert set(versions) <= set(ours), name


def test_the_gpu_image_has_the_last_cudnn_for_old_cards_and_cuda_12_throughout():
    packages = entries(IMAGES / "requirements-gpu.lock")
    assert packages["nvidia-cudnn-cu12"].startswith("nvidia-cudnn-cu12==9.10.2.21 ")
    assert packages["tensorflow"].startswith("tensorflow==2.21.")
    ours = [name for name in packages if name.startswith("nvidia-")]
    assert len(ours) == 12 and all(name.endswith("-cu12") for name in ours)


def test_the_cpu_image_has_no_cuda():
    packages = entries(IMAGES / "requirements-cpu.lock")
    assert not [name for name in packages if name.startswith("nvidia-")]
    assert packages["tensorflow"].splitlines()[0].endswith("platform_machine != 'x86_64' \\")
