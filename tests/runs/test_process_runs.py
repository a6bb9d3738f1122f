"""Runs as processes, with a real supervisor: states, reasons, stops, and what outlives what."""

import concurrent.futures
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from deploy.errors import Busy, NoSuchRun
from deploy.onbox.output import tail
from deploy.onbox.runs import claim, record, supervisor_pid
from deploy.onbox.tending import goes_on, resume_verdict, tend
from deploy.onbox.waiting import stepless

pytestmark = pytest.mark.slow

LOOP = """
try:
    for step in range(newest() + 1, 100000):
        progress(step, 100000)
        if step % 10 == 0:
            publish(step)
        time.sleep(0.02)
except Ending:
    publish(step)
    sys.exit(75)
"""
TEN = """
for step in range(1, 11):
    progress(step, 10)
    print("step", step, flush=True)
    time.sleep(0.05)
publish(10)
"""


def test_launch_returns_at_the_first_step_and_says_where_the_time_went(box):
    report = box.launch(TEN)
    assert report["outcome"] == "first-step"
    assert set(report["state"]["phases"]) == {"queue", "prepare", "stage", "start", "first step"}
    state = box.until(report["id"], "finished")
    assert state["ending"]["kind"] == "finished" and state["exit_code"] == 0
    assert [each["state"] for each in state["history"]] == [
        "created",
        "staging",
        "running",
        "finished",
    ]
    assert tail(report["folder"] + "/logs")[-1] == "step 10"


@pytest.mark.parametrize(
    "program,state,kind",
    [
        ("sys.exit(3)", "failed", "exit-code"),
        ("sys.exit(70)", "failed", "nan"),
        ("raise KeyError('x')", "failed", "exit-code"),
        ("os.kill(os.getpid(), 11)", "failed", "exit-code"),
        ("raise OSError(28, 'No space left on device')", "failed", "disk-full"),
    ],
)
def test_a_bad_start_is_told_at_once_with_the_last_lines(box, program, state, kind):
    report = box.launch("print('before', flush=True)\n" + program)
    assert report["outcome"] == "ended"
    assert (report["state"]["state"], report["state"]["ending"]["kind"]) == (state, kind)
    assert "before" in report["tail"]


def test_a_program_that_reports_no_steps_is_not_waited_for_in_silence(box):
    report = box.launch("print('epoch 1', flush=True)\ntime.sleep(300)")
    assert report["outcome"] == "output" and report["state"]["state"] == "running"
    assert report["tail"] == ["epoch 1"]
    late = box.launch("print('reading', flush=True)\ntime.sleep(1.5)\nsys.exit(4)")
    assert late["outcome"] == "ended" and late["tail"] == ["reading"]


@pytest.mark.parametrize(
    "running,printed,ours,outcome",
    [
        (1, None, False, ""),
        (25, None, False, "silent"),
        (3, 1, False, ""),
        (30, 2, False, ""),
        (7, 5, False, "output"),
        (90, 60, True, ""),  # the bundled workload will report, however long a GPU takes to start
        (700, None, True, "silent"),
    ],
)
def test_how_long_a_program_without_steps_is_waited_for(running, printed, ours, outcome):
    assert stepless(running, printed, ours) == outcome


@pytest.mark.parametrize("python", ["/no/such/python", "a venv that pip can't fill"])
def test_what_can_not_even_be_prepared_is_told_as_the_end(box, python):
    """The supervisor ends the run; a clean-up before anything was started must not kill it."""
    if python.startswith("a venv"):
        more = {"python": "", "needs": "tensorflow", "requirements": "no-such-package-gpubox==1"}
        report = box.launch(TEN, **more)
    else:
        report = box.launch(TEN, python=python)
    assert (report["outcome"], report["state"]["state"]) == ("ended", "failed")
    assert report["state"]["ending"]["kind"] == "BoxUnfit"
    expected = "no such Python" if python.startswith("/") else "pip failed"
    assert expected in report["state"]["ending"]["text"]


