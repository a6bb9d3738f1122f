"""Checkpoints come home whole: from a run that saves and rotates, over cut links, past bad boxes."""

import hashlib
import json
import threading
import time
from pathlib import Path

import pytest

from deploy.console import Show
from deploy.effects.homecoming import Homecoming, digest_of
from deploy.errors import LinkLost, NoSuchRun, VerifyError
from deploy.onbox.checkpoints import parse_sums
from deploy.onbox.runs import record
from deploy.plan.fetch import choice, interval, make_room, newest, safe_path
from deploy.verbs.desk import Desk
from deploy.verbs.fetch import fetch

SAVER = """
step = newest()
try:
    while True:
        step += 1
        publish(step, size=200_000, keep=2)
        progress(step, 10**6)
        time.sleep(0.05)
except Ending:
    sys.exit(75)
"""
BIG = "publish(7, size=30_000_000); progress(7, 7)"


def whole(folder):
    """Every published checkpoint at home has exactly the files of its sums, with their content."""
    found = [each for each in folder.glob("output/checkpoints/step_*") if each.is_dir()]
    for step in found:
        sums = parse_sums((step / "SHA256SUMS").read_text())
        assert {path.name for path in step.iterdir()} == {"SHA256SUMS", *sums}
        for name, wanted in sums.items():
            assert hashlib.sha256((step / name).read_bytes()).hexdigest() == wanted
        assert json.loads((step / "meta.json").read_text())["step"] == int(step.name[5:])
    return [each.name for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("which,times", [("last", 100), ("all", 20)])
def test_never_torn_while_the_run_saves_and_rotates(box, tmp_path, which, times):
    run = box.launch(SAVER)["id"]
    came = []
    for number in range(times):
        home = Homecoming(tmp_path / f"home-{number}")
        got = home.receive(box.agent, run, which, files=number % 10 == 0)
        assert got["steps"], got["dropped"]
        assert sorted(whole(home.folder)) == got["steps"]
        assert not list(home.checkpoints.glob(".part-*"))
        latest = (home.checkpoints / "LATEST").read_text().strip()
        assert latest == got["steps"][-1]
        came.append(latest)
    assert len(set(came)) > times // 4  # it went on meanwhile
    assert box.state(run)["state"] == "running"


@pytest.mark.slow
def test_a_second_fetch_brings_only_what_is_new(box, tmp_path):
    program = "publish(1); publish(2); progress(2, 3); time.sleep(1); publish(3); progress(3, 3)"
    run = box.launch(program)["id"]
    home = Homecoming(tmp_path)
    assert home.receive(box.agent, run, "all", files=True)["steps"][:2] == [
        "step_00000001",
        "step_00000002",
    ]
    box.until(run, "finished")
    got = home.receive(box.agent, run, "all", files=True)
    assert got["steps"] in ([], ["step_00000003"]) and len(got["kept"]) >= 2
    again = home.receive(box.agent, run, "all", files=True)
    assert (again["steps"], again["files"], again["bytes"]) == ([], [], 0)
    assert (tmp_path / "output/progress.json").read_text() == (
        '{"schema": 1, "step": 3, "steps": 3}'
    )
    assert json.loads((tmp_path / "state.json").read_text())["state"] == "finished"


class Cut:
    """A box whose link breaks off after so many bytes."""

    def __init__(self, agent, most):
        self._agent, self._left = agent, most

    def open(self, verb, **request):
        stream = self._agent.open(verb, **request)
        stream.stdout = _CutStream(stream.stdout, self._left)
        return stream

    def answer(self, *arguments):
        return self._agent.answer(*arguments)


class _CutStream:
    def __init__(self, inner, most):
        self._inner, self._left = inner, most

    def readline(self):
        return self._inner.readline()

    def read(self, count=-1):
        if self._left <= 0:
            return b""
        data = self._inner.read(min(count, self._left) if count >= 0 else self._left)
        self._left -= len(data)
        return data

    def close(self):
        self._inner.close()


@pytest.mark.slow
def test_a_foreign_checkpoint_without_sums_comes_only_when_it_is_not_written_any_more(
    box, tmp_path
):
    """Keras and others write a folder in place: what still changes between two looks is left."""
    program = """
    whole, torn = (os.path.join(ckpt, "step_%08d" % n) for n in (1, 2))
    os.makedirs(whole + "/variables"), os.makedirs(torn)
    open(whole + "/saved_model.pb", "wb").write(b"model")
    open(whole + "/variables/data", "wb").write(bytes(3_000_000))
    progress(1, 2)
    with open(torn + "/weights", "wb") as file:
        while not os.path.exists(out + "/enough"):
            file.write(bytes(10_000))
            file.flush()
            time.sleep(0.1)
    time.sleep(600)
    """
    report = box.launch(program)
    home = Homecoming(tmp_path)
    got = home.receive(box.agent, report["id"], "all", files=False)
    assert got["steps"] == ["step_00000001"]
    assert got["dropped"] == {"step_00000002": "is still being written"}
    part = home.checkpoints / "step_00000001"
    assert parse_sums((part / "SHA256SUMS").read_text()).keys() == {
        "saved_model.pb",
        "variables/data",
    }
    assert (part / "variables" / "data").read_bytes() == bytes(3_000_000)
    Path(report["folder"], "output", "enough").touch()
    time.sleep(0.5)
    got = home.receive(box.agent, report["id"], "all", files=False)
    assert (got["steps"], got["kept"]) == (["step_00000002"], ["step_00000001"])
    beside = Path(report["folder"], "output", "checkpoints", "step_00000003")
    beside.mkdir()
    (beside / "SHA256SUMS").write_text("")  # a program that does write sums
    got = home.receive(box.agent, report["id"], "all", files=False)
    assert "though others have" in got["dropped"]["step_00000002"]
    box.agent.call("stop", run=report["id"], grace=0)


@pytest.mark.slow
def test_a_cut_link_is_gone_on_with_inside_the_file(box, tmp_path):
    run = box.launch(BIG)["id"]
    box.until(run, "finished")
    home = Homecoming(tmp_path)
    with pytest.raises(LinkLost):
        home.receive(Cut(box.agent, 20_000_000), run, "last", files=False)
    part = home.checkpoints / ".part-step_00000007"
    came = (part / "weights").stat().st_size
    assert came > 15_000_000
    assert whole(tmp_path) == [] and not (home.checkpoints / "LATEST").exists()
    got = home.receive(box.agent, run, "last", files=False)
    assert whole(tmp_path) == ["step_00000007"] and not part.exists()
    assert got["bytes"] < 30_000_000 - came + 10_000


@pytest.mark.slow
def test_a_damaged_beginning_is_found_and_fetched_anew(box, tmp_path):
    run = box.launch(BIG)["id"]
    box.until(run, "finished")
    home = Homecoming(tmp_path)
    with pytest.raises(LinkLost):
        home.receive(Cut(box.agent, 20_000_000), run, "last", files=False)
    with (home.checkpoints / ".part-step_00000007" / "weights").open("r+b") as file:
        file.write(b"not what was sent")
    with pytest.raises(VerifyError):
        home.receive(box.agent, run, "last", files=False)
    assert whole(tmp_path) == []
    home.receive(box.agent, run, "last", files=False)
    assert whole(tmp_path) == ["step_00000007"]


@pytest.mark.slow
def test_a_checkpoint_that_was_made_again_replaces_the_old_one(box, tmp_path):
    run = box.launch(BIG)["id"]
    box.until(run, "finished")
    home = Homecoming(tmp_path)
    home.receive(box.agent, run, "last", files=False)
    first = digest_of(home.checkpoints / "step_00000007" / "SHA256SUMS")
    box.agent.call("resume", run=run, wait=True)
    box.until(run, "finished")
    home.receive(box.agent, run, "last", files=False)
    assert whole(tmp_path) == ["step_00000007"]
    assert digest_of(home.checkpoints / "step_00000007" / "SHA256SUMS") != first


@pytest.mark.slow
def test_best_and_a_run_that_is_not_there(box, tmp_path):
    program = "publish(1); publish(2); replace(ckpt + '/best', 'step_00000001\\n'); progress(2, 2)"
    run = box.launch(program)["id"]
    box.until(run, "finished")
    home = Homecoming(tmp_path)
    assert home.receive(box.agent, run, "best", files=False)["steps"] == ["step_00000001"]
    assert (home.checkpoints / "best").read_text() == "step_00000001\n"
    with pytest.raises(NoSuchRun):
        home.receive(box.agent, "20261130-0930-none-0000", "last", files=False)


@pytest.mark.slow
def test_secrets_and_code_stay_on_the_box(box, tmp_path):
    run = box.launch("progress(1, 1)", env="TOKEN=abc\n")["id"]
    box.until(run, "finished")
    Homecoming(tmp_path).receive(box.agent, run, "last", files=True)
    names = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert "run.json" in names and not {"env", "code"} & names


@pytest.mark.slow
def test_what_is_home_is_known_on_the_box(box):
    run = box.launch("publish(5); progress(5, 5)")["id"]
    box.until(run, "finished")
    box.agent.call("home", run=run, step=5, where="laptop")
    assert box.agent.call("status", run=run)["runs"][0]["home"]["step"] == 5
    assert record(box.places, run)["state"]["state"] == "finished"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "a//b", "", "C:/x", "a\\b", "."]
)
def test_no_name_from_a_box_leaves_its_folder(path):
    with pytest.raises(VerifyError):
        safe_path(path)


