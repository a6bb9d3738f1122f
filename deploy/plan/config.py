"""PURE: gpubox.toml as typed values; unknown keys are refused with the nearest known one."""

from __future__ import annotations

import difflib
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Literal, NewType, get_args, get_origin

from deploy.errors import ConfigError
from deploy.plan.quantities import parse_duration

Seconds = NewType("Seconds", float)  # written as "30m"
Name = NewType(
    "Name", str
)  # letters, digits, . _ - and no leading dash: safe in paths and commands


@dataclass(frozen=True)
class IdleRule:
    """[idle], and [boxes.NAME.idle] over it: when a box that does nothing is stopped."""

    enabled: bool = True
    remind_after: Seconds = Seconds(600)
    stop_after: Seconds = Seconds(1800)
    stalled_after: Seconds = Seconds(3600)  # a run without a heartbeat no longer counts as active
    max_unknown: Seconds = Seconds(6 * 3600)
    max_hours: float | None = None  # lifetime since boot; unset: none
    max_cost: float | None = None  # in the box's currency, over restarts; unset: none
    gpu_below: float = 5.0  # per cent of use below which a GPU is idle
    cpu_below: float = 15.0  # per cent of all cores
    net_below: float = 1.0  # MiB/s in and out, a mean over a poll
    disk_below: float = 10.0  # MiB/s read and written, a mean over a poll
    notify: tuple[str, ...] = ()  # names of channels in [notify]
    poll: Seconds = Seconds(15)


@dataclass(frozen=True)
class StopRule:
    """[boxes.NAME.stop]: how a box is switched off, where the provider's preset is not right."""

    command: tuple[str, ...] = ()  # run on the box
    from_laptop: tuple[str, ...] = ()  # run on the laptop by `fab down` and `fab watch`
    start: tuple[str, ...] = ()  # run on the laptop by `fab up`
    allow_data_loss: bool = False  # needed where stopping means deleting


@dataclass(frozen=True)
class Box:
    """[boxes.NAME]: one machine; every key has a default, an SSH name alone is enough."""

    host: str = ""  # what `ssh` is given; the table's name if empty; "local" is this machine
    user: str = ""
    port: int = 0
    fingerprint: str = ""  # "SHA256:…" of the only host key to accept
    data: str = ""  # network disk; "/data" where it can be used, else ~/gpubox/data
    input: str = ""  # fast local disk; "/input", else ~/gpubox/input
    runs: str = ""  # DATA/runs if empty
    data_group: Name = Name("")  # give this group read access to the data sets
    streams: int = 1  # SSH connections of an upload: more help where the line loses packets
    runner: Literal["auto", "docker", "process"] = "auto"
    python: str = ""  # for the process runner: a Python whose TensorFlow is to be used
    device: Literal["auto", "gpu", "cpu"] = "auto"
    provider: str = "auto"
    shared: bool = False  # a lab's server: never switched off
    price_per_hour: float | None = None
    currency: str = ""
    idle: IdleRule = field(default_factory=IdleRule)
    stop: StopRule = field(default_factory=StopRule)


@dataclass(frozen=True)
class DataSet:
    """[data.NAME]: a folder or an archive on the laptop."""

    path: str
    layout: Literal["auto", "packed", "files"] = "auto"
    exclude: tuple[str, ...] = ()
    zip_names: str = ""  # encoding of names in zip files without the UTF-8 flag; guessed if empty


@dataclass(frozen=True)
class RunRule:
    """[run]: what `launch` and `deploy` start when the command line does not say otherwise."""

    data: Name = Name("")
    command: tuple[str, ...] = ("python", "-m", "workload", "cnn")
    args: tuple[str, ...] = ()
    code: str = ""  # the user's own program folder, mounted read-only at /code
    image: str = ""  # an image of the user's own instead of ours
    requirements: str = ""  # a file of packages for pip, installed on top of our image's
    gpus: str = "all"  # a count, "all", or indexes such as "0,2"
    workers: tuple[str, ...] = ()
    shm_size: str = "2gb"
    memory: str = ""  # the container may use no more than that, such as "12g"
    stop_grace: Seconds = Seconds(120)
    env_file: str = ""  # 0600, travels as a file, never in argv


@dataclass(frozen=True)
class FetchRule:
    """[fetch]: what `fab fetch` leaves at home."""

    keep: int = 5  # checkpoints of a run that a plain fetch leaves, beside the best one; 0: all


@dataclass(frozen=True)
class Config:
    """The whole of gpubox.toml."""

    boxes: dict[Name, Box] = field(default_factory=dict)
    data: dict[Name, DataSet] = field(default_factory=dict)
    run: RunRule = field(default_factory=RunRule)
    fetch: FetchRule = field(default_factory=FetchRule)
    idle: IdleRule = field(default_factory=IdleRule)
    notify: dict[Name, str] = field(default_factory=dict)  # channel → file that holds its URL
    default_box: Name = Name("local")
    currency: str = "USD"
    ssh_config: str = ""  # instead of ~/.ssh/config


