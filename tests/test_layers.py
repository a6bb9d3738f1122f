"""Imports point one way; this test reads them all and holds the arrows."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ONBOX_PURE = {f"deploy.onbox.{each}" for each in ("manifest", "packing", "idle", "imagefiles")}
# what is in an archive is read and judged by one code on both sides
ONBOX_ARCHIVES = {f"deploy.onbox.{each}" for each in ("judging", "member", "tars", "zips")}

# room → what a module in it may import of the project (a prefix, or an exact module)
ALLOWED = {
    "fabfile": ("deploy",),
    "deploy/command.py": ("deploy",),
    "deploy/verbs": (
        "deploy.verbs",
        "deploy.effects",
        "deploy.console",
        "deploy.plan",
        "deploy.errors",
    ),
    # wire is the box's half of the protocol: the laptop's half reads its constants; layers reads
    # an image out of an engine, the laptop's or a box's
    "deploy/effects": (
        *("deploy.effects", "deploy.plan", "deploy.errors"),
        *("deploy.onbox.wire", "deploy.onbox.layers", "deploy.onbox.refusal"),
        *ONBOX_PURE,
        *ONBOX_ARCHIVES,
    ),
    "deploy/console.py": ("deploy.plan", "deploy.errors"),
    "deploy/plan": ("deploy.plan", "deploy.errors", *ONBOX_PURE),
    "deploy/onbox": ("deploy.onbox",),
    "workload": ("workload",),
}


def modules():
    for path in [*ROOT.glob("deploy/**/*.py"), *ROOT.glob("workload/**/*.py"), ROOT / "fabfile.py"]:
        yield path.relative_to(ROOT)


def imports_of(path):
    """Every module that a file imports, relative ones made absolute."""
    package = list(path.parent.parts)
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            if node.module is None or (ROOT / Path(*module.split("."))).is_dir():
                yield from (f"{module}.{each.name}" for each in node.names)


def within(name, prefixes):
    return any(name == each or name.startswith(each + ".") for each in prefixes)


def room_of(path):
    return max(
        (room for room in ALLOWED if path.as_posix().startswith(room)), key=len, default=None
    )


@pytest.mark.parametrize("path", sorted(modules()), ids=str)
def test_imports_point_one_way(path):
    room = room_of(path)
    allowed = ALLOWED.get(room, ())  # deploy/__init__.py and errors.py import nothing of ours
    for name in imports_of(path):
        if within(name, ("deploy", "workload", "bench", "tests", "fabfile")) and name != "deploy":
            package = (ROOT / Path(*name.split("."))).is_dir() and not within(name, allowed)
            assert package or within(name, allowed), f"{path} imports {name}"


@pytest.mark.parametrize("path", sorted(p for p in modules() if "onbox" in p.parts), ids=str)
def test_the_box_side_needs_only_the_standard_library(path):
    for name in imports_of(path):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names or top == "deploy", f"{path} imports {name}"


def test_only_the_console_imports_rich():
    users = {p for p in modules() if any(n.split(".")[0] == "rich" for n in imports_of(p))}
    assert users == {Path("deploy/console.py")}


@pytest.mark.parametrize(
    "path", sorted(p for p in modules() if p.parts[:2] == ("deploy", "plan")), ids=str
)
def test_plans_are_pure(path):
    impure = {"os", "time", "pathlib", "subprocess", "socket", "random", "shutil", "tempfile"}
    assert not impure & {name.split(".")[0] for name in imports_of(path)}
