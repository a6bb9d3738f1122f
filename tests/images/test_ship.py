"""An image's way to a box: only layers that it lacks, resumed where it broke off, verified by id."""

import itertools
import json
import subprocess

import pytest

from deploy.effects import engine, shipment
from deploy.errors import ImageError, KitError
from deploy.verbs import ship
from tests.box.box import Boxes, docker

pytestmark = [pytest.mark.engine, pytest.mark.box, pytest.mark.slow, pytest.mark.timeout(1200)]
TAG = "gpubox-test/ship:latest"
NEXT = "gpubox-test/ship:next"
REAL_RATE = ship.line_rate


def build(tag, *layers):
    """A small image of our base with one incompressible layer for each (name, MiB, seed)."""
    lines = ["FROM gpubox/base:latest"]
    for name, mebibytes, seed in layers:
        code = f"import random; r = random.Random({seed}); "
        code += f"open('/{name}', 'wb').write(b''.join(r.randbytes(1 << 20) for _ in range({mebibytes})))"
        lines.append(f'RUN python3 -c "{code}"')
    lines.append('CMD ["sha256sum", "/one"]')
    docker("build", "--quiet", "--tag", tag, "-", input="\n".join(lines))
    return engine.image_here(tag)


@pytest.fixture(scope="module")
def images(cpu_image):
    """Two images that differ in the last layer; `cpu_image` has made their base."""
    yield (
        build(TAG, ("one", 40, 1), ("two", 3, 2)),
        build(NEXT, ("one", 40, 1), ("two", 3, 3)),
    )
    docker("image", "rm", TAG, NEXT, check=False)


@pytest.fixture(scope="module")
def machine(engine, tmp_path_factory):
    fleet = Boxes(tmp_path_factory.mktemp("ship"))
    yield fleet.start("engine")
    fleet.stop()


@pytest.fixture
def box(machine, monkeypatch):
    """The module's one box, without any image and without what earlier tries have left."""
    monkeypatch.setenv("GPUBOX_CONFIG", str(machine.boxes.toml))
    monkeypatch.setattr(ship, "line_rate", lambda box: 1e6)  # a slow line, unless the test says
    machine.run("sh", "-c", "docker system prune --all --force; rm -rf /root/.gpubox/layers")
    return machine


def sizes(monkeypatch):
    """The bytes of every try from now on, one number each."""
    sent = []
    frames = shipment.saved_frames

    def counted(*arguments):
        sent.append(0)
        for block in frames(*arguments):
            sent[-1] += len(block)
            yield block

    monkeypatch.setattr(ship, "saved_frames", counted)
    return sent


def send(box, tag, here):
    desk = box.desk()
    with desk.open(box.name) as agent:
        return ship.send_image(desk, agent, tag, here)


def id_on(box, tag):
    found = box.run("docker", "image", "inspect", "--format", "{{.Id}}", tag, check=False)
    return found.stdout.strip()


def test_a_changed_layer_travels_alone_and_the_image_is_the_same(box, images, monkeypatch):
    first, second = images
    sent = sizes(monkeypatch)
    assert send(box, TAG, first) == first["id"] == id_on(box, TAG)
    assert send(box, NEXT, second) == second["id"] == id_on(box, NEXT)
    whole, changed = sent
    assert whole > 60 << 20
    assert 3 << 20 <= changed <= 1.1 * (3 << 20)
    assert send(box, NEXT, second) == second["id"] and len(sent) == 2  # nothing more travels
    ours = docker("run", "--rm", NEXT).stdout
    assert box.run("docker", "run", "--rm", NEXT).stdout == ours
    assert box.run("ls", "/root/.gpubox/layers").stdout.split() in ([], ["lock"])


