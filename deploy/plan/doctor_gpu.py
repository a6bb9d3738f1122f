"""PURE: the GPU's part of `fab doctor`: card, driver, capability, toolkit, TensorFlow in the image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploy.plan.check import Check

GPU = "GpuError"

# TensorFlow 2.21 with CUDA 12.5: its wheel's own kernels are sm_60 to sm_89 and PTX of
# compute_90; cuDNN 9.10 holds sm_50 to sm_120; drivers by NVIDIA's compatibility table.
MIN_DRIVER, MIN_DRIVER_BLACKWELL = (525, 60, 13), (570, 26)
MIN_CAPABILITY, LAST_COMPILED, BLACKWELL, LAST_CUDNN = (6, 0), (8, 9), (10, 0), (12, 0)


def checks(facts: Mapping[str, Any], name: str, device: str) -> list[Check]:
    """Rows for the table; `device` is what the config asks for (auto, gpu, cpu)."""
    found = facts["gpus"]
    if device == "cpu":
        return [Check("GPU", "not asked for (device = cpu)")]
    own = own_tensorflow(facts.get("tensorflow") or {}, bool(found["cards"]), name)
    if not found["cards"]:
        return [no_card(found, name, device), *own]
    rows = [row for card in found["cards"] for row in one_card(card, name)]
    if facts["engine"].get("answers"):
        rows += [toolkit(facts["engine"]["gpu_try"], name), image(facts["engine"]["image"], name)]
    return rows + own


def own_tensorflow(found: Mapping[str, Any], cards: bool, name: str) -> list[Check]:
    """The box's own Python, where runs are processes; [] where they are containers."""
    if "path" not in found:
        return []
    if not found["path"]:
        return [Check("TensorFlow", "in no Python here: the first run makes its own", "note")]
    value = f"{found['tensorflow']} in {found['path']}"
    if cards and not found["gpus"]:
        remedy = f"the first run makes its own; or set boxes.{name}.python to one that sees it"
        return [Check("TensorFlow", f"{value} sees no GPU", "warn", remedy, GPU)]
    return [Check("TensorFlow", f"{value} sees {found['gpus']} GPUs" if cards else value)]


def no_card(found: Mapping[str, Any], name: str, device: str) -> Check:
    if found["present"]:
        count = found["on_bus"]
        seen = f"{count} on the bus" if count else "there"
        remedy = (
            f"the driver is missing or broken: fab bootstrap --host {name} names it; reboot after"
        )
        return Check("GPU", f"{seen}, but {found['why']}", "bad", remedy, GPU)
    if device == "gpu":
        remedy = f"rent one, or set boxes.{name}.device to cpu"
        return Check("GPU", "none", "bad", remedy, GPU)
    return Check("GPU", "none: runs here use the CPU", "note")


def one_card(card: Mapping[str, str], name: str) -> list[Check]:
    value = f"{card['name']}, {card['memory_mib']} MiB"
    return [Check("GPU", value), driver(card), capability(card)]


def driver(card: Mapping[str, str]) -> Check:
    version, capable = _numbers(card["driver"]), _numbers(card.get("capability", ""))
    needed = MIN_DRIVER_BLACKWELL if capable >= BLACKWELL else MIN_DRIVER
    if not version:
        return Check(
            "driver",
            card["driver"] or "unknown",
            "unknown",
            "nvidia-smi on the box",
            "GpuError",
        )
    if version < needed:
        least = ".".join(map(str, needed))
        return Check(
            "driver",
            card["driver"],
            "bad",
            f"{least} or newer is needed: update it",
            "GpuError",
        )
    return Check("driver", card["driver"])


def capability(card: Mapping[str, str]) -> Check:
    """Against what TensorFlow and cuDNN in the image hold code for."""
    text = card.get("capability", "")
    number = _numbers(text)
    if not number:
        return Check("capability", "unknown", "unknown", "the driver is too old to say it", GPU)
    if number < MIN_CAPABILITY:
        return Check("capability", text, "bad", "TensorFlow's kernels start at 6.0", GPU)
    if number > LAST_CUDNN:
        return Check(
            "capability",
            text,
            "warn",
            "newer than the image's cuDNN: may not work",
            "GpuError",
        )
    if number > LAST_COMPILED:
        remedy = (
            "the first start compiles for up to half an hour; the result is kept on the data disk"
        )
        return Check("capability", text, "note", remedy, GPU)
    return Check("capability", text)


def toolkit(tried: Mapping[str, Any], name: str) -> Check:
    if tried["given"]:
        return Check("toolkit", "a container gets the GPUs (tried)")
    if tried["given"] is None:
        return Check(
            "toolkit",
            str(tried["said"]),
            "unknown",
            "docker run --gpus all by hand",
            "GpuError",
        )
    said = str(tried["said"])
    why = "the engine gives no GPU to a container (tried)"
    remedy = f"NVIDIA's container toolkit is missing or not set up: fab bootstrap --host {name}"
    if "could not select device driver" not in said:
        why, remedy = f"{why}: {said.splitlines()[0][:120]}", "does nvidia-smi work on the box?"
    return Check("toolkit", why, "bad", remedy, GPU)


def image(asked: Mapping[str, Any], name: str) -> Check:
    if not asked["name"]:
        remedy = f"fab deploy or fab ship --host {name} brings it; then ask again"
        return Check("TensorFlow", "no GPU image of ours on the box yet", "unknown", remedy, GPU)
    report = asked["report"]
    if asked["sees_gpu"]:
        return Check("TensorFlow", f"sees the GPU in {asked['name']}")
    why = report.get("problem") or report.get("message") or asked.get("said", "")
    first = (str(why).strip().splitlines() or ["no reason given"])[0][:160]
    remedy = str(report.get("remedy") or "the rows above say what is missing")
    return Check("TensorFlow", f"sees no GPU in {asked['name']}: {first}", "bad", remedy, GPU)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
