"""Manifests: the order, the merge, the ID, the paths that none may hold; scans; where packs are cut."""

import os
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.effects.hashes import remembered
from deploy.effects.scan import read_scan, scan, scan_line
from deploy.effects.session import in_pieces
from deploy.errors import NoSpace
from deploy.onbox.manifest import (
    FILE,
    FOLDER,
    LINK,
    Checker,
    Entry,
    change_of,
    entry_of,
    is_safe,
    key_of,
    line_of,
    line_of_change,
    link_stays_inside,
    only_new,
    side_by_side,
    spliced,
)
from deploy.onbox.packing import tar_header
from deploy.onbox.reading import spread
from deploy.onbox.spill import Spill
from deploy.plan.transfer import (
    PACK_AT_LEAST,
    PACK_AT_MOST,
    Found,
    Totals,
    ends_pack,
    is_packing,
    is_worth_squeezing,
    must_fit,
    part_key,
    steps,
)

names = st.text(min_size=1, max_size=8).filter(
    lambda n: n not in (".", "..") and not set(n) & set("/\0")
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join).filter(is_safe)
sha = st.integers(0, 9).map(lambda n: f"{n:064x}")
files = st.tuples(
    paths, st.integers(0, 0o777), st.integers(0, 99), st.integers(), sha, st.just("") | sha
)
files = files.map(lambda each: Entry(each[0], FILE, *each[1:], 512 if each[5] else 0))
quick = settings(max_examples=60, deadline=None)


def sorted_entries(entries):
    return sorted({key_of(each): each for each in entries}.values(), key=key_of)


@quick
@given(files)
def test_a_line_reads_back_as_the_entry_it_was_made_from(entry):
    line = line_of(entry)
    assert line.isascii() and line.count("\n") == 1 and entry_of(line) == entry


@pytest.mark.parametrize(
    "raw", [b"bad\xc3(", b"\xff" * 9, b"a\nb", b'q"uote', b"back\\slash", b"tab\t"]
)
def test_names_of_any_bytes_survive_manifest_and_scan(raw, tmp_path):
    path = os.fsdecode(raw)
    for entry in (Entry(path, FILE, sha256="0" * 64), Entry(path, LINK, target=path)):
        assert entry_of(line_of(entry)) == entry
    found = Found(path, LINK, 0o777, 1, 2, 3, "", path)
    assert remembered(scan_line(found)) == found


@pytest.mark.parametrize(
    "path",
    ["..", "../a", "a/..", "a//b", "/a", "a/", "", "a/./b", ".", ".gpubox", ".gpubox/x", "a\0b"],
)
def test_paths_that_could_leave_are_refused(path):
    assert not is_safe(path)
    with pytest.raises(ValueError, match="unsafe"):
        entry_of(line_of(Entry(path, FILE, sha256="0" * 64)))


@pytest.mark.parametrize("path", ["...", "..a", "a..", "\n", "a\n/b", "x/.gpubox", " ", "-rf"])
def test_paths_that_only_look_odd_are_taken(path):
    assert is_safe(path)


@pytest.mark.parametrize(
    "path, target, inside",
    [
        ("a", ".", True),
        ("a", "nowhere", True),
        ("d/a", "../b", True),
        ("d/a", "../../b", False),
        ("a", "..", False),
        ("a", "/etc", False),
        ("a", "b/../../c", False),
        ("a", "", False),
    ],
)
def test_links_stay_inside(path, target, inside):
    assert link_stays_inside(path, target) is inside


