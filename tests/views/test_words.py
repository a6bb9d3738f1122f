"""Bare words after a verb, by the real command line too."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.plan.words import words_as_flag

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "line, expected",
    [
        ("forward 6006", "forward --port 6006"),
        ("forward 6006 --host b", "forward --port 6006 --host b"),
        ("forward --host b 6006", "forward --port 6006 --host b"),
        ("forward --host=b 6006", "forward --port 6006 --host=b"),
        ("forward --json 6006", "forward --port 6006 --json"),
        ("forward --json 6006 7", "forward --port 6006,7 --json"),
        ("forward --help", "forward --help"),
        ("forward", "forward"),
        ("facts 6006", "facts 6006"),
    ],
)
def test_words(line, expected):
    assert words_as_flag(line.split(), "forward", "port", ["--json", "--help"]) == expected.split()


def fab(*words):
    program = Path(sys.executable).parent / "fab"
    return subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True)


def test_a_bare_port_on_the_real_command_line():
    done = fab("forward", "--dry-run", "6006", "--local", "7007")
    assert done.stdout == "would open 127.0.0.1:7007 here for port 6006 of local\n"


def test_help_is_not_swallowed_and_explains_the_flag():
    done = fab("forward", "--help")
    assert done.returncode == 0 and "--port=INT" in done.stdout


def test_forward_without_a_port_says_what_is_missing():
    done = fab("forward")
    assert done.returncode == 2 and "which port of the box?" in done.stderr
    assert "fab forward 8080 --host" in done.stderr


def test_a_port_out_of_range_is_one_line_and_exit_2():
    done = fab("forward", "99999")
    assert done.returncode == 2
    assert "PORT: expected a port between 1 and 65535, got 99999" in done.stderr


@pytest.mark.parametrize("verb", ["status", "logs", "stop", "resume", "rm", "fetch"])
def test_a_run_needs_no_flag(verb):
    done = fab(verb, "20260101-0000-cnn-0000")
    assert done.returncode not in (0, 2), done.stderr
    assert "20260101-0000-cnn-0000" in done.stderr and "No idea" not in done.stderr


def test_a_box_without_its_flag_is_told_of_it():
    done = fab("doctor", "gpu-box")
    assert done.returncode == 2 and "a box is named by --host gpu-box; `fab help`" in done.stderr


@pytest.mark.parametrize(
    "words, hint",
    [
        (["dcotor"], "did you mean doctor?"),
        (["idle", "--stop-aftr", "1h"], "did you mean --stop-after?"),
        (["idle", "--off"], "`fab idle --help` shows the flags"),  # another verb has it
    ],
)
def test_a_slip_meets_a_hint_for_the_verb_that_was_typed(words, hint):
    done = fab(*words)
    assert done.returncode == 2 and hint in done.stderr, done.stderr
