"""An image's way to a box: only layers that it lacks, resumed where it broke off, verified by id."""

import itertools
import json
import subprocess

import pytest

from deploy.effects import engine
from deploy.errors import ImageError, KitError, UsageError
from deploy.onbox import layers
from deploy.verbs import ship, shipping
from tests.box.box import Boxes, docker

pytestmark = [pytest.mark.engine, pytest.mark.box, pytest.mark.slow, pytest.mark.timeout(1200)]
TAG = "gpubox-test/ship:latest"
NEXT = "gpubox-test/ship:next"
REAL_RATE = shipping.line_rate


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
def fleet(engine, tmp_path_factory):
    boxes = Boxes(tmp_path_factory.mktemp("ship"))
    yield boxes
    boxes.stop()


@pytest.fixture(scope="module")
def machine(fleet):
    return fleet.start("engine")


@pytest.fixture
def box(machine, monkeypatch):
    """The module's one box, without any image and without what earlier tries have left."""
    monkeypatch.setenv("GPUBOX_CONFIG", str(machine.boxes.toml))
    monkeypatch.setattr(shipping, "line_rate", lambda box: 1e6)  # a slow line, unless the test says
    monkeypatch.setattr(layers, "next_level", lambda level, *_: level)
    machine.run("sh", "-c", "docker system prune --all --force; rm -rf /root/.gpubox/layers")
    return machine


def sizes(monkeypatch):
    """The bytes of every try from now on, one number each."""
    sent = []
    frames = shipping.frames_from_here

    def counted(*arguments):
        sent.append(0)
        for block in frames(*arguments):
            sent[-1] += len(block)
            yield block

    monkeypatch.setattr(shipping, "frames_from_here", counted)
    return sent


def send(box, tag, here):
    desk = box.desk()
    with desk.open(box.name) as agent:
        return shipping.send_image(desk, agent, tag, here)


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
    frames = shipping.frames_from_here
    monkeypatch.setattr(
        shipping, "frames_from_here", lambda *words: itertools.islice(frames(*words), 6)
    )
    with pytest.raises(KitError) as broken:
        send(box, TAG, here)
    assert broken.value.exit_code == 31 and id_on(box, TAG) == ""
    monkeypatch.setattr(shipping, "frames_from_here", frames)
    kept = int(box.run("sh", "-c", "du -sb /root/.gpubox/layers | cut -f1").stdout)
    sent = sizes(monkeypatch)
    assert send(box, TAG, here) == here["id"] == id_on(box, TAG)
    wanted = dict.fromkeys(here["layers"], 0)
    all_of_it = frames(TAG, here, wanted, lambda _: None, 1, False)
    assert kept > 8 << 20 and sent[0] < sum(map(len, all_of_it)) - kept + (1 << 20)


def test_a_chunk_that_was_damaged_on_the_box_is_noticed_and_sent_again(box, images, monkeypatch):
    here = images[0]
    frames = shipping.frames_from_here
    monkeypatch.setattr(
        shipping, "frames_from_here", lambda *words: itertools.islice(frames(*words), 6)
    )
    with pytest.raises(KitError):
        send(box, TAG, here)
    monkeypatch.setattr(shipping, "frames_from_here", frames)
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
    monkeypatch.setattr(shipping, "plan_shipment", _lying_once(shipping.plan_shipment))
    assert send(box, TAG, here) == here["id"] == id_on(box, TAG)
    assert len(sent) == 2 and sent[0] < 1 << 20 < sent[1]


def _lying_once(plan):
    """The first plan says that every layer is there already."""
    answers = []

    def planned(*words):
        answers.append(1)
        return {} if len(answers) == 1 else plan(*words)

    return planned


def test_on_a_fast_line_layers_travel_as_they_are(box, images, monkeypatch):
    here = images[0]
    monkeypatch.setattr(shipping, "line_rate", lambda box: 1e9)
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


