"""Which layers travel, and why, as a table."""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import zlib

import pytest

from deploy.onbox import layers, loading
from deploy.onbox.imagefiles import CHUNK, next_level
from deploy.onbox.layers import Part, Saved, image_frames
from deploy.plan.image import Bring, by_the_better_line
from deploy.plan.shipment import deflate_level, known_layers, plan_shipment, why_these

A, B, C, D = ("sha256:" + letter * 64 for letter in "abcd")


@pytest.mark.parametrize(
    ("ours", "theirs", "known"),
    [
        ([A, B, C], [], 0),
        ([A, B, C], [[A, B, D]], 2),
        ([A, B, C], [[D], [A], [A, B, C, D]], 3),
        ([A, B, C], [[B, C]], 0),  # the same layers upon other ones are other layers to the engine
        ([A, B, C], [[A, D, C]], 1),
    ],
)
def test_leading_layers_that_some_image_has_stay_here(ours, theirs, known):
    assert known_layers(ours, theirs) == known
    assert list(plan_shipment(ours, theirs, {})) == ours[known:]


def test_what_was_spooled_is_left_out_of_layers_that_travel_alone():
    assert plan_shipment([A, B, C], [[A]], {A: 9, C: 4}) == {B: 0, C: 4}


def test_a_layer_that_occurs_twice_travels_once_or_not_at_all():
    assert plan_shipment([A, B, B], [], {}) == {A: 0, B: 0}
    assert plan_shipment([A, B, A], [[A]], {}) == {B: 0}


def test_the_reason_says_how_much_and_what_for():
    assert why_these([A, B, C], {A: 0, B: 0, C: 0}) == "all 3 layers"
    assert why_these([A, B, C], {C: 0}) == "1 of 3 layers, the others are on the box"
    assert why_these([A, B], {A: 0, B: 3}) == "all 2 layers; goes on after 48 MiB"


SHIP, BUILD = Bring("ship", "not on the box"), Bring("build", "no engine here")
HOME, LAB = 100e6 / 8, 1e9 / 8  # bytes per second


@pytest.mark.parametrize(
    ("bring", "device", "known", "rate", "action"),
    [
        (SHIP, "cpu", 0, HOME, "ship"),  # half a minute
        (SHIP, "gpu", 0, HOME, "ship"),  # four minutes
        (SHIP, "gpu", 0, HOME / 10, "build"),  # 43 minutes
        (SHIP, "gpu", 7, HOME / 10, "ship"),  # but the box has all but the last layer
        (SHIP, "gpu", 1, HOME / 10, "build"),  # the base alone is not much
        (SHIP, "cpu", 0, HOME / 100, "build"),
        (BUILD, "gpu", 0, LAB, "build"),
        (SHIP, "cpu", 0, 0.0, "build"),
    ],
)
def test_a_first_image_is_built_there_where_this_line_is_slow(bring, device, known, rate, action):
    chosen = by_the_better_line(bring, device, known, rate)
    assert chosen.action == action
    assert chosen is bring or "min" in chosen.why


def test_a_slow_line_gets_deflated_layers_and_a_fast_one_gets_them_as_they_are():
    assert deflate_level(HOME) == 1 and deflate_level(LAB) == 0


@pytest.mark.parametrize(
    ("level", "waited", "sending", "then"),
    [
        (1, 0.3, 0.1, 0),  # the line stood still while a chunk was deflated
        (1, 0.0, 0.1, 1),
        (1, 0.3, 5.0, 1),
        (0, 0.0, 0.1, 0),  # 160 MB/s
        (0, 0.0, 2.0, 1),  # 8 MB/s
    ],
)
def test_deflating_follows_what_the_line_is_seen_to_take(level, waited, sending, then):
    assert next_level(level, CHUNK, waited, sending) == then