def test_a_broken_off_shipment_goes_on_where_it_was(box, images, monkeypatch):
    here = images[0]
    frames = shipment.saved_frames
    monkeypatch.setattr(ship, "saved_frames", lambda *words: itertools.islice(frames(*words), 6))
    with pytest.raises(KitError) as broken:
        send(box, TAG, here)
    assert broken.value.exit_code == 31 and id_on(box, TAG) == ""
    monkeypatch.setattr(ship, "saved_frames", frames)
    kept = int(box.run("sh", "-c", "du -sb /root/.gpubox/layers | cut -f1").stdout)
    sent = sizes(monkeypatch)
    assert send(box, TAG, here) == here["id"] == id_on(box, TAG)
    all_of_it = frames(TAG, here, dict.fromkeys(here["layers"], 0), lambda _: None)
    assert kept > 8 << 20 and sent[0] < sum(map(len, all_of_it)) - kept + (1 << 20)


def test_a_chunk_that_was_damaged_on_the_box_is_noticed_and_sent_again(box, images, monkeypatch):
    here = images[0]
    frames = shipment.saved_frames
    monkeypatch.setattr(ship, "saved_frames", lambda *words: itertools.islice(frames(*words), 6))
    with pytest.raises(KitError):
        send(box, TAG, here)
    monkeypatch.setattr(ship, "saved_frames", frames)
    damage = "f=$(find /root/.gpubox/layers -name 00000000 | head -n 1); "
    damage += "printf X | dd of=$f bs=1 seek=1000 conv=notrunc 2>/dev/null"
    box.run("sh", "-c", damage)
    with pytest.raises(KitError) as noticed:
        send(box, TAG, here)
    assert noticed.value.exit_code == 32 and id_on(box, TAG) == ""
    assert send(box, TAG, here) == here["id"] == id_on(box, TAG)


def test_an_engine_that_wants_every_layer_gets_every_layer(box, images, monkeypatch):
    """As where the box's engine keeps images in another store: its refusal costs one try more."""
    here = images[0]
    sent = sizes(monkeypatch)
    monkeypatch.setattr(ship, "plan_shipment", _lying_once(ship.plan_shipment))
    assert send(box, TAG, here) == here["id"] == id_on(box, TAG)
    assert len(sent) == 2 and sent[0] < 1 << 20 < sent[1]


def _lying_once(plan):
    """The first plan says that every layer is there already."""
    answers = []

    def planned(*words):
        answers.append(1)
        return {} if len(answers) == 1 else plan(*words)

    return planned


def test_an_engine_that_saves_otherwise_sends_the_whole(box, images, monkeypatch):
    here = images[0]

    def unfit(*words):
        yield b""
        raise shipment.Unfit("layer.tar")

    monkeypatch.setattr(ship, "saved_frames", unfit)
    assert send(box, TAG, here) == here["id"] == id_on(box, TAG)


def test_on_a_fast_line_layers_travel_as_they_are(box, images, monkeypatch):
    here = images[0]
    monkeypatch.setattr(ship, "line_rate", lambda box: 1e9)
    sent = sizes(monkeypatch)
    assert send(box, TAG, here) == here["id"] == id_on(box, TAG)
    assert sent[0] > 0.95 * here["size"]


def test_the_rate_of_a_line_is_tried_for_real(box):
    with box.desk().open(box.name) as agent:
        assert 1e4 < REAL_RATE(agent) < 1e12


def test_another_architecture_is_refused_before_anything_travels(box, images, monkeypatch):
    sent = sizes(monkeypatch)
    with pytest.raises(ImageError, match="arm64"):
        send(box, TAG, {**images[0], "architecture": "arm64"})
    assert sent == []


def test_the_verb_ships_any_image_to_each_box(box, images):
    fab = [".venv/bin/fab", "ship", "--image", TAG, "--host", box.name, "--json"]
    done = subprocess.run(fab, capture_output=True, text=True, cwd=engine.root())
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)["results"]
    assert result["id"] == images[0]["id"] == id_on(box, TAG)
    again = subprocess.run(fab, capture_output=True, text=True, cwd=engine.root())
    assert "there already" in again.stderr
    unknown = [*fab[:2], "--image", "gpubox-test/absent", *fab[4:]]
    refused = subprocess.run(unknown, capture_output=True, text=True, cwd=engine.root())
    assert refused.returncode == ImageError.exit_code
    assert "gpubox-test/absent" in refused.stderr