def test_stop_saves_and_is_recorded_with_who(box):
    run = box.launch(LOOP)["id"]
    answer = box.agent.call("stop", run=run)
    assert answer["state"]["state"] == "stopped"
    assert "by the user" in answer["state"]["ending"]["text"]
    assert answer["state"]["exit_code"] == 75
    assert record(box.places, run)["state"]["best_step"] > 0
    assert not os.path.exists(record(box.places, run)["folder"] + "/intent.json")


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(box):
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprogress(1, 2)\ntime.sleep(600)"
    run = box.launch(program)["id"]
    state = box.agent.call("stop", run=run, grace=1)["state"]
    assert state["state"] == "stopped" and state["exit_code"] == -9
    assert "the work since its last checkpoint is lost" in state["ending"]["text"]


def test_a_stopped_run_is_resumed_where_it_was(box):
    run = box.launch(LOOP)["id"]
    before = box.agent.call("stop", run=run)["state"]["best_step"]
    report = box.agent.call("resume", run=run, wait=True)
    assert report["outcome"] == "first-step"
    assert record(box.places, run)["progress"]["step"] > before


def test_what_the_program_left_running_ends_with_it(box):
    program = """
    import subprocess
    child = subprocess.Popen(["sleep", "600"])
    open(os.path.join(out, "child"), "w").write(str(child.pid))
    progress(1, 1)
    """
    report = box.launch(program)
    box.until(report["id"], "finished")
    child = int(Path(report["folder"] + "/output/child").read_text())
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{child}/stat") and time.monotonic() < deadline:
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            return  # dead; whoever adopted it has not looked yet
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{child}/stat")


def test_the_supervisor_may_be_killed_and_the_run_goes_on(box):
    report = box.launch(LOOP)
    run = report["id"]
    os.kill(supervisor_pid(box.places, run), signal.SIGKILL)
    while supervisor_pid(box.places, run):
        time.sleep(0.02)
    pid = record(box.places, run)["state"]["handle"]["pid"]
    assert [each["id"] for each in tend(box.places)] == [run]
    while not supervisor_pid(box.places, run):
        time.sleep(0.02)
    found = record(box.places, run)
    assert found["state"]["state"] == "running" and found["state"]["handle"]["pid"] == pid
    assert box.agent.call("stop", run=run)["state"]["state"] == "stopped"


def test_both_killed_and_it_resumes_by_itself(box):
    run = box.launch(LOOP)["id"]
    while not record(box.places, run)["progress"]["step"] > 12:
        time.sleep(0.05)
    os.kill(supervisor_pid(box.places, run), signal.SIGKILL)
    os.killpg(record(box.places, run)["state"]["handle"]["pid"], signal.SIGKILL)
    while supervisor_pid(box.places, run):
        time.sleep(0.02)
    tend(box.places)  # takes over, finds it dead, says so, and starts it again
    wanted = ["created", "staging", "running", "interrupted", "staging", "running"]
    box.wait(lambda: [each["state"] for each in box.state(run)["history"]] == wanted)


def test_a_finished_stopped_or_failed_run_is_left_alone(box):
    runs = [box.launch(program)["id"] for program in ("progress(1, 1)", "sys.exit(3)")]
    stopped = box.launch(LOOP)["id"]
    box.agent.call("stop", run=stopped)
    for run in runs:
        box.until(run, "finished", "failed")
    assert tend(box.places) == []


def test_the_same_request_twice_makes_one_run(box):
    ask = box.ask(LOOP)
    first = box.agent.call("launch", **ask)
    again = box.agent.call("launch", **ask)
    assert first["id"] == again["id"]
    assert len(record(box.places, first["id"])["state"]["history"]) == 3


