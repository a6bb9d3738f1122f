"""Each sensor against what it will meet: drivers that lie and hang, quiet trainers, open terminals."""

import http.server
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from deploy.onbox import sensors_gpu, sensors_people, sensors_work
from deploy.onbox.activity import active
from deploy.onbox.hold import hold
from deploy.onbox.idle import ABSENT, ACTIVE, IDLE, UNKNOWN, Rule, Sample, decide
from deploy.onbox.look import Look
from deploy.onbox.nvml import Nvml
from deploy.onbox.places import Places
from deploy.onbox.publish import write_json
from deploy.onbox.runs import box_identity
from deploy.onbox.sensors_gpu import Child, Gpu
from deploy.onbox.sensors_load import Rate, cgroup_cpu_seconds, cores
from deploy.onbox.sensors_people import Editors, Notebooks, Terminals
from deploy.onbox.sensors_work import Hold, Leases, Runs

FAKES = Path(__file__).parents[1] / "fakes"


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The fake NVML, compiled."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler (apt-get install gcc)")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = str(FAKES / "libnvidia-ml.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), source], check=True)
    return path


@pytest.fixture
def gpu(library, tmp_path, monkeypatch):
    """`gpu("util 0")` sets what the driver says; `gpu.sensor` reads it."""
    settings = tmp_path / "nvml"
    monkeypatch.setenv("FAKE_NVML", str(settings))
    monkeypatch.setattr(sensors_gpu, "on_the_bus", lambda: True)

    def say(*lines):
        settings.write_text("\n".join(lines) + "\n")

    say.sensor = Gpu(5.0, lambda: Child(lambda: Nvml(str(library))))
    yield say
    say.sensor.close()


def test_gpu_use(gpu):
    gpu("util 0")
    assert gpu.sensor.read(0.0) == (IDLE, "0 %")
    gpu("util 90")
    assert gpu.sensor.read(15.0) == (ACTIVE, "90 %")
    gpu("util 4")
    assert gpu.sensor.read(30.0).state == IDLE


def test_a_burst_between_two_looks_is_seen(gpu):
    gpu("util 0", "burst 90")
    gpu.sensor.read(0.0)
    assert gpu.sensor.read(15.0) == (ACTIVE, "90 %")


def test_memory_held_by_a_dead_pid_keeps_no_box_awake_and_is_named(gpu):
    dead = subprocess.Popen(["true"])
    dead.wait()
    gpu("util 0", "memory 9000", f"pid {dead.pid}")
    for at in (0.0, 15.0, 30.0):
        signal = gpu.sensor.read(at)
    assert signal == (IDLE, f"0 %; memory held by pid {dead.pid} (not here)")


def test_memory_held_by_nobody_at_all_is_named(gpu):
    gpu("util 0", "memory 9000")
    assert "9000 MiB held by no process" in gpu.sensor.read(0.0).detail


def test_a_gpu_process_that_computes_counts_though_the_gpu_stands_at_zero(gpu):
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        gpu("util 0", f"pid {busy.pid}")
        gpu.sensor.read(0.0)
        time.sleep(0.5)
        signal = gpu.sensor.read(0.5)
        assert signal.state == ACTIVE and f"pid {busy.pid}" in signal.detail
    finally:
        busy.kill()
        busy.wait()
    asleep = subprocess.Popen(["sleep", "60"])
    try:
        gpu("util 0", f"pid {asleep.pid}")
        gpu.sensor.read(1.0)
        assert gpu.sensor.read(16.0) == (IDLE, f"0 %; memory held by pid {asleep.pid} (sleep)")
    finally:
        asleep.kill()
        asleep.wait()


@pytest.mark.parametrize(
    ("code", "words"), [(9, "Driver Not Loaded"), (18, "mismatch"), (999, "Unknown")]
)
def test_an_nvml_that_errs_is_unknown_and_recovers(gpu, code, words):
    gpu(f"error {code}")
    signal = gpu.sensor.read(0.0)
    assert signal.state == UNKNOWN and words in signal.detail
    gpu("util 50")
    assert gpu.sensor.read(15.0) == (ACTIVE, "50 %")


def test_an_nvml_that_begins_to_err_later(gpu):
    gpu("util 0")
    assert gpu.sensor.read(0.0).state == IDLE
    gpu("error 999")
    assert gpu.sensor.read(15.0).state == UNKNOWN


def test_an_nvml_that_hangs_is_killed_and_left_alone_for_a_while(gpu, monkeypatch):
    gpu("hang 60")
    began = time.monotonic()
    with monkeypatch.context() as quick:
        quick.setattr(sensors_gpu, "DEADLINE", 0.5)
        signal = gpu.sensor.read(0.0)
    assert signal.state == UNKNOWN and "does not answer" in signal.detail
    assert time.monotonic() - began < 30
    gpu("util 0")
    assert gpu.sensor.read(15.0).state == UNKNOWN  # not asked again yet
    assert gpu.sensor.read(61.0) == (IDLE, "0 %")


def test_a_mig_card_can_not_tell_its_use(gpu):
    gpu("mig 1")
    assert gpu.sensor.read(0.0).state == IDLE
    gpu("mig 1", "pid 4194304")
    assert gpu.sensor.read(15.0).state == UNKNOWN


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """`smi("echo 0, 100")` puts an nvidia-smi into PATH; there is no NVML library."""
    monkeypatch.setattr(sensors_gpu, "on_the_bus", lambda: True)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    sensor = Gpu(5.0, lambda: Child(lambda: Nvml(str(tmp_path / "none.so"))))

    def look(script):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        return sensor.read(0.0)

    yield look
    sensor.close()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('echo "Failed to initialize NVML: Unknown Error"; exit 255', "Unknown Error"),
        ("exec sleep 60", "does not answer"),
        ("true", "nothing printed"),
        ('echo "[N/A], [N/A]"', "[N/A]"),
        ('echo "No devices were found"', "No devices"),
    ],
)
def test_an_nvidia_smi_that_does_not_answer_is_unknown_and_says_why(
    smi, script, words, monkeypatch
):
    if "sleep" in script:
        monkeypatch.setattr(sensors_gpu, "DEADLINE", 1.0)
    signal = smi(script)
    assert signal.state == UNKNOWN and words in signal.detail