def test_a_line_that_waits_for_the_deflater_gets_what_follows_as_it_is():
    block = os.urandom(1 << 20) + b"0" * (3 << 20)
    content = block * (10 * CHUNK // len(block))
    parts = iter([Part(A, len(content), io.BytesIO(content)), Part(B, 2, io.BytesIO(b"{}"))])
    frames = image_frames("x", Saved(B, parts), {"layers": [A]}, {A: 0}, lambda _: None, 1)
    sent = [len(frame) for frame in frames if frame.startswith(b'{"layer"')][:-1]
    assert len(sent) == 10 and sent[0] < CHUNK // 2 and sent[-1] > CHUNK


def arrived(folder, *whole):
    """Layers that are here, whole, as one stored chunk each."""
    arriving = loading.Arriving(str(folder))
    for layer, chunk in whole:
        path = loading.chunk_path(str(folder), layer, 0)
        os.makedirs(os.path.dirname(path))
        with open(path, "wb") as file:
            file.write(chunk)
        arriving.chunk(layer, 0, 4)
    return arriving


def test_what_loads_waits_for_what_arrives(tmp_path):
    arriving = arrived(tmp_path, (A, b""))
    seen = []

    def look():
        for layer, size in arriving.layers():
            seen.append((layer, size, arriving.has(layer, 0), arriving.has(layer, 1)))

    looking = threading.Thread(target=look)
    looking.start()
    looking.join(0.2)
    assert looking.is_alive() and seen == []  # whether there is a second chunk is not known
    arriving.whole(A, 4)
    arriving.whole(B, 0)
    arriving.end()
    looking.join(10)
    assert seen == [(A, 4, True, False), (B, 0, False, False)]


def test_what_loads_ends_where_the_line_breaks_off(tmp_path):
    arriving = arrived(tmp_path, (A, b""))
    arriving.end(broken=True)
    with pytest.raises(loading.Refusal, match="broke off"):
        arriving.has(A, 1)


@pytest.mark.parametrize("chunk", [b"no deflate", b""])
def test_a_layer_that_is_another_than_its_name_says_is_damaged(tmp_path, chunk):
    arriving = arrived(tmp_path, (A, chunk))
    arriving.end()
    with pytest.raises(loading.Damaged):
        loading.LayerReader(arriving, A).read(4)


def saved(*contents):
    """A file as `docker save` of the containerd store writes it: (it, {layers})."""
    digests = ["sha256:" + hashlib.sha256(each).hexdigest() for each in contents]
    packed = [
        gzip.compress(contents[0]),
        *(
            subprocess.run(["zstd", "-qc"], input=c, capture_output=True).stdout
            for c in contents[1:]
        ),
    ]
    names = [f"blobs/sha256/{number}" for number in range(len(packed))]
    listed = json.dumps([{"Config": "blobs/sha256/c", "Layers": names}]).encode()
    members = [
        *zip(names, packed, strict=True),
        ("blobs/sha256/c", b"{}"),
        ("manifest.json", listed),
    ]
    spool = io.BytesIO()
    with tarfile.open(fileobj=spool, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    spool.seek(0)
    return spool, {"layers": digests}


@pytest.mark.skipif(shutil.which("zstd") is None, reason="no zstd program")
@pytest.mark.parametrize("wanted", [(0, 1, 2), (2,)])
def test_layers_that_a_store_keeps_compressed_travel_as_what_they_are(wanted):
    contents = [os.urandom(3 << 20), os.urandom(5 << 20), b"two" * 1000]
    spool, image = saved(*contents)
    chosen = {image["layers"][each]: 0 for each in wanted}
    frames = image_frames("x", layers._from_file(spool, image), image, chosen, lambda _: None)
    got = {}
    for frame in frames:
        head, payload = frame.split(b"\n", 1)
        if "chunk" in json.loads(head):
            got[json.loads(head)["layer"]] = zlib.decompress(payload)
    assert got == {image["layers"][each]: contents[each] for each in wanted}


def test_without_the_zstd_program_the_remedy_is_exact(monkeypatch):
    spool, image = saved(b"one", b"two") if shutil.which("zstd") else pytest.skip("no zstd program")
    monkeypatch.setenv("PATH", "")
    chosen = dict.fromkeys(image["layers"], 0)
    with pytest.raises(loading.Refusal, match="no zstd program here") as no:
        list(image_frames("x", layers._from_file(spool, image), image, chosen, lambda _: None))
    assert no.value.kind == "ImageError" and "install zstd here" in no.value.hint