@pytest.mark.parametrize("name", ["/abs", "../up", "a/../../b"])
def test_sums_that_point_elsewhere_are_refused(name):
    with pytest.raises(ValueError):
        parse_sums(f"{'0' * 64}  {name}\n")


@pytest.mark.parametrize(
    "passing,steps,best,keep,removed",
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 0, 2, [1, 2]),
        ([1, 2, 3, 4], [1, 2, 3, 4], 1, 2, [2]),  # the best stays
        ([1, 2, 3, 4], [1, 2, 3, 4], 0, 0, []),  # 0 keeps all
        ([2, 4], [1, 2, 3, 4], 0, 1, [2]),  # 1 and 3 were asked for by --all
        ([1], [1], 0, 1, []),
        ([1, 9], [1], 0, 1, []),  # never the newest of all, whatever is remembered
        ([99999999, 100000000], [99999999, 100000000], 0, 1, [99999999]),  # by number, not by name
    ],
)
def test_which_checkpoints_at_home_make_room(passing, steps, best, keep, removed):
    names = {n: f"step_{n:08d}" for n in [0, *passing, *steps]}
    found = make_room([names[n] for n in passing], [names[n] for n in steps], names[best], keep)
    assert found == [names[n] for n in removed]


@pytest.mark.slow
def test_what_a_plain_fetch_brought_makes_room_and_what_was_asked_for_stays(box, tmp_path):
    program = """
    publish(newest() + 1, keep=2)
    replace(ckpt + "/best", "step_00000003\\n")
    """
    run = box.launch(program)["id"]
    home = Homecoming(tmp_path)
    for number in range(1, 8):
        box.until(run, "finished")
        which = "all" if number <= 2 else "last"
        home.receive(box.agent, run, which, files=False)
        home.make_room(which, 2)
        assert f"step_{number:08d}" in whole(tmp_path)
        if number < 7:
            box.agent.call("resume", run=run, wait=True)
    assert sorted(whole(tmp_path)) == [f"step_{n:08d}" for n in (1, 2, 3, 6, 7)]
    remembered = json.loads((home.checkpoints / ".passing.json").read_text())
    assert set(remembered) == {"schema", "steps"}
    assert remembered["steps"][-2:] == ["step_00000006", "step_00000007"]


