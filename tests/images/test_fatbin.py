"""The reader of fat binaries reads what it should (a small one, made here)."""

import struct

from tests.images.fatbin import architectures, serves


def fat_binary(*entries):
    body = b""
    for kind, architecture, content in entries:
        head = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(content), 0, 0, 0, 1, architecture)
        body += head.ljust(64, b"\0") + content
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_machine_code_counts_and_ptx_does_not(tmp_path):
    library = tmp_path / "library.so"
    one = fat_binary((2, 61, b"x" * 40), (1, 120, b"text" * 6), (2, 90, b"y" * 8))
    library.write_bytes(b"\x7fELF" + b"padding" + one + b"between" + fat_binary((2, 75, b"z" * 16)))
    assert architectures(library) == {61, 75, 90}


def test_a_library_without_any_has_none(tmp_path):
    library = tmp_path / "library.so"
    library.write_bytes(b"\x7fELF and nothing more")
    assert architectures(library) == set()


def test_code_runs_on_later_minor_versions_alone():
    assert serves({60}, 61) and serves({61}, 61)
    assert not serves({75, 80}, 70) and not serves({62}, 61) and not serves({50}, 61)
