"""A real keeper process on this machine, with rules of seconds and stop commands that misbehave."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from deploy.errors import StopFailed
from deploy.onbox import arming
from deploy.onbox.keeper_status import keeper_lives
from tests.keeper.local import DEAF, QUICK, LocalBox, Webhook

pytestmark = pytest.mark.slow


@pytest.fixture
def box(own_home, installed, tmp_path):
    (tmp_path / "box").mkdir()
    box = LocalBox(own_home, tmp_path / "box")
    yield box
    box.end()


@pytest.fixture
def webhook():
    made = []

    def make(answer=200):
        made.append(Webhook(answer))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_an_idle_box_is_reminded_about_three_times_and_then_stopped(box, webhook):
    hook = webhook()
    armed = box.arm([box.stop_script()], channels=[hook.channel()])
    assert armed["armed"] and armed["mode"] == "detached"
    box.wait(lambda: box.calls())
    box.wait(lambda: len(hook.titles()) >= 4)
    titles = hook.titles()
    assert [t.startswith("gpubox: local stops in") for t in titles[:4]] == [True, True, True, False]
    assert titles[2].endswith("last call") and titles[3] == "gpubox: local is being stopped now"
    first = hook.got[0]
    assert (
        "fab hold" in first["text"] and "Cost so far" in first["text"] and first["box"] == "local"
    )
    assert "s3cret" not in box.log()


def test_one_round_trip_tells_that_it_is_armed_already(box):
    box.arm([box.stop_script()], asked="mark")
    assert box.agent.call("arm", same_as="mark")["armed"]
    assert not box.agent.call("arm", same_as="other")["armed"]


@pytest.mark.parametrize("answer", ["hang", "redirect", 500])
def test_a_channel_that_is_slow_or_broken_never_delays_the_stop(box, webhook, answer):
    hook = webhook(answer)
    began = time.monotonic()
    box.arm([box.stop_script()], channels=[hook.channel()])
    box.wait(lambda: box.calls())
    assert time.monotonic() - began < 6 + 2 + 8  # the rule, the last word, a busy machine
    assert hook.got
    if answer != "hang":
        box.wait(lambda: "channel hook: failed" in box.log())
    assert all("elsewhere" not in line for line in hook.titles())


def test_a_dead_channel_never_delays_the_stop(box):
    box.arm([box.stop_script()], channels=[{"name": "dead", "url": "http://127.0.0.1:9/s3cret"}])
    box.wait(lambda: box.calls())
    assert "s3cret" not in box.log()


def test_a_stop_command_that_fails_is_tried_again_and_shouted_about(box, webhook):
    hook = webhook()
    box.arm([box.stop_script("echo quota exceeded; exit 1")], channels=[hook.channel()])
    box.wait(lambda: box.calls() >= 3)
    box.wait(lambda: sum("could NOT be stopped" in t for t in hook.titles()) >= 2)
    assert "quota exceeded" in box.log()
    assert box.status()["stopping"]["tries"] >= 2


def test_a_stop_command_that_hangs_is_killed_and_tried_again(box):
    script = box.stop_script("sleep 9999")
    box.arm([script], stop={"seconds": 1.0, "pauses": [1.0, 600.0]})
    box.wait(lambda: box.log().count("did not end") >= 2)
    assert box.calls() == 2
    assert not subprocess.run(["pgrep", "-f", f"^/bin/sh {script}"], capture_output=True).stdout


def test_a_stop_command_that_succeeds_while_the_box_lives_on_is_never_done(box):
    box.arm([box.stop_script()])
    box.wait(lambda: box.calls() >= 2)
    assert "but the box is still on" in box.log()


def test_a_command_with_windows_line_ends_or_not_executable_is_refused_at_arming(box):
    with pytest.raises(StopFailed, match="CRLF"):
        box.arm([box.stop_script(shebang="#!/bin/sh\r\n")])
    with pytest.raises(StopFailed, match="not executable"):
        box.arm([box.stop_script(mode=0o644)])
    with pytest.raises(StopFailed, match="not there"):
        box.arm(["/nowhere/stop"])
    assert not box.idle()["armed"]


@pytest.mark.parametrize("fault", [{"shebang": "#!/bin/sh\r\n"}, {"mode": 0o644}])
def test_forced_it_is_armed_and_says_at_each_try_that_the_box_is_on(box, fault):
    box.arm([box.stop_script(**fault)], force=True)
    box.wait(lambda: box.log().count("could NOT be stopped") >= 2)
    assert box.calls() == 0


def test_a_shutdown_in_a_container_is_refused(box):
    if (
        not os.path.exists("/.dockerenv")
        and b"container=" not in Path("/proc/1/environ").read_bytes()
    ):
        pytest.skip("this machine is no container")
    with pytest.raises(StopFailed, match="this box is a container"):
        box.arm(["systemctl", "poweroff"])


def test_a_sign_of_life_begins_the_count_again(box):
    # on a busy machine a hold takes seconds to come between the reminder and the stop
    unhurried = QUICK.__class__(remind_after=2.0, stop_after=12.0, poll=1.0, **DEAF)
    box.arm([box.stop_script()], rule=unhurried)
    box.wait(lambda: "stops in" in box.log())
    held = box.agent.call("hold", seconds=600, why="a test")
    assert held["seconds"] == 600
    box.wait(lambda: box.status()["decision"]["cause"] == "active")
    time.sleep(5)
    assert box.calls() == 0
    box.agent.call("hold", seconds=0)
    box.wait(lambda: box.calls())


def test_a_sign_of_life_after_a_failed_stop_calls_it_off(box):
    box.arm([box.stop_script("exit 1")])
    box.wait(lambda: box.calls())
    box.agent.call("hold", seconds=600, why="I am back")
    box.wait(lambda: "the stop is called off" in box.log())
    calls = box.calls()
    time.sleep(4)
    assert box.calls() == calls
    assert not (box.keeper / "stopping.json").exists()


def test_a_smaller_limit_counts_from_now(box):
    box.arm(
        [box.stop_script()],
        rule=QUICK.__class__(remind_after=60.0, stop_after=90.0, poll=1.0, **DEAF),
    )
    box.wait(lambda: box.status()["decision"]["idle_for"] > 5)
    changed = time.monotonic()
    box.arm([box.stop_script()], rule=QUICK)
    decision = box.status()["decision"]
    assert decision["idle_for"] < 5 and decision["action"] != "stop"
    box.wait(lambda: box.calls())
    assert time.monotonic() - changed > QUICK.stop_after - 1


def test_a_killed_keeper_comes_back_and_a_second_one_is_refused(box):
    box.arm(
        [box.stop_script()],
        rule=QUICK.__class__(stop_after=60.0, remind_after=30.0, poll=1.0, **DEAF),
    )
    first = box.status()["pid"]
    os.kill(first, signal.SIGKILL)
    box.wait(lambda: box.status()["pid"] != first and box.idle()["armed"])
    start = str(box.keeper / "start")
    assert subprocess.run([start], stderr=subprocess.PIPE).returncode == 3


def test_its_files_are_those_of_the_page_of_formats(box):
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()

    def example(name):
        found = re.search(rf"<!-- example: {name} -->\n```json\n(.*?)```", page, re.DOTALL)
        return json.loads(found[1])

    box.arm([box.stop_script()])
    assert example("status.json").keys() == box.status().keys()
    assert example("status.json")["decision"].keys() == box.status()["decision"].keys()
    box.agent.call("hold", seconds=60, why="labels", who="anna")
    assert example("hold.json").keys() == json.loads((box.keeper / "hold.json").read_text()).keys()


def killed_with_its_supervisor(box):
    """As after a restart of a pod: the files are there, and no process."""
    box.arm(
        [box.stop_script()],
        rule=QUICK.__class__(stop_after=60.0, remind_after=30.0, poll=1.0, **DEAF),
    )
    pid = box.status()["pid"]
    parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(parent, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    box.wait(lambda: not keeper_lives(box.status()))
    return pid


@pytest.mark.parametrize("verb", ["status", "overview", "idle"])
def test_killed_together_with_its_supervisor_it_is_started_by_the_next_look(box, verb):
    pid = killed_with_its_supervisor(box)
    answer = box.agent.call(verb)
    keeper = answer if verb == "idle" else answer["keeper"]
    assert keeper["armed"] and keeper["status"]["pid"] != pid


def test_a_keeper_that_can_not_be_started_again_is_not_armed(box):
    killed_with_its_supervisor(box)
    (box.keeper / "start").unlink()
    assert (box.idle()["armed"], box.idle()["why_not"]) == (False, "the keeper does not run")
    assert box.arm([box.stop_script()])["armed"]


def test_a_disarmed_one_is_not_started_again(box):
    killed_with_its_supervisor(box)
    box.agent.call("disarm")
    assert not box.idle()["armed"] and not keeper_lives(box.status())


def test_the_script_that_a_pod_runs_at_each_start_starts_the_keeper(box, tmp_path, monkeypatch):
    script = tmp_path / "onstart.sh"
    script.write_text("#!/bin/bash\ntouch own-line\nsleep infinity\n")
    script.chmod(0o755)
    monkeypatch.setattr(arming, "ONSTART", str(script))
    killed_with_its_supervisor(box)
    for _ in range(2):  # twice is once
        assert arming.note_at_reboot(arming.loop()) == []
    text = script.read_text()
    assert text.startswith("#!/bin/bash\nsetsid ") and text.count(arming.MARK) == 1
    assert arming.after_reboot({"mode": "detached"}) and script.stat().st_mode & 0o777 == 0o755
    pod = subprocess.Popen([script], cwd=tmp_path, start_new_session=True)
    try:
        box.wait(lambda: keeper_lives(box.status()))
        assert (tmp_path / "own-line").exists()
    finally:
        os.killpg(pod.pid, signal.SIGKILL)
        pod.wait()


def test_a_deleted_rule_is_written_again_and_survives_a_restart(box):
    box.arm(
        [box.stop_script()],
        rule=QUICK.__class__(stop_after=60.0, remind_after=30.0, poll=1.0, **DEAF),
    )
    (box.keeper / "rule.json").unlink()
    box.wait(lambda: (box.keeper / "rule.json").exists())
    box.wait(lambda: "rule was deleted" in box.log())
    (box.keeper / "rule.json").unlink()
    pid = box.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    box.wait(lambda: box.status()["pid"] != pid and box.idle()["armed"])


def test_the_money_cap_stops_a_box_that_works(box):
    rule = QUICK.__class__(stop_after=60.0, remind_after=55.0, poll=1.0, max_cost=8.0, **DEAF)
    box.agent.call("hold", seconds=600, why="work")
    cost = box.agent.call("cost")
    assert cost["lives"] == []
    request = box.request([box.stop_script()], rule=rule)
    request["cost_base"] = 0.0
    from deploy.onbox.life import uptime

    request["rule"]["max_cost"] = uptime() + 8.0  # a unit of money a second, since the box began
    box.agent.call("arm", **request)
    box.wait(lambda: box.calls())
    assert "spent of" in box.log()


def test_the_keeper_keeps_its_version_until_it_is_restarted(box):
    box.arm(
        [box.stop_script()],
        rule=QUICK.__class__(stop_after=60.0, remind_after=30.0, poll=1.0, **DEAF),
    )
    status = box.status()
    box.arm(
        [box.stop_script()],
        rule=QUICK.__class__(stop_after=90.0, remind_after=30.0, poll=1.0, **DEAF),
    )
    assert box.status()["pid"] == status["pid"]
    box.arm([box.stop_script()], restart=True)
    assert box.status()["pid"] != status["pid"]


def test_disarmed_means_ended(box):
    box.arm([box.stop_script()])
    pid = box.status()["pid"]
    assert box.agent.call("disarm") == {"was": True}
    box.wait(lambda: not Path(f"/proc/{pid}").exists())
    time.sleep(3)
    assert not box.idle()["armed"] and box.calls() == 0


def test_a_full_disk_does_not_keep_the_box_on(box):
    """The keeper's folder is a full tmpfs: no status, no ledger, no marker; it stops all the same."""
    script = box.stop_script()
    box.keeper.mkdir(parents=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(box.keeper)]
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        box.arm([script])
        with open(box.keeper / "fill", "wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        box.wait(lambda: box.calls())
        (box.keeper / "fill").unlink()
    finally:
        box.end()
        time.sleep(1)
        subprocess.run(["umount", "-l", str(box.keeper)], check=True)


@pytest.mark.parametrize("hours", [6, -6, 40 * 8766])
def test_a_wall_clock_that_is_set_begins_a_new_count_and_stops_nothing(
    own_home, tmp_path, monkeypatch, hours
):
    if not shutil.which("cc"):
        pytest.skip("no C compiler (apt-get install gcc)")
    library, offset = tmp_path / "clock.so", tmp_path / "offset"
    source = Path(__file__).parents[1] / "fakes" / "clock.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    offset.write_text("0")
    monkeypatch.setenv("FAKE_CLOCK", str(offset))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    (tmp_path / "box").mkdir()
    box = LocalBox(own_home, tmp_path / "box")
    try:
        box.arm([box.stop_script()])
        box.wait(lambda: box.status()["decision"]["idle_for"] > 3)
        offset.write_text(str(hours * 3600))
        set_at = time.monotonic()
        box.wait(lambda: box.status()["decision"]["idle_for"] < 2)
        assert box.calls() == 0
        box.wait(lambda: box.calls())
        assert time.monotonic() - set_at > QUICK.stop_after - 1
        assert abs(box.status()["wall"] - time.time() - hours * 3600) < 60
    finally:
        box.end()


def test_the_ledger_counts_the_time_before_the_keeper_came(box):
    box.arm([box.stop_script()])
    box.wait(lambda: list((box.keeper / "ledger").glob("*.json")))
    life = json.loads(next((box.keeper / "ledger").glob("*.json")).read_text())
    from deploy.onbox.life import uptime

    assert abs(life["on"] - uptime()) < 120
    assert life["cost"] == pytest.approx(life["on"])