@quick
@given(st.lists(files, max_size=8), st.lists(files, max_size=8))
def test_changes_over_a_base_give_the_new_entries(old, new):
    old, new = sorted_entries(old), sorted_entries(new)
    changes = []
    for a, b in side_by_side(old, new):
        if b is None:
            changes.append(line_of_change(key_of(a), None))
        elif a != b:
            changes.append(line_of_change(key_of(b), b))
    for block in (1, 3, 100):
        lines = list(map(line_of, old))
        runs = [lines[at : at + block] for at in range(0, len(lines), block)]
        pieces = list(spliced(runs, map(change_of, changes)))
        pairs = [
            pair
            for piece in pieces
            for pair in ([(e, e) for e in map(entry_of, piece)] if type(piece) is list else [piece])
        ]
        assert pairs == list(side_by_side(old, new))
        assert all(a != b for a, b in (each for each in pieces if type(each) is tuple))


@quick
@given(st.lists(files, max_size=8), st.lists(files, max_size=8), st.data())
def test_of_two_versions_the_lines_of_both_come_once(old, new, data):
    old = sorted_entries(
        [*old, *data.draw(st.lists(st.sampled_from(new), max_size=8) if new else st.just([]))]
    )
    before, lines = list(map(line_of, old)), list(map(line_of, sorted_entries(new)))
    assert list(only_new(iter(before), lines)) == [line for line in lines if line not in before]


def checked(entries):
    """A Checker that has seen these one by one, and one that has seen their lines."""
    one, other, lines = Checker(), Checker(), list(map(line_of, entries))
    for each in entries:
        one.add(each)
    for at in range(0, len(lines), 3):
        other.add_lines(lines[at : at + 3])
    return one, other


folders = st.tuples(paths, st.integers(0, 0o777)).map(lambda each: Entry(each[0], FOLDER, each[1]))
archives = files.map(lambda each: each._replace(type="archive", pack="", offset=0))


@quick
@given(st.lists(files | folders | archives, max_size=12))
def test_many_lines_count_as_each_of_them(entries):
    one, other = checked(sorted_entries(entries))
    assert one.version() == other.version() and one.header(0) == other.header(0)
    assert one.packs == other.packs


def test_the_id_leaves_the_time_out_and_nothing_else():
    entry = Entry("a", FILE, 0o644, 5, 1, "0" * 64, "1" * 64, 512)

    def version(one):
        check = Checker()
        check.add(one)
        return check.version()

    same = [entry._replace(mtime=2), entry._replace(pack="", offset=0)]
    other = [
        entry._replace(**{k: v})
        for k, v in {
            "path": "b",
            "mode": 0o600,
            "size": 6,
            "sha256": "2" * 64,
            "type": "archive",
        }.items()
    ]
    assert {version(each) for each in same} == {version(entry)}
    assert version(entry) not in {version(each) for each in other}


@pytest.mark.parametrize(
    "entries",
    [
        [Entry("b", FILE), Entry("a", FILE)],
        [Entry("a", FILE), Entry("a", FILE)],
        [Entry("a", LINK, target="b"), Entry("a/x", FILE)],
        [Entry("a", LINK, target="b"), Entry("a.b", LINK, target="b"), Entry("a/x", FILE)],
        [Entry("a", LINK, target="b"), Entry("a", FOLDER), Entry("a/x", FILE)],
        [Entry("a", LINK, target="../b")],
    ],
)
@pytest.mark.parametrize("together", [1, 2, 3])
def test_a_manifest_that_is_not_one_is_refused(entries, together):
    entries = [each._replace(sha256="0" * 64) if each.type == FILE else each for each in entries]
    check, lines = Checker(), list(map(line_of, entries))
    with pytest.raises(ValueError):
        for each in entries:
            check.add(each)
    with pytest.raises(ValueError):
        check = Checker()
        for at in range(0, len(lines), together):
            check.add_lines(lines[at : at + together])


@pytest.mark.parametrize("path", ["../a", "a//b", "a/..", "/a", "a/", "", ".", ".gpubox/x", "a\0"])
def test_an_unsafe_path_is_refused_among_many_lines(path):
    kinds = [Entry(path, FILE, sha256="0" * 64), Entry(path, FOLDER)]
    for bad in kinds if not path.endswith("/") else kinds[:1]:
        around = [Entry(each, FILE, sha256="0" * 64) for each in ("!", "~")]
        lines = [line_of(each) for each in sorted([*around, bad], key=key_of)]
        with pytest.raises(ValueError, match=r"unsafe|order"):
            Checker().add_lines(lines)


