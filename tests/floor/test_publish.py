"""Never half: a file or folder that is published is whole, whatever happens while it is written."""

import json
import os
import subprocess
import sys

import pytest

from deploy.onbox.publish import atomic_file, publish_folder, read_json, write_json


def test_a_fault_while_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "state.json"
    write_json(str(path), {"step": 1})
    with pytest.raises(RuntimeError), atomic_file(str(path)) as file:
        file.write(b'{"step": 2')
        raise RuntimeError
    assert read_json(str(path)) == {"step": 1}
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_file_is_the_owners_alone_unless_asked_otherwise(tmp_path):
    os.umask(0)
    try:
        write_json(str(tmp_path / "a"), {})
        write_json(str(tmp_path / "b"), {}, 0o640)
    finally:
        os.umask(0o022)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o600, 0o640]


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_damaged_file_is_an_error_never_an_empty_answer(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(ValueError):
        read_json(str(tmp_path / "x"))


def test_a_folder_appears_whole_and_never_over_another(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").write_text("whole")
    publish_folder(str(tmp_path / "new"), str(tmp_path / "final"))
    assert (tmp_path / "final" / "file").read_text() == "whole"
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "other").write_text("")
    with pytest.raises(OSError):
        publish_folder(str(tmp_path / "new"), str(tmp_path / "final"))
    assert os.listdir(tmp_path / "final") == ["file"]


WRITER = """
import sys
from deploy.onbox.publish import write_json
number = 0
while True:
    number += 1
    write_json(sys.argv[1], {"number": number, "filler": "x" * 20000, "again": number})
    print(number, flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path):
    path = tmp_path / "state.json"
    for _ in range(8):
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            for _ in range(5):
                seen = int(writer.stdout.readline())
            writer.kill()
        found = json.loads(path.read_text())
        assert found["number"] == found["again"] >= seen