def test_a_box_gives_its_image_to_another(fleet, box, images, monkeypatch):
    """Only the layers that the other lacks, under the same id; broken off, it goes on."""
    first, second = images
    send(box, TAG, first), send(box, NEXT, second)
    other = fleet.start("engine", name="other")
    desk = other.desk()
    asked = []
    relayed = ship.frames_of_box

    def counted(giver, tag, least=0):
        def frames(*words):
            asked.append(0)
            for number, block in enumerate(relayed(giver, tag)(*words)):
                if least and number >= least:
                    return
                asked[-1] += len(block)
                yield block

        return frames

    monkeypatch.setattr(ship, "frames_of_box", lambda *words: counted(*words, least=4))
    with pytest.raises(KitError):
        ship.ship(desk, image=TAG, from_=box.name)
    monkeypatch.setattr(ship, "frames_of_box", counted)
    [done] = ship.ship(desk, image=TAG, from_=box.name)
    assert done["id"] == first["id"] == id_on(other, TAG)
    ship.ship(desk, image=NEXT, from_=box.name)
    assert id_on(other, NEXT) == second["id"]
    broken, rest, changed = asked
    assert broken > 8 << 20 and rest > 20 << 20 and 3 << 20 <= changed <= 1.1 * (3 << 20)
    with pytest.raises(ImageError, match="no image gpubox-test/absent"):
        ship.ship(desk, image="gpubox-test/absent", from_=box.name)
    with pytest.raises(UsageError, match="--from other"):
        ship.ship(desk, image=TAG, from_=other.name)


CONTAINERD = """
mkdir -p /etc/docker /etc/systemd/system/docker.service.d
echo '{"features": {"containerd-snapshotter": true}}' >/etc/docker/daemon.json
cat >/etc/systemd/system/docker.service.d/tcp.conf <<END
[Service]
ExecStart=
ExecStart=/usr/sbin/dockerd -H unix:///var/run/docker.sock -H tcp://0.0.0.0:2375
END
systemctl daemon-reload && systemctl restart docker
"""


@pytest.fixture(scope="module")
def other_store(fleet):
    """A box whose engine keeps images in the containerd image store, as newer ones do."""
    box = fleet.start("engine", name="containerd", more=["--volume", "/var/lib/containerd"])
    box.run("sh", "-c", CONTAINERD)
    return box


def test_the_containerd_store_takes_an_image_and_then_the_changed_layer_alone(
    other_store, box, images, monkeypatch
):
    """The same image has another id there: nothing that is there already travels again."""
    first, second = images
    sent = sizes(monkeypatch)
    ours = send(other_store, TAG, first)
    assert ours == id_on(other_store, TAG) != first["id"]
    assert send(other_store, TAG, first) == ours and len(sent) == 1
    assert send(other_store, NEXT, second) == id_on(other_store, NEXT)
    assert 3 << 20 <= sent[1] <= 1.1 * (3 << 20)
    assert (
        other_store.run("docker", "run", "--rm", NEXT).stdout == docker("run", "--rm", NEXT).stdout
    )


def test_the_containerd_store_that_lost_a_layer_gets_every_one(
    other_store, box, images, monkeypatch
):
    sent = sizes(monkeypatch)
    other_store.run("sh", "-c", "docker image rm -f $(docker image ls -q) || true")
    monkeypatch.setattr(shipping, "plan_shipment", _lying_once(shipping.plan_shipment))
    assert send(other_store, TAG, images[0]) == id_on(other_store, TAG)
    assert len(sent) == 2 and sent[0] < 1 << 20 < sent[1]
    assert other_store.run("docker", "run", "--rm", TAG, "true").returncode == 0


def test_an_image_of_a_laptop_with_the_containerd_store_comes_to_a_box(
    other_store, box, images, monkeypatch
):
    """`docker save` there names layers by what they are compressed to: read by way of a file."""
    first, second = images
    for tag, here in ((TAG, first), (NEXT, second)):
        send(other_store, tag, here)
    address = "{{.NetworkSettings.IPAddress}}"
    host = docker("inspect", "--format", address, other_store.container).stdout.strip()
    monkeypatch.setenv("DOCKER_HOST", f"tcp://{host}:2375")
    assert not engine.saves_by_layer()
    built = "FROM gpubox-test/ship:latest\nRUN head -c 3145728 /dev/urandom >/three\n"
    docker("build", "--quiet", "--tag", "gpubox-test/built", "-", input=built)
    sent = sizes(monkeypatch)
    for tag in (TAG, "gpubox-test/built"):
        there = engine.image_here(tag)
        was = send(box, tag, there)
        assert was == asked_by_ssh(box, tag) != there["id"]
        assert send(box, tag, there) == was
    whole, changed = sent
    assert whole > 60 << 20 and 3 << 20 <= changed <= 1.1 * (3 << 20)
    assert box.ssh("docker run --rm gpubox-test/built true").returncode == 0


def asked_by_ssh(box, tag):
    """As id_on, where DOCKER_HOST means another engine than the one the box runs in."""
    return box.ssh(f"docker image inspect --format '{{{{.Id}}}}' {tag}").stdout.strip()