@pytest.mark.parametrize(
    "wrong",
    [
        ('"size": 5', '"size": 05'),
        ('"mode": 420', '"mode": 0420'),
        ('"mtime": 1', '"mtime": 1.5'),
        ('"a"', '"a\\ud800\\u0000"'),
        ("}", ""),
        ("}\n", "} \n"),
    ],
)
def test_a_line_that_is_not_as_we_write_it_is_never_counted_wrong(wrong):
    """It is refused, or counts as what it says when it is read as JSON."""
    line = line_of(Entry("a", FILE, 0o644, 5, 1, "0" * 64)).replace(*wrong)
    lines = [line_of(Entry("!", FILE, sha256="0" * 64)), line]
    one, other = Checker(), Checker()
    try:
        for each in lines:
            one.add(entry_of(each))
    except ValueError:
        with pytest.raises(ValueError):
            other.add_lines(lines)
    else:
        other.add_lines(lines)
        assert one.version() == other.version()


def test_a_scan_comes_in_the_order_of_a_manifest(tmp_path):
    root = tmp_path / "set"
    for path in ("a/b", "a.txt", "a-", "ab/c", "a/c/d", "Z", "é", "日/本", "a0/x"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    scan(str(root), [], tmp_path / "scan")
    keys = [key_of(each) for each in read_scan(tmp_path / "scan")]
    assert keys == sorted(keys) and "a/" in keys and len(keys) == 9 + 5


@pytest.mark.parametrize(
    "layout, small, packs",
    [("auto", 99, False), ("auto", 100, True), ("packed", 1, True), ("files", 10**6, False)],
)
def test_many_small_files_are_packed(layout, small, packs):
    assert is_packing(layout, small) is packs


def cut(sizes):
    """Packs of (path, size) pairs, as lists of paths."""
    packs, now, size = [], [], 0
    for path, each in sizes:
        now.append(path)
        size += each
        if ends_pack(size, path):
            packs.append(now)
            now, size = [], 0
    return [*packs, now]


def test_packs_end_where_they_ended_after_a_file_came_or_went():
    sizes = [(f"class{i // 500:03}/image_{i:06}.png", 6000) for i in range(100_000)]
    before = {tuple(each) for each in cut(sizes)}
    after = {tuple(each) for each in cut(sizes[:100] + sizes[101:])}
    assert len(before) > 5 and len(before - after) <= 2
    assert all(PACK_AT_LEAST <= 6000 * len(each) <= PACK_AT_MOST for each in cut(sizes)[:-1])


def test_a_part_is_known_by_what_is_in_it():
    found = Found("a", FILE, 0o644, 5, 1)
    keys = {part_key([found]), part_key([found._replace(mtime=2)]), part_key([found, found])}
    assert len(keys) == 3 and part_key([found._replace(inode=9, sha256="x")]) in keys


def test_changes_travel_in_pieces_of_whole_lines():
    lines = [f"+{'x' * (i % 50)}\n" for i in range(1000)]
    pieces = list(in_pieces(lines, 400))
    assert "".join(pieces) == "".join(lines) and len(pieces) > 50
    assert all(len(each) < 400 + 60 and each.endswith("\n") for each in pieces)
    assert list(in_pieces([], 400)) == []


REASONS = [
    (
        Found("a", FILE, 0o644, 5, 1, 1, "s"),
        Entry("a", FILE, 0o644, 5, 9, "s"),
        "keep",
        "same content",
    ),
    (Found("a", FILE, 0o600, 5, 1, 1, "s"), Entry("a", FILE, 0o644, 5, 9, "s"), "note", "new mode"),
    (
        Found("a", FILE, 0o644, 5, 1, 1, "t"),
        Entry("a", FILE, 0o644, 5, 9, "s"),
        "pack",
        "content changed",
    ),
    (Found("a", FILE, 0o644, 5, 1), None, "pack", "not on the box"),
    (Found("a", FILE, 0o644, 1 << 20, 1), None, "file", "not on the box"),
    (Found("a", FILE, 0o644, 5, 1, 1, "m"), None, "reuse", "the content of old"),
    (Found("a", FOLDER, 0o755, 0, 0), Entry("a", FOLDER, 0o755), "keep", "same"),
    (Found("a", FOLDER, 0o755, 0, 0), None, "note", "new folder"),
    (None, Entry("a", FILE, 0o644, 5, 9, "s"), "remove", "no longer here"),
]


@pytest.mark.parametrize("found, entry, action, reason", REASONS)
def test_every_step_has_its_reason(found, entry, action, reason):
    moved = {"m": Entry("old", FILE, 0o644, 5, 9, "m")}
    step = next(steps(filter(None, [found]), filter(None, [entry]), True, moved))
    assert (step.action, step.reason) == (action, reason)


ROOM = {"path": "/data", "free": 10 << 20, "free_inodes": 100, "total_inodes": 1000}


@pytest.mark.parametrize(
    "files, size, packing, there, fits",
    [
        (10, 5 << 20, False, 0, True),
        (10, 50 << 20, False, 0, False),
        (10, 50 << 20, False, 45 << 20, True),
        (200, 1 << 20, False, 0, False),
        (200, 1 << 20, True, 0, True),
    ],
)
def test_room_is_counted_in_bytes_and_in_inodes(files, size, packing, there, fits):
    totals = Totals(send_files=files, send_bytes=size)
    if fits:
        must_fit(totals, packing, there, ROOM)
    else:
        with pytest.raises(NoSpace, match="/data"):
            must_fit(totals, packing, there, ROOM)


@pytest.mark.parametrize(
    "line, squeezing, ratio, worth",
    [
        (12e6, 80e6, 0.3, True),  # text over 100 Mbit/s
        (12e6, 30e6, 1.0, False),  # pictures
        (200e6, 80e6, 0.3, False),  # the line is faster than we squeeze
        (60e6, 80e6, 0.9, False),  # what is saved is spent
    ],
)
def test_contents_are_squeezed_where_that_is_sooner_through(line, squeezing, ratio, worth):
    assert is_worth_squeezing(line, squeezing, ratio) is worth


def test_headers_are_those_of_tarfile_where_it_makes_the_plain_form():
    info = tarfile.TarInfo("dir/name.png")
    info.mode, info.size, info.mtime = 0o644, 12345, 1700000000
    ours = tar_header("dir/name.png", 0o644, 12345, 1700000000)
    theirs = info.tobuf(tarfile.USTAR_FORMAT)
    assert (
        len(ours) == 512
        and tarfile.TarInfo.frombuf(ours, "utf-8", "strict").get_info()
        == tarfile.TarInfo.frombuf(theirs, "utf-8", "strict").get_info()
    )


def test_readers_are_spread_over_folders_from_first_to_last():
    order = spread([f"a/{i}" for i in range(6)] + ["b/0", "b/1", "c/0"])
    assert sorted(order) == sorted([f"a/{i}" for i in range(6)] + ["b/0", "b/1", "c/0"])
    assert [path[0] for path in order] == list("aabacaaba")


def test_heaps_that_outgrow_the_memory_come_back_in_order(tmp_path):
    heaps = Spill(str(tmp_path / "index"), in_memory=7)
    entries = [Entry(f"{i:03}", FILE, sha256="0" * 64) for i in range(50)]
    for i, each in enumerate(entries):
        heaps.add("ab"[i % 2], each)
    assert heaps.names() == ["a", "b"]
    assert [each for part in heaps.slices("a") for each in part] == entries[::2]
    assert all(len(part) <= 7 for part in heaps.slices("b"))
    heaps.remove()
    assert not (tmp_path / "index").exists()
