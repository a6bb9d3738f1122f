"""gpubox.toml: typed values, unknown keys refused, every error with its path."""

import pytest

from deploy.errors import ConfigError
from deploy.plan.config import box_named, read_config


def test_an_empty_document_gives_the_defaults():
    config = read_config({})
    assert config.default_box == "local"
    assert config.idle.stop_after == 1800


def test_a_box_takes_the_general_idle_rule_and_its_own_over_it():
    document = {
        "idle": {"stop_after": "45m", "poll": "5s"},
        "boxes": {"a": {"idle": {"stop_after": "1h30m"}}, "b": {}},
    }
    config = read_config(document)
    assert (config.boxes["a"].idle.stop_after, config.boxes["a"].idle.poll) == (5400, 5)
    assert config.boxes["b"].idle.stop_after == 2700
    assert box_named(config, "unknown-but-in-ssh-config").idle.stop_after == 2700


WRONG = [
    ({"boxs": {}}, "boxs: unknown key", "did you mean boxes?"),
    ({"boxes": {"gpu": {"dta": "/x"}}}, "boxes.gpu.dta: unknown key", "did you mean data?"),
    (
        {"boxes": {"gpu": {"idle": {"stop_after": "soon"}}}},
        'boxes.gpu.idle.stop_after: expected a duration such as "30m"',
        "",
    ),
    (
        {"idle": {"stop_after": 90}},
        'idle.stop_after: expected a duration such as "30m", got 90',
        "",
    ),
    ({"idle": {"stop_after": "1:30"}}, "idle.stop_after: expected a duration", ""),
    ({"idle": {"stop_after": "-1"}}, "idle.stop_after: expected a duration", ""),
    ({"boxes": {"gpu": {"port": "22"}}}, 'boxes.gpu.port: expected a whole number, got "22"', ""),
    ({"boxes": {"gpu": {"shared": 1}}}, "boxes.gpu.shared: expected true or false, got 1", ""),
    (
        {"boxes": {"gpu": {"runner": "podman"}}},
        'boxes.gpu.runner: expected one of "auto", "docker"',
        "",
    ),
    ({"boxes": {"-rf": {}}}, "boxes.-rf: expected a name of letters", ""),
    ({"boxes": {"a b$(touch x)": {}}}, "boxes.a b$(touch x): expected a name", ""),
    ({"boxes": 3}, "boxes: expected a table, got 3", ""),
    ({"data": {"d": {}}}, "data.d.path: missing", ""),
    ({"data": {"d": {"path": "x", "exclude": "*.tmp"}}}, "data.d.exclude: expected a list", ""),
    (
        {"data": {"d": {"path": "x", "exclude": [1]}}},
        "data.d.exclude[0]: expected a string, got 1",
        "",
    ),
    ({"idle": {"max_cost": -2}}, "idle.max_cost: expected zero or more, got -2.0", ""),
]


@pytest.mark.parametrize("document,message,hint", WRONG, ids=[m for _, m, _ in WRONG])
def test_errors_name_the_path_and_what_was_expected(document, message, hint):
    with pytest.raises(ConfigError) as caught:
        read_config(document)
    assert message in caught.value.message
    assert hint in caught.value.hint
