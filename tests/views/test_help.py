"""The grouped list of verbs, and completion in the real shells."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.plan.help import GROUPS, completion, grouped, help_text

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def fab(*words):
    return subprocess.run([BIN / "fab", *words], cwd=ROOT, capture_output=True, text=True)


def test_every_verb_is_shown_once_in_its_group_and_an_unplaced_one_last():
    groups = dict(grouped({"fetch": "f", "deploy": "d", "brandnew": "b", "names": "n"}))
    assert groups == {
        "Get going": [("deploy", "d")],
        "Results": [("fetch", "f")],
        "Others": [("brandnew", "b")],
    }
    placed = [verb for verbs in GROUPS.values() for verb in verbs]
    assert len(placed) == len(set(placed))


@pytest.mark.parametrize("words", [(), ("help",), ("--list",)])
def test_fab_shows_them_by_what_one_wants_to_do(words):
    done = fab(*words)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: fab VERB --host BOX")
    assert "\nResults\n" in done.stdout and "  compare" in done.stdout
    assert "Others" not in done.stdout  # a new verb wants a place in deploy/plan/help.py


def test_help_lines_fit():
    text = help_text({"deploy": "short", "export": "x" * 60})
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_script_of_a_shell_as_json_is_json():
    done = fab("completion", "fish", "--json")
    (found,) = json.loads(done.stdout)["results"]
    assert found == {"shell": "fish", "script": completion("fish")}


def test_an_unknown_shell_is_refused():
    done = fab("completion", "tcsh")
    assert done.returncode == 2 and "expected bash, zsh or fish" in done.stderr


@pytest.fixture
def toml(tmp_path, monkeypatch):
    config = tmp_path / "gpubox.toml"
    ssh = tmp_path / "ssh_config"
    ssh.write_text("Host lab *.example 10.0.0.? !no\n  User me\nHost rented\n")
    config.write_text(
        f'ssh_config = "{ssh}"\n[boxes.gpu-one]\n[boxes.gpu-two]\n[data.mnist]\npath = "x"\n'
    )
    monkeypatch.setenv("GPUBOX_CONFIG", str(config))
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")


def test_names_are_those_of_the_config_and_ssh_without_patterns(toml):
    assert fab("names").stdout.split() == ["gpu-one", "gpu-two", "lab", "rented"]
    assert fab("names", "--kind", "data").stdout.split() == ["mnist"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line, found",
    [
        ("fab compa", {"compare"}),
        ("fab facts --host gpu-", {"gpu-one", "gpu-two"}),
        ("fab facts --hosts lab,r", {"lab,rented"}),
        ("fab forward --loc", {"--local"}),
        ("fab stage mn", {"mnist"}),
    ],
)
def test_bash_completes(toml, line, found):
    words = line.split()
    script = (
        f'eval "$(fab completion bash 2>/dev/null)"; COMP_WORDS=({line}); '
        f'COMP_CWORD={len(words) - 1}; _fab_complete; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert set(done.stdout.split()) == found, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "line, found",
    [
        ("fab compa", {"compare"}),
        ("fab facts --host gpu-", {"gpu-one", "gpu-two"}),
        ("fab forward --loc", {"--local"}),
    ],
)
def test_fish_completes(toml, line, found):
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    script = f"fab completion fish 2>/dev/null | source; complete -C '{line}'"
    done = subprocess.run(["fish", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert found <= set(done.stdout.split()), done.stdout + done.stderr


@pytest.mark.slow
def test_zsh_takes_the_script(toml):
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    script = 'eval "$(fab completion zsh 2>/dev/null)" && whence -w _fab_complete'
    done = subprocess.run(["zsh", "-fc", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "_fab_complete: function\n", done.stderr
    assert completion("zsh").count("complete -o default") == 1
