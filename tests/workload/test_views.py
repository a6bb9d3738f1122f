"""What people look at: progress line, TensorBoard events, report, comparison, and the docs."""

import html.parser
import io
import json
import math
import os
import re

import numpy as np
import pytest

from tests.workload.kit import ROOT
from workload import device, errors, flags, progress, report
from workload.__main__ import parser


def test_the_progress_line():
    state = {
        "step": 1200,
        "steps": 20000,
        "loss": 0.12345,
        "accuracy": 0.96,
        "validation_accuracy": None,
        "steps_per_second": 33.14,
        "eta_seconds": 568,
    }
    text = "step 1200/20000  loss 0.1235  accuracy 96.0 %  33.1 steps/s  9 min 28 s left"
    assert progress.line(state) == text
    assert (
        progress.duration(3 * 3600 + 125) == "3 h 2 min" and progress.duration(59.6) == "1 min 0 s"
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_the_line_is_replaced_and_elsewhere_it_is_plain(tmp_path):
    for stream, expected in ((Terminal(), "\r\x1b[Kstep 0/9"), (io.StringIO(), "step 0/9\n")):
        shown = progress.Progress(tmp_path, "bp", 9, stream)
        shown.show()
        assert stream.getvalue() == expected
    shown.show()
    assert stream.getvalue() == expected  # at most once a second


def test_metrics_are_cut_back_to_the_step_of_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 100, "loss": 2}\n{"step": 200, "loss": 1}\n{"step": 300, "lo')
    found = progress.Metrics(path, resumed_at=150)
    found.add(180, loss=1.5)
    assert [row["step"] for row in progress.read_rows(path)] == [100, 180]


RESULT = {
    "model": "cnn",
    "test_accuracy": 0.9875,
    "test_images": 80,
    "step": 200,
    "training_seconds": 61.0,
    "wall_seconds": 66.0,
    "first_step_seconds": 3.2,
    "device": {
        "kind": "cpu",
        "names": ["<Some> CPU"],
        "count": 1,
        "deterministic": True,
        "intra_threads": 2,
        "inter_threads": 2,
    },
    "versions": {"tensorflow": "2.21.0"},
    "state_sha256": "ab" * 32,
    "arguments": {"batch": 50},
    "confusion": [[39, 1], [0, 40]],
    "class_names": ["cat", 'd"og'],
    "misread": [{"index": 7, "label": 0, "predicted": 1}],
    "misread_total": 1,
}


class Tags(html.parser.HTMLParser):
    """Collects tags, checks that they close in order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.sources = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.sources += [v for k, v in attrs if k in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_stands_alone_and_shows_everything():
    rows = [
        {"step": s, "loss": 1 / s, "accuracy": 0.9, "validation_accuracy": None} for s in (1, 9)
    ]
    page = report.page(RESULT, rows, [b"\x89PNG"])
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and tags.seen.count("polyline") == 2
    assert tags.sources and all(s.startswith("data:image/png;base64,") for s in tags.sources)
    assert "http" not in page.replace("http-equiv", "") and "script" not in tags.seen
    for text in ("98.75 %", "&lt;Some&gt; CPU", "cat taken for d&quot;og", "2.21.0", "ab" * 32):
        assert text in page
    assert report.page(RESULT | {"misread": []}, [], []).count("Nothing was measured") == 2


@pytest.mark.tensorflow
def test_tensorboard_gets_scalars_graph_and_misread_images(workload):
    tf = pytest.importorskip("tensorflow")
    flags = ("--batch", 20, "--hidden", 3, "--pixel-scale", 255, "--log-every", 20)
    assert workload("bp", *flags, "--steps", 40)[0] == 0
    assert workload("bp", *flags, "--steps", 60)[0] == 0
    folder, scalars, starts, tags, graphs = workload.output / "tensorboard", [], [], set(), 0
    for path in sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime_ns):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            graphs += bool(event.graph_def)
            if event.HasField("session_log"):
                starts.append(event.step)
            for value in event.summary.value:
                tags.add(value.tag.split("/")[0])
                if value.tag == "loss":
                    scalars.append((event.step, value.simple_value))
                if value.HasField("image"):
                    assert tf.io.decode_png(value.image.encoded_image_string).shape == (12, 10, 1)
    rows = progress.read_rows(workload.output / "metrics.jsonl")
    assert [s for s, _ in scalars] == [20, 40, 60] == [row["step"] for row in rows]
    np.testing.assert_allclose([v for _, v in scalars], [row["loss"] for row in rows], rtol=1e-6)
    assert starts == [1, 41]  # the second file makes TensorBoard forget what lies past step 40
    assert {"loss", "accuracy", "validation_accuracy", "misread"} <= tags and graphs == 2
    page = (workload.output / "report.html").read_text()
    assert page.count("<img") == min(
        40, json.loads((workload.output / "result.json").read_text())["misread_total"]
    )


@pytest.mark.tensorflow
def test_compare_says_that_it_has_only_one_side_without_a_gpu(workload):
    code, out, _ = workload("compare", "--model", "bp", "--steps", 30)
    assert (
        code == 0 and "there is only one side" in out and re.search(r"CPU +█+ [\d.]+ steps/s", out)
    )
    code, out, _ = workload("compare", "--model", "bp", "--steps", 30, "--json")
    found = json.loads(out)
    assert list(found["sides"]) == ["cpu"] and found["sides"]["cpu"]["seconds"] > 0


def test_compare_shows_two_sides_with_bars_by_rate():
    from workload.compare import table

    side = {"device": "x", "seconds": 1, "first_step_seconds": 1, "wall_seconds": 1}
    sides = {
        kind: {**side, "test_accuracy": 0.9, "steps_per_second": rate}
        for kind, rate in (("cpu", 30.0), ("gpu", 300.0))
    }
    text = table({"sides": sides, "speedup": 10.0})
    assert "CPU  ████ 30.0" in text and "GPU  " + 40 * "█" + " 300.0" in text
    assert "10.0 times as fast" in text


def test_a_foreign_cuda_visible_devices_is_explained():
    say = device.visibility_warning
    assert say({}) == ""
    assert say({"CUDA_VISIBLE_DEVICES": "0", "GPUBOX_CUDA_VISIBLE_DEVICES": "0"}) == ""
    assert "GPU number 0 (0 is the first GPU; -1 means none)" in say({"CUDA_VISIBLE_DEVICES": "0"})
    assert "no GPU at all" in say({"CUDA_VISIBLE_DEVICES": "-1"})
    assert "no GPU at all" in say({"CUDA_VISIBLE_DEVICES": ""})
    assert "only the 2 GPUs 1,2" in say({"CUDA_VISIBLE_DEVICES": "1,2"})


@pytest.mark.parametrize(
    "groups,files,processors",
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000"}, 2),
        ("4:cpu,cpuacct:/docker/x", {"cpu/cpu.cfs_quota_us": "300000"}, 3),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1"}, math.inf),
        ("7:memory:/x", {}, math.inf),
    ],
)
def test_a_quota_of_processor_time_is_minded(tmp_path, groups, files, processors):
    (tmp_path / "own").write_text(groups + "\n")
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        path.with_name("cpu.cfs_period_us").write_text("100000\n")
    assert device.quota(tmp_path / "own", tmp_path / "fs") == processors
    assert 1 <= device.cores() <= len(os.sched_getaffinity(0))


def test_required_gpus_are_counted():
    count = device.required_gpus
    assert [count({"REQUIRE_GPU": v}) for v in ("", "0", "1", "4", "all")] == [0, 0, 1, 4, 1]
    with pytest.raises(errors.GpuMissing, match="expected a number or all"):
        count({"REQUIRE_GPU": "some"})


def test_other_processes_on_the_gpu_are_named(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 4242, 10240\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert device.other_processes() == [
        "warning: process 4242 holds 10240 MiB of GPU memory; if ours runs out, end that one first"
    ]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert device.other_processes() == []


def test_every_flag_has_a_help_line_and_its_default():
    for program, table in flags.PROGRAMS.items():
        arguments = parser().parse_args([program])
        for flag in table:
            assert flag.help and getattr(arguments, flag.name) == flag.default


@pytest.mark.parametrize("bad", [["--batch", "0"], ["--steps", "-1"], ["--precision", "int3"]])
def test_bad_flags_are_refused(bad):
    with pytest.raises(SystemExit) as end:
        parser().parse_args(["cnn", *bad])
    assert end.value.code == errors.USAGE


DOCS = ROOT / "docs" / "workload.md"


def test_the_docs_show_progress_json_as_it_is(tmp_path):
    block = re.search(
        r"<!-- example: progress.json -->\n```json\n(.*?)```", DOCS.read_text(), re.DOTALL
    )
    example = json.loads(block[1])
    real = progress.Progress(tmp_path, "cnn", 9).state
    assert list(example) == list(real) and example["schema"] == real["schema"]


def test_the_docs_list_every_exit_code_flag_and_default():
    text = DOCS.read_text()
    for code, meaning in errors.MEANINGS.items():
        assert f"| {code} | {meaning} |" in text
    for program, table in flags.PROGRAMS.items():
        for flag in table:
            option = "--" + flag.name.replace("_", "-")
            assert re.search(rf"\| `{option}` \|.*{re.escape(flag.help)}", text), (program, option)