def test_two_at_the_same_instant_are_two_runs(box):
    asks = [box.ask(TEN) for _ in range(2)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        reports = list(pool.map(lambda ask: box.agent.call("launch", **ask), asks))
    assert len({report["id"] for report in reports}) == 2
    for report in reports:
        box.until(report["id"], "finished")


def test_a_living_run_can_not_be_removed_and_an_ended_one_can(box):
    run = box.launch(LOOP)["id"]
    with pytest.raises(Busy):
        box.agent.call("rm", run=run)
    box.agent.call("stop", run=run)
    assert box.agent.call("rm", run=run)["freed"] > 0
    with pytest.raises(NoSuchRun):
        box.agent.call("status", run=run)


@pytest.mark.parametrize(
    "name", ["-rf", "../x", "$(touch PWN)", "20261130-0930-cnn-3f9a/..", "a b"]
)
def test_hostile_run_names_are_no_runs(box, name):
    with pytest.raises(NoSuchRun):
        box.agent.call("stop", run=name)


def test_variables_reach_the_program_and_no_record(box):
    program = "progress(1, 1); publish(1); print(os.environ['TOKEN'][:4], flush=True)"
    report = box.launch(program, env="TOKEN=s3cr$t-value\n# a comment\n")
    box.until(report["id"], "finished")
    assert tail(report["folder"] + "/logs")[-1] == "s3cr"
    for name in ("run.json", "state.json", "logs/supervisor.log"):
        assert b"s3cr$t-value" not in Path(report["folder"], name).read_bytes()
    assert os.stat(report["folder"] + "/env").st_mode & 0o777 == 0o600


def test_logs_are_read_on_from_where_one_was(box):
    run = box.launch(TEN)["id"]
    box.until(run, "finished")
    events = []
    box.agent.call("logs", events.append, run=run, lines=2)
    assert "".join(each["text"] for each in events) == "step 9\nstep 10\n"
    at, events = events[-1]["at"], []
    box.agent.call("logs", events.append, run=run, offset=at + 7, follow=True)
    assert "".join(each["text"] for each in events) == "step 10\n"


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_told_although_nothing_can_be_written_there(box):
    runs = Path(box.places.runs)
    runs.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(runs)], check=True)
    try:
        program = """
        progress(1, 2)
        time.sleep(0.5)
        try:
            with open(os.path.join(out, "big"), "wb") as file:
                while True:
                    file.write(b"x" * 4096)
                    file.flush()
        except OSError:
            sys.exit(75)
        """
        run = box.launch(program)["id"]
        state = box.until(run, "interrupted")
        assert state["ending"] == {"kind": "disk-full", "text": "the disk of the runs is full"}
        assert state["exit_code"] == 75
        assert os.statvfs(runs).f_bavail * 4096 < 1 << 20
    finally:
        box.end()
        subprocess.run(["umount", "-l", str(runs)], check=True)


def test_a_program_that_prints_without_end_fills_no_disk(box):
    program = """
    line = b"x" * 99 + b"\\n"
    for number in range(1500):
        os.write(1, line * 1000)
        if number == 100:
            progress(1, 1)
    time.sleep(1)
    os.write(1, b"the end\\n")
    """
    report = box.launch(program)
    raw = Path(box.places.input, ".gpubox", "scratch", report["id"], "output")
    most = 0
    while box.state(report["id"])["state"] == "running":
        if raw.exists():
            most = max(most, raw.stat().st_blocks * 512)
        time.sleep(0.1)
    box.until(report["id"], "finished")
    logs = Path(report["folder"], "logs")
    assert tail(str(logs), 1) == ["the end"]
    kept = sum(path.stat().st_size for path in logs.glob("output-*.log"))
    assert kept <= 9 * (8 << 20) + (1 << 20)  # of 150 MB
    assert not raw.exists()
    assert most < 140 << 20  # what was copied was given back while it ran


@pytest.mark.parametrize("tries,pause", [(0, 0), (1, 30), (2, 120), (3, 600), (4, 1800)])
def test_pauses_grow_and_end(tries, pause):
    state = {"since": 1000.0, "tries": tries, "boot": "b", "ending": {"text": "exit 75"}}
    assert resume_verdict(state, 1000.0 + pause, "b")[0]
    assert pause == 0 or not resume_verdict(state, 999.0 + pause, "b")[0]
    assert resume_verdict(state, 0.0, "b")[0]  # a clock that was set back is no pause
    assert not resume_verdict({**state, "tries": 5}, 1e9, "b")[0]