def test_an_nvidia_smi_that_answers(smi):
    assert smi('echo "0, 100"; echo "97, 2000"') == (ACTIVE, "97 %")
    assert smi('echo "0, 100"') == (IDLE, "0 %")


def test_a_gpu_on_the_bus_without_any_program_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(sensors_gpu, "on_the_bus", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    sensor = Gpu(5.0, lambda: Child(lambda: Nvml(str(tmp_path / "none.so"))))
    assert sensor.read(0.0).state == UNKNOWN
    sensor.close()


def test_no_gpu_on_the_bus_is_absent(monkeypatch):
    monkeypatch.setattr(sensors_gpu, "on_the_bus", lambda: False)
    assert Gpu(5.0).read(0.0).state == ABSENT


@pytest.fixture
def places(tmp_path, own_home):
    for name in ("data", "input", "runs", "home"):
        (tmp_path / name).mkdir()
    return Places(*(str(tmp_path / name) for name in ("data", "input", "runs", "home")), [])


def make_run(places, run_id, state="running", ago=0.0, **more):
    """A run's folder as its supervisor would leave it."""
    folder = Path(places.runs) / run_id
    (folder / "output").mkdir(parents=True, exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    run = {"schema": 1, "id": run_id, "identity": box_identity(places)}
    write_json(str(folder / "run.json"), run)
    since = time.time() - ago
    write_json(str(folder / "state.json"), {"schema": 1, "state": state, "since": since, **more})
    return folder


RUN = "20261130-0930-cnn-3f9a"


def test_a_run_counts_while_it_shows_signs_of_life(places):
    sensor = Runs(places, stalled_after=3600)
    assert sensor.read(0.0) == (IDLE, "none")
    folder = make_run(places, RUN)
    assert sensor.read(10.0) == (ACTIVE, f"{RUN} running")
    write_json(str(folder / "output" / "progress.json"), {"step": 100})
    assert sensor.read(3000.0).state == ACTIVE
    assert sensor.read(6500.0).state == ACTIVE  # 3,500 s since its last step
    stalled = sensor.read(6700.0)
    assert stalled.state == IDLE and "stalled" in stalled.detail and RUN in stalled.detail
    (folder / "logs" / "output.log").write_text("step 200\n")
    assert sensor.read(6800.0).state == ACTIVE


def test_the_supervisors_own_heartbeat_is_no_sign_of_life(places):
    sensor = Runs(places, stalled_after=100)
    folder = make_run(places, RUN)
    sensor.read(0.0)
    os.utime(folder / "state.json")
    assert sensor.read(101.0).state == IDLE


def test_a_quiet_trainer_is_not_stopped(places, gpu):
    """Nothing printed for 15 minutes with the GPU at 0 %, limit 2 minutes."""
    gpu("util 0")
    make_run(places, RUN)
    runs, rule = Runs(places, stalled_after=3600), Rule(remind_after=60, stop_after=120)
    samples = []
    for at in range(0, 16 * 60, 15):
        signals = {"runs": runs.read(float(at)), "gpu": gpu.sensor.read(float(at))}
        samples.append(Sample(float(at), float(at), "e", signals))
        assert decide(samples, rule, moment(at)).action != "stop"


def moment(at):
    from deploy.onbox.idle import Moment

    return Moment(float(at), "e")


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
def test_a_run_that_has_ended_is_no_work(places, state):
    make_run(places, RUN, state)
    sensor = Runs(places, 3600)
    assert sensor.read(0.0) == sensor.read(15.0) == (IDLE, "none")


def test_a_run_that_breaks_again_and_again_is_given_up_and_counts_as_idle(places):
    waiting = {"tries": 2, "boot": "", "ending": {"text": "exit code 75"}}
    make_run(places, RUN, "interrupted", ago=5, **waiting)
    assert Runs(places, 3600).read(0.0).state == ACTIVE  # its next try is near
    make_run(places, RUN, "interrupted", ago=5, **{**waiting, "tries": 5})
    assert Runs(places, 3600).read(0.0) == (IDLE, "none")


def test_another_boxes_run_on_the_same_disk_is_not_ours(places):
    folder = make_run(places, RUN)
    write_json(str(folder / "run.json"), {"schema": 1, "id": RUN, "identity": "x@elsewhere"})
    assert Runs(places, 3600).read(0.0) == (IDLE, "none")


def test_a_run_disk_that_is_gone_is_unknown(places):
    os.rmdir(places.runs)
    assert Runs(places, 3600).read(0.0).state == UNKNOWN


def test_a_lease_counts_until_its_heartbeat_stands_still(own_home):
    sensor = Leases()
    with active("upload photos"):
        assert sensor.read(0.0).state == ACTIVE
        assert sensor.read(100.0).state == ACTIVE
        frozen = sensor.read(200.0)  # the file's time has not moved for 200 s by our clock
        assert frozen.state == IDLE and "frozen: upload photos" in frozen.detail
    assert sensor.read(201.0) == (ACTIVE, "some work ended just now")
    assert sensor.read(202.0) == (IDLE, "none")
    with active("a short one"):
        pass
    assert sensor.read(203.0).state == ACTIVE  # it came and went between two looks


def test_a_run_that_came_and_went_between_two_looks_is_seen(places):
    sensor = Runs(places, 3600)
    assert sensor.read(0.0) == (IDLE, "none")
    make_run(places, RUN, "finished")
    assert sensor.read(15.0) == (ACTIVE, f"{RUN} ended just now")
    assert sensor.read(30.0) == (IDLE, "none")


def test_a_hold_counts_until_it_ends(own_home):
    sensor, at = Hold(), time.monotonic()
    assert sensor.read(at).state == ABSENT
    hold({"seconds": 7200, "why": "labels come at noon", "who": "anna"}, None)
    signal = sensor.read(at)
    assert signal.state == ACTIVE and "labels come at noon" in signal.detail
    assert sensor.read(at + 7300).state == ABSENT
    hold({"seconds": 0}, None)
    assert sensor.read(at).state == ABSENT


def test_a_hold_from_before_a_reboot_is_no_longer_than_asked_for():
    from deploy.onbox.hold import hold_left

    old = {"life": "another", "seconds": 3600.0, "until": 1e12, "until_wall": 2e9}
    assert hold_left(old, 0.0, 2e9 - 600) == 600
    assert hold_left(old, 0.0, 1e9) == 3600  # a clock set back does not hold it for years


def test_typing_counts_and_an_open_terminal_does_not(tmp_path):
    ours, theirs = pty.openpty()
    try:
        name = os.path.basename(os.ttyname(theirs))
        sensor = Terminals(recent=30.0)
        os.utime(f"/dev/pts/{name}", (0, 0))  # as if nobody had typed since 1970
        sensor.read(0.0)
        quiet = sensor.read(15.0)
        assert f"pts/{name}" not in quiet.detail
        os.write(theirs, b"output is no input")
        assert f"pts/{name}" not in sensor.read(30.0).detail
        os.write(ours, b"ls\n")
        os.read(theirs, 10)
        typed = sensor.read(45.0)
        assert typed.state == ACTIVE and f"pts/{name}" in typed.detail
        assert f"pts/{name}" not in sensor.read(60.0).detail
    finally:
        os.close(ours), os.close(theirs)


def test_an_editors_server_counts_by_its_work(tmp_path):
    assert Editors(str(tmp_path)).read(0.0).state == ABSENT
    server = tmp_path / ".vscode-server" / "bin"
    server.mkdir(parents=True)
    (server / "node.py").write_text(
        "import sys, time\nwhile True:\n  time.sleep(float(sys.argv[1]))"
    )
    asleep = subprocess.Popen([sys.executable, str(server / "node.py"), "60"])
    busy = None
    try:
        time.sleep(0.3)
        sensor = Editors(str(tmp_path))
        sensor.read(0.0)
        assert sensor.read(15.0).state == IDLE
        busy = subprocess.Popen([sys.executable, str(server / "node.py"), "0"])
        time.sleep(0.3)
        sensor.read(30.0)
        time.sleep(0.5)
        assert sensor.read(30.5).state == ACTIVE
    finally:
        for each in filter(None, (asleep, busy)):
            each.kill()
            each.wait()


class Jupyter(http.server.BaseHTTPRequestHandler):
    kernels: list = []
    asked: list = []

    def do_GET(self):
        Jupyter.asked.append((self.path, self.headers["Authorization"]))
        body = json.dumps(self.kernels if "kernels" in self.path else []).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def jupyter(own_home):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Jupyter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = own_home / ".local/share/jupyter/runtime"
    folder.mkdir(parents=True)
    about = {
        "url": f"http://127.0.0.1:{server.server_port}/base/",
        "token": "t0k",
        "pid": os.getpid(),
    }
    (folder / "jpserver-1.json").write_text(json.dumps(about))
    yield folder / "jpserver-1.json"
    server.shutdown()


def test_a_notebook_counts_by_its_kernels(jupyter):
    sensor = Notebooks()
    Jupyter.kernels = [{"execution_state": "idle", "last_activity": "12:00"}]
    assert sensor.read(0.0).state == IDLE
    assert sensor.read(15.0).state == IDLE
    Jupyter.kernels = [{"execution_state": "idle", "last_activity": "12:05"}]
    assert sensor.read(30.0).state == ACTIVE
    Jupyter.kernels = [{"execution_state": "busy", "last_activity": "12:05"}]
    assert sensor.read(45.0).state == sensor.read(60.0).state == ACTIVE
    assert Jupyter.asked[-1] == ("/base/api/terminals", "token t0k")


def test_a_notebook_server_that_does_not_answer_is_unknown_and_a_dead_ones_file_is_nothing(jupyter):
    about = json.loads(jupyter.read_text())
    jupyter.write_text(json.dumps({**about, "url": "http://127.0.0.1:9/"}))
    assert Notebooks().read(0.0).state == UNKNOWN
    jupyter.write_text(json.dumps({**about, "pid": 4194304}))
    assert Notebooks().read(0.0).state == ABSENT


def test_rates_are_means_over_the_time_between_two_looks():
    counts = iter([0.0, 150.0, 150.0, 10.0, None])
    sensor = Rate(lambda: next(counts), 10.0, "MiB/s")
    states = [sensor.read(at).state for at in (0.0, 15.0, 30.0, 45.0, 60.0)]
    assert states == [UNKNOWN, ACTIVE, IDLE, UNKNOWN, ABSENT]


def test_a_containers_own_processor_time(tmp_path):
    assert cgroup_cpu_seconds(str(tmp_path)) is None
    (tmp_path / "cpuacct").mkdir()
    (tmp_path / "cpuacct" / "cpuacct.usage").write_text("2500000000\n")
    assert cgroup_cpu_seconds(str(tmp_path)) == 2.5
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    assert cgroup_cpu_seconds(str(tmp_path)) == 1.5
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cores(str(tmp_path)) == 1.5


LIMITS = {"stalled_after": 3600, "gpu_below": 5, "cpu_below": 15, "net_below": 1, "disk_below": 10}


def test_a_sensor_that_fails_is_unknown_with_its_reason(places, monkeypatch):
    look = Look(places, LIMITS, False, 15.0)
    monkeypatch.setattr(sensors_people.Terminals, "read", lambda *_: 1 / 0)
    signals = look.take("e").signals
    look.close()
    assert signals["terminals"] == (UNKNOWN, "ZeroDivisionError: division by zero")
    assert signals["runs"].state == IDLE


def test_a_shared_server_is_judged_by_our_own_work_only(places):
    assert set(Look(places, LIMITS, True, 15.0).take("e").signals) == {"runs", "work", "hold"}


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/New_York", "UTC"])
def test_the_time_zone_does_not_matter(places, zone, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    sensor = sensors_work.Runs(places, 3600)
    make_run(places, RUN)
    assert [sensor.read(at).state for at in (0.0, 3500.0, 3700.0)] == [ACTIVE, ACTIVE, IDLE]
    monkeypatch.delenv("TZ")
    time.tzset()
