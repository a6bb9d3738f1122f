"""Fetching a public data set by name: from a mirror on loopback, whole or not at all."""

import functools
import gzip
import hashlib
import http.server
import threading

import pytest

from deploy.effects import known_sets
from deploy.errors import TransferError
from deploy.plan.known import KnownFile, KnownSet

CONTENT = {"images": b"\0\1" * 5000, "labels": b"7" * 100}


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A folder served over HTTP, and the set that it should hold; no npm on PATH."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    for name, content in CONTENT.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(known_sets.shutil, "which", lambda _: None)
    files = tuple(KnownFile(n, len(c), hashlib.sha256(c).hexdigest()) for n, c in CONTENT.items())
    url = f"http://127.0.0.1:{server.server_port}"
    yield folder, KnownSet("small", "small@1", "package", (url,), files)
    server.shutdown()


def test_every_file_arrives_and_a_second_time_nothing_is_fetched(mirror, tmp_path):
    _, wanted = mirror
    target = tmp_path / "sets" / "small"
    assert known_sets.fetch_known(wanted, target, print) is True
    assert {p.name: p.read_bytes() for p in target.iterdir()} == CONTENT
    assert known_sets.fetch_known(wanted, target, print) is False


def test_one_flipped_byte_is_mended(mirror, tmp_path):
    _, wanted = mirror
    target = tmp_path / "small"
    known_sets.fetch_known(wanted, target, print)
    (target / "labels").write_bytes(b"8" + CONTENT["labels"][1:])
    assert known_sets.fetch_known(wanted, target, print) is True
    assert (target / "labels").read_bytes() == CONTENT["labels"]


@pytest.mark.parametrize(
    "damaged",
    [gzip.compress(b"8" * 100), gzip.compress(b"7" * 10**6), b"<html>not here</html>", b""],
    ids=["other bytes", "far too long", "html", "empty"],
)
def test_a_mirror_that_sends_something_else_leaves_nothing(mirror, tmp_path, damaged):
    folder, wanted = mirror
    (folder / "labels.gz").write_bytes(damaged)
    target = tmp_path / "sets" / "small"
    with pytest.raises(TransferError, match="small: could not be had"):
        known_sets.fetch_known(wanted, target, print)
    assert list(target.parent.iterdir()) == []


def test_the_users_own_mirror_comes_first(mirror, tmp_path, monkeypatch):
    _, wanted = mirror
    (own,) = wanted.mirrors
    monkeypatch.setenv("GPUBOX_MIRROR_SMALL", own + "/")
    elsewhere = wanted._replace(mirrors=("http://127.0.0.1:9/nothing-listens",))
    assert known_sets.fetch_known(elsewhere, tmp_path / "small", print) is True