def test_flags():
    assert choice(False, False, False, False) == "last"
    assert choice(True, False, False, False) == "best"
    assert interval("5m") == 300
    assert newest(["step_00000009", "step_100000000", ".part-step_1"]) == "step_100000000"


@pytest.mark.sshd
@pytest.mark.slow
def test_follow_goes_on_over_lost_links_until_the_run_ends(box, sshd, tmp_path):
    server = sshd()
    desk = Desk(Show(machine=True), ["box"])
    program = """
    for step in range(1, 13):
        publish(step, size=200_000, keep=2)
        progress(step, 12)
        time.sleep(0.5)
    """
    with desk.open("box") as agent:
        run = agent.call("launch", **box.ask(program))["id"]
    box.end = lambda: None
    answer = []

    def follow():
        answer.extend(fetch(desk, run, follow=True, every="1s", to=str(tmp_path)))

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(2)
    server.cut()
    server.stop()  # nobody answers for a while; the run knows nothing of it
    time.sleep(2)
    server.run_sshd()
    thread.join(120)
    assert answer[0]["state"] == "finished" and answer[0]["id"] == run
    assert "step_00000012" in whole(tmp_path / run)
    assert (tmp_path / run / "output/checkpoints/LATEST").read_text() == "step_00000012\n"
    with desk.open("box") as agent:
        assert agent.call("status", run=run)["runs"][0]["home"]["step"] == 12
