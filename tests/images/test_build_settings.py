"""The user's package index, proxy and certificate authority on their way into a build."""

import subprocess
from pathlib import Path

import pytest

from images import build

SENTINEL = "s3cr3t-of-the-index"


def test_pips_files_are_read_in_pips_order_and_variables_win(tmp_path):
    weak, strong = tmp_path / "weak.conf", tmp_path / "strong.conf"
    weak.write_text("[global]\nindex-url = one\ntimeout = 9\nproxy = p\n")
    strong.write_text("[global]\nindex-url = two\n[install]\ntrusted-host = three\n")
    environ = {"PIP_TIMEOUT": "77"}
    assert build.pip_settings(environ, [weak, tmp_path / "absent", strong]) == {
        "index-url": "two",
        "trusted-host": "three",
        "timeout": "77",
        "proxy": "p",
    }


def test_uvs_index_serves_pip_as_well():
    environ = {"UV_DEFAULT_INDEX": "mirror", "UV_INDEX": "more"}
    found = build.pip_settings(environ, [])
    assert found == {"index-url": "mirror", "extra-index-url": "more"}


def test_folders_of_this_machine_stay_here(tmp_path):
    conf = tmp_path / "pip.conf"
    conf.write_text("[global]\nfind-links = /wheels\nextra-index-url = file:///x remote /y\n")
    assert build.pip_settings({}, [conf]) == {"extra-index-url": "remote"}


def test_the_authority_is_the_one_that_the_user_named_if_it_is_there(tmp_path):
    ca = tmp_path / "ca.pem"
    ca.write_text("x")
    assert build.authority({"PIP_CERT": str(tmp_path / "no"), "SSL_CERT_FILE": str(ca)}) == str(ca)


def test_no_secret_stands_in_the_arguments_of_a_build(tmp_path, monkeypatch):
    """The values go into a file of ours, which is gone afterwards; the proxy's by the environment."""
    seen = []

    def call(command, env=None, **options):
        secret = next(word for word in command if word.startswith("id=pip,src="))
        path = secret.partition("src=")[2]
        seen.append((command, Path(path).read_text(), path))
        return 0

    monkeypatch.setattr(build.subprocess, "call", call)
    monkeypatch.setenv("PIP_INDEX_URL", SENTINEL)
    monkeypatch.setenv("https_proxy", SENTINEL)
    assert build.main(["cpu", "--base", "b", "--label", "x=y"]) == 0
    [(command, text, path)] = seen
    assert SENTINEL in text
    assert not any(SENTINEL in word for word in command)
    assert command[-3:-1] == ["--label", "x=y"] and "https_proxy" in command
    assert not Path(path).exists()


def test_without_docker_it_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="no docker command here"):
        build.main(["cpu"])


def test_an_unknown_image_is_refused_with_the_known_ones():
    done = subprocess.run([build.ROOT / "images/build.py", "tpu"], capture_output=True, text=True)
    assert done.returncode == 2 and "cpu" in done.stderr
