"""Our start of Python in the images: what runs when, with a small package in the place of TensorFlow."""

import os
import subprocess
import sys

import pytest

from images import build

PACKAGE = {
    "tensorflow/__init__.py": """
        from tensorflow._api.v2 import data, broken, lite
        import importlib.util
        where = importlib.util.find_spec("keras").origin
        try:
            importlib.import_module("keras")
        except ImportError:
            pass
        """,
    "tensorflow/distribute/__init__.py": "",
    "tensorflow/lite/__init__.py": "",
    "tensorflow/_api/v2/lite/__init__.py": "Interpreter = 'Interpreter'",
    "tensorflow/_api/__init__.py": "",
    "tensorflow/_api/v2/__init__.py": "",
    "tensorflow/_api/v2/data/__init__.py": """
        '''Reads data.'''
        import time
        print("data runs")
        time.sleep(0.2)
        from tensorflow._api.v2.data import experimental
        from tensorflow._api.v2 import data as itself
        Dataset = "Dataset"
        """,
    "tensorflow/_api/v2/data/experimental/__init__.py": "print('experimental runs')",
    "tensorflow/_api/v2/broken/__init__.py": """
        import os
        print("broken runs")
        name = os.environ["NAME"]
        """,
    "keras/__init__.py": "import tensorflow; print('keras runs')",
    "registers.py": "print('registers'); import tensorflow.lite as it; assert it.__path__",
}


@pytest.fixture
def run(tmp_path):
    """`run(script, NAME=value…)`: what it prints, with the package installed and our start."""

    def run(script, version="2.21.0", **environment):
        for name, content in PACKAGE.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [line.removeprefix(" " * 8) for line in content.splitlines()]
            path.write_text("\n".join(lines))
        (tmp_path / f"tensorflow_cpu-{version}.dist-info").mkdir(exist_ok=True)
        begin = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(build.ROOT / 'images')!r}]\n"
        begin += "import gpubox_start; gpubox_start.REGISTER = ('registers',)\n"
        command = [sys.executable, "-B", "-c", begin + script]
        env = {**os.environ, **environment}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize(
    "use",
    ["data.Dataset", "dir(data)", "vars(data)", "data.__doc__", "hasattr(data, 'no')"],
)
def test_a_table_runs_once_when_it_is_asked_for_something(run, use):
    script = f"from tensorflow import data; print('imported'); {use}; {use}; print(type(data))"
    assert run(script) == [
        "registers",
        "imported",
        "data runs",
        "experimental runs",
        "<class 'module'>",
    ]


def test_it_holds_what_it_would_hold(run):
    script = (
        "import tensorflow as tf, types, os.path\n"
        "print(isinstance(tf.data, types.ModuleType), os.path.basename(tf.data.__file__))\n"
        "from tensorflow._api.v2.data import *\n"
        "print(Dataset, tf.data.itself is tf.data, tf.data.__doc__, tf.data.experimental.__name__)\n"
        "tf.data.Dataset = 'mine'; print(tf.data.itself.Dataset)"
    )
    last = "Dataset True Reads data. tensorflow._api.v2.data.experimental"
    said = run(script)
    assert said[1] == "True __init__.py" and said[-2:] == [last, "mine"]


def test_a_package_of_the_same_name_does_not_take_its_place(run):
    script = "import tensorflow as tf, tensorflow.lite; print(tf.lite.Interpreter)"
    assert run(script) == ["registers", "Interpreter"]


def test_a_look_through_all_modules_runs_none(run):
    script = (
        "import tensorflow, inspect, sys\n"
        "inspect.getmodule(inspect.currentframe())\n"
        "[getattr(each, '__warningregistry__', None) for each in sys.modules.values()]\n"
        "import tensorflow._api.v2.data"
    )
    assert run(script) == ["registers"]


def test_threads_wait_until_it_has_run(run):
    script = (
        "import tensorflow as tf, threading\n"
        "seen = []; see = lambda: seen.append(tf.data.Dataset)\n"
        "threads = [threading.Thread(target=see) for _ in range(8)]\n"
        "[each.start() for each in threads]; [each.join() for each in threads]\n"
        "print(*seen)"
    )
    assert run(script)[1:] == ["data runs", "experimental runs", " ".join(["Dataset"] * 8)]


def test_one_that_fails_says_so_and_runs_again(run):
    script = (
        "import os, tensorflow as tf\n"
        "try: tf.broken.name\n"
        "except KeyError as no: print(no)\n"
        "os.environ['NAME'] = 'mended'; print(tf.broken.name)"
    )
    assert run(script) == ["registers", "broken runs", "'NAME'", "broken runs", "mended"]


def test_keras_is_imported_when_the_program_imports_it(run):
    script = (
        "import tensorflow as tf, sys\n"
        "print('keras' in sys.modules, tf.where.endswith('__init__.py'))\n"
        "import keras"
    )
    assert run(script) == ["registers", "False True", "keras runs"]


def test_keras_imported_first_imports_tensorflow(run):
    assert run("import keras") == ["registers", "keras runs"]


def test_another_version_is_imported_whole(run):
    whole = ["data runs", "experimental runs", "broken runs", "keras runs"]
    assert run("import tensorflow", version="2.30.0", NAME="x") == whole


def test_a_plain_import_can_be_asked_for(run):
    whole = ["data runs", "experimental runs", "broken runs", "keras runs"]
    assert run("import tensorflow", GPUBOX_PLAIN_IMPORT="1", NAME="x") == whole
    assert run("import tensorflow", GPUBOX_PLAIN_IMPORT="0") == ["registers"]