def read_config(document: Mapping[str, Any]) -> Config:
    """The typed config of a parsed TOML document; ConfigError names the path and what was expected."""
    boxes = document.get("boxes", {})
    general = _without_off(document.get("idle", {}))
    if "idle" in document:
        document = {**document, "idle": general}
    if isinstance(boxes, dict):
        document = {**document, "boxes": {k: _with_idle(v, general) for k, v in boxes.items()}}
    return typing.cast(Config, _table(Config, document, ""))


def box_named(config: Config, name: str) -> Box:
    """The box of a name: from the config, else any name that `ssh` knows, with the general rules."""
    if name in config.boxes:
        box = config.boxes[Name(name)]
    else:
        _name(name, "--host")
        box = Box(idle=config.idle)
    return box


def _with_idle(box: Any, general: Any) -> Any:
    if not isinstance(box, dict) or not isinstance(general, dict):
        return box
    own = _without_off(box.get("idle", {}))
    return {**box, "idle": {**general, **own}} if isinstance(own, dict) else box


def _without_off(idle: Any) -> Any:
    """`stop_after = "off"` means `enabled = false`: no stop for being idle, the caps hold."""
    if not isinstance(idle, dict) or idle.get("stop_after") != "off":
        return idle
    return {**{k: v for k, v in idle.items() if k != "stop_after"}, "enabled": False}


def _table(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(path, "a table", value)
    known = {each.name: each for each in fields(kind)}
    hints = _hints(kind)
    for key in value:
        if key not in known:
            raise ConfigError(f"{_join(path, key)}: unknown key", _nearest(key, known))
    for key, each in known.items():
        if key not in value and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{_join(path, key)}: missing", "add it to gpubox.toml")
    return kind(**{key: _value(hints[key], value[key], _join(path, key)) for key in value})


@functools.cache  # looked up in source text: a hundred boxes would take 0.15 s for it
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(kind: Any, value: Any, path: str) -> Any:
    """`value` as `kind` (a dataclass, str, int, float, bool, Literal, tuple, dict, or None-able)."""
    origin = get_origin(kind)
    if is_dataclass(kind):
        return _table(kind, value, path)
    if kind is Seconds:
        return _duration(value, path)
    if kind is Name:
        return _name(value, path)
    if origin in (typing.Union, types.UnionType):
        inner = next(each for each in get_args(kind) if each is not type(None))
        return _value(inner, value, path)
    if origin is Literal:
        return _choice(get_args(kind), value, path)
    if origin is tuple:
        return tuple(_value(str, each, f"{path}[{i}]") for i, each in enumerate(_list(value, path)))
    if origin is dict:
        return _dictionary(kind, value, path)
    return _scalar(kind, value, path)


def _dictionary(kind: Any, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(path, "a table", value)
    inner = get_args(kind)[1]
    return {_name(k, _join(path, k)): _value(inner, v, _join(path, k)) for k, v in value.items()}


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(path, 'a list of strings such as ["a", "b"]', value)
    return value


def _choice(allowed: tuple[Any, ...], value: Any, path: str) -> Any:
    if value not in allowed:
        raise _wrong(path, "one of " + ", ".join(f'"{each}"' for each in allowed), value)
    return value


def _scalar(kind: type, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
        raise _wrong(path, names[kind], value)
    if isinstance(value, (int, float)) and value < 0:
        raise _wrong(path, "zero or more", value)
    return value


def _duration(value: Any, path: str) -> float:
    if not isinstance(value, str):
        raise _wrong(path, 'a duration such as "30m"', value)
    try:
        return parse_duration(value)
    except ValueError as no:
        raise ConfigError(f"{path}: {no}", "") from no


def _name(value: Any, path: str) -> str:
    """A name that is safe as a path component and as a command's argument."""
    if not isinstance(value, str):
        raise _wrong(path, "a name", value)
    ok = (
        value
        and value[0] not in "-."
        and all(c.isalnum() and c.isascii() or c in "._-" for c in value)
    )
    if value and not ok:
        raise _wrong(path, "a name of letters, digits, '.', '_' and '-'", value)
    return value


def _wrong(path: str, expected: str, got: Any) -> ConfigError:
    shown = f'"{got}"' if isinstance(got, str) else repr(got)
    return ConfigError(f"{path or 'gpubox.toml'}: expected {expected}, got {shown}", "")


def _nearest(key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else "known keys: " + ", ".join(sorted(known))


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