def test_a_run_that_never_gets_further_is_given_up(box):
    """It asks to be resumed after each start, with nothing more saved than the last time."""
    program = """
    if newest() < 1:
        publish(1)
    progress(newest(), 10)
    sys.exit(75)
    """
    run = box.launch(program)["id"]
    for tries in range(6):
        while box.until(run, "interrupted", "queued", "staging", "running").get("tries") != tries:
            time.sleep(0.1)
        state = box.until(run, "interrupted")
        if tries < 5:
            assert [each["id"] for each in tend(box.places, time.time() + 7200)] == [run]
    assert tend(box.places, time.time() + 10**6) == []
    assert state["best_step"] == 1
    assert [each["state"] for each in state["history"]].count("running") == 6


@pytest.mark.parametrize(
    "text,tries,same_boot,on",
    [
        ("the box was switched off or rebooted under it", 0, False, True),
        ("interrupted by the shutdown of the box", 0, True, True),  # a reboot, as likely as not
        ("interrupted by pre-emption (spot)", 0, True, True),
        ("interrupted by idle", 0, True, False),  # whoever follows it would wait for ever
        ("interrupted by down", 0, True, False),
        ("interrupted by idle", 0, False, True),
        ("exit 75", 4, True, True),  # after a pause
        ("exit 75", 5, True, False),  # given up
    ],
)
def test_who_follows_a_run_waits_only_where_it_goes_on_by_itself(text, tries, same_boot, on):
    state = {"state": "interrupted", "since": 1000.0, "tries": tries, "ending": {"text": text}}
    assert goes_on({**state, "boot": "b" if same_boot else "a"}, 1001.0, "b") is on
    assert not goes_on({**state, "state": "finished"}, 1001.0, "b")


def test_a_second_stop_during_the_save_does_not_tear_it(box):
    program = """
    try:
        for step in range(1, 10**6):
            progress(step, 10**6)
            time.sleep(0.02)
    except Ending:
        time.sleep(2)  # a second SIGTERM here would end it without a checkpoint
        publish(step)
        sys.exit(75)
    """
    run = box.launch(program)["id"]
    other = type(box)(box.folder, box.places.home)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        stops = [pool.submit(each.agent.call, "stop", run=run) for each in (box, other)]
        states = [stop.result()["state"] for stop in stops]
    assert [state["state"] for state in states] == ["stopped", "stopped"]
    assert box.state(run)["exit_code"] == 75 and box.state(run)["best_step"] > 0


def test_a_stop_signals_the_supervisor_and_no_other_verb_that_holds_the_claim(box):
    """Two that stop a run just after its supervisor has gone both try to hold its claim."""
    run = box.launch(TEN)["id"]
    box.until(run, "finished")
    with claim(box.places, run) as ours:
        assert ours and supervisor_pid(box.places, run) == 0
    with claim(box.places, run, supervises=True) as ours:
        assert ours and supervisor_pid(box.places, run) == os.getpid()
        with claim(box.places, run) as second:
            assert not second
        assert supervisor_pid(box.places, run) == os.getpid()
    assert supervisor_pid(box.places, run) == 0


def test_another_box_takes_a_run_over_only_when_its_own_is_silent(box, tmp_path, monkeypatch):
    """Two boxes share /data: the second one has a home of its own."""
    report = box.launch(LOOP)
    run, folder = report["id"], report["folder"]
    monkeypatch.setenv("HOME", str(tmp_path / "second"))
    monkeypatch.setenv("GPUBOX_HOME", str(tmp_path / "second" / ".gpubox"))
    second = type(box)(box.folder, tmp_path / "second" / ".gpubox")
    with pytest.raises(Busy, match="is running on another box"):
        second.agent.call("resume", run=run, wait=True)
    assert tend(second.places) == []  # it is not this box's to look after
    # the first box dies with all that ran on it, and is silent for two minutes
    os.kill(supervisor_pid(box.places, run), signal.SIGKILL)
    os.killpg(record(box.places, run)["state"]["handle"]["pid"], signal.SIGKILL)
    os.utime(folder + "/state.json", (time.time() - 130,) * 2)
    report = second.agent.call("resume", run=run, wait=True)
    assert second.state(run)["state"] == "running"
    assert record(second.places, run)["mine"] and not record(box.places, run)["mine"]
    second.agent.call("stop", run=run)
