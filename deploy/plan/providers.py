"""PURE: what is known of the providers: their marks, how each box is stopped, what that does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy.errors import ConfigError

SURE = {
    "s": "read in the provider's own pages or code",
    "s2": "read in third parties' notes only",
    "m": "unsure: test it before you rely on it",
}
METADATA = "169.254.169.254"
TWO = 2  # marks that are needed before anything is switched off on a guess


@dataclass(frozen=True)
class Marks:
    """By what a provider's boxes are told; each that is found counts once."""

    env: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    dmi: Mapping[str, str] = field(default_factory=dict)  # field of DMI → how its value begins
    metadata: Mapping[str, str] = field(default_factory=dict)  # host, path, want, headers, method
    hosts: tuple[str, ...] = ()  # ends of the name that SSH connects to


@dataclass(frozen=True)
class Preset:
    """One provider. `commands` and `calls` are alternatives, in order; ${NAME} is filled in on
    the box, so no key is in an argument list of the laptop or in the rule."""

    name: str
    title: str
    marks: Marks = Marks()
    power_off: bool = False  # an ordinary power-off ends the bill
    commands: tuple[tuple[str, ...], ...] = ()
    calls: tuple[Mapping[str, Any], ...] = ()
    checks: tuple[Mapping[str, Any], ...] = ()
    power_off_in_container: bool = False
    how: str = ""  # for people: how it is stopped
    bill: str = ""
    data: str = ""
    sure: str = "m"
    deletes: bool = False  # stopping means deleting
    laptop: str = ""  # for people: the command from outside


TERMINATE = "instance-initiated shutdown behaviour is `terminate`: a shutdown would delete the box"
PRESETS = (
    Preset(
        "vm",
        "a virtual machine whose provider stops billing at power-off (your word)",
        power_off=True,
        power_off_in_container=True,
        how="power-off",
        bill='ends with the power-off: you said so by provider = "vm"',
        data="disks stay",
        sure="m",
    ),
    Preset(
        "onprem",
        "your own machine, a lab's or a university's",
        how="never switched off; our runs are stopped",
        bill="none",
        data="stays",
        sure="s",
    ),
    Preset(
        "autodl",
        "AutoDL",
        Marks(
            env=("AutoDLContainerUUID", "AutoDLRegion", "AutoDLDataCenter"),
            files=("/init/others/help", "/root/autodl-tmp"),
            hosts=(".seetacloud.com", ".autodl.com"),
        ),
        commands=(("bash", "/usr/bin/shutdown"),),
        power_off_in_container=True,
        how="`bash /usr/bin/shutdown` (the platform's own script)",
        bill="compute ends; an extra data disk and file storage over the quota go on",
        data="/root/autodl-tmp and / stay; all is released after 15 days off; the GPU is not kept",
        sure="s2",
        laptop="the console, or the API's power_off (Pro instances)",
    ),
    Preset(
        "gpuhub",
        "GPUhub",
        Marks(
            env=("AutoDLContainerUUID", "AutoDLRegion"),
            files=("/root/gpuhub-tmp",),
            hosts=(".gpuhub.com",),
        ),
        commands=(("bash", "/usr/bin/shutdown"),),
        power_off_in_container=True,
        how="`bash /usr/bin/shutdown` (as AutoDL, unproven)",
        bill="compute ends",
        data="local disks stay; released and emptied after 15 days off; the GPU is not kept",
        sure="m",
        laptop="the console; elastic: PUT …/deployment/container/stop",
    ),
    Preset(
        "gpushare",
        "恒源云 Gpushare",
        Marks(files=("/hy-tmp", "/hy-netdisk", "/hy-nas"), hosts=(".gpushare.com",)),
        commands=(("shutdown",),),
        power_off_in_container=True,
        how="`shutdown` in the container",
        bill="compute ends; network disks by the GB",
        data="/hy-tmp is WIPED 24 h after the stop, / goes back to the image; released after 10 days",
        sure="m",
        laptop="the console",
    ),
    Preset(
        "matpool",
        "矩池云 Matpool",
        Marks(files=("/public/script",), hosts=(".matpool.com", "px-cloud1.matpool.com")),
        how="no way from inside is known",
        bill='goes on until "stop and release" in the console',
        data="only /mnt outlives the release",
        sure="s2",
        laptop="the console: stop and release",
    ),
    Preset(
        "openbayes",
        "OpenBayes",
        Marks(files=("/openbayes/home", "/openbayes/input"), hosts=(".openbayes.com",)),
        how="no way from inside is known",
        bill="goes on until the container is stopped",
        data="/openbayes/home stays, everything else is new at each start",
        sure="m",
        laptop="bayes gear stop ID",
    ),
    Preset(
        "aliyun",
        "阿里云 ECS",
        Marks(
            dmi={"product_name": "Alibaba Cloud ECS"},
            metadata={
                "host": "100.100.100.200",
                "path": "/latest/meta-data/",
                "want": "instance-id",
            },
        ),
        how="only the API with --StoppedMode StopCharging; a power-off may keep billing",
        bill="with StopCharging compute ends; disks and addresses go on",
        data="cloud disks stay; the public address changes; the GPU is released",
        sure="s",
        laptop="aliyun ecs StopInstance --InstanceId i-… --StoppedMode StopCharging",
    ),
    Preset(
        "tencent",
        "腾讯云 CVM",
        Marks(
            dmi={"sys_vendor": "Tencent Cloud"},
            metadata={
                "host": "metadata.tencentyun.com",
                "path": "/latest/meta-data/instance-id",
                "want": "ins-",
            },
        ),
        how="only the API with --StoppedMode STOP_CHARGING; the default keeps billing",
        bill="with STOP_CHARGING compute ends; disks, images and bandwidth go on",
        data="cloud disks stay; the public address changes",
        sure="s",
        laptop="tccli cvm StopInstances --InstanceIds '[\"ins-…\"]' --StoppedMode STOP_CHARGING",
    ),
    Preset(
        "aws",
        "AWS EC2",
        Marks(
            dmi={"sys_vendor": "Amazon EC2", "product_uuid": "ec2"},
            metadata={
                "host": METADATA,
                "path": "/latest/api/token",
                "method": "PUT",
                "headers": "X-aws-ec2-metadata-token-ttl-seconds: 60\r\n",
                "want": "",
            },
        ),
        power_off=True,
        checks=(
            {
                "command": (
                    "sh",
                    "-c",
                    "aws ec2 describe-instance-attribute --output text "
                    "--attribute instanceInitiatedShutdownBehavior "
                    "--instance-id $(cat /sys/devices/virtual/dmi/id/board_asset_tag)",
                ),
                "forbidden": "terminate",
                "says": TERMINATE,
                "unknown": "the shutdown behaviour could not be read (with `terminate` a stop would "
                'delete the box): look in the console, then set boxes.NAME.provider = "aws"',
                "unless_told": True,
            },
        ),
        how="power-off (`halt` would not do); refused where the shutdown behaviour is `terminate`",
        bill="compute ends; EBS disks and Elastic IPs go on",
        data="EBS stays; instance store (NVMe) is LOST; a new address without an Elastic IP",
        sure="s",
        laptop="aws ec2 stop-instances --instance-ids i-…",
    ),
    Preset(
        "gcp",
        "Google Compute Engine",
        Marks(
            dmi={"product_name": "Google Compute Engine"},
            metadata={
                "host": "metadata.google.internal",
                "path": "/computeMetadata/v1/instance/id",
                "headers": "Metadata-Flavor: Google\r\n",
                "want": "metadata-flavor: google",
            },
        ),
        power_off=True,
        how="power-off",
        bill="compute ends; disks and static addresses go on",
        data="persistent disks stay; Local SSD is LOST",
        sure="s2",
        laptop="gcloud compute instances stop NAME",
    ),
    Preset(
        "azure",
        "Azure VM",
        Marks(
            dmi={"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"},
            metadata={
                "host": METADATA,
                "path": "/metadata/instance?api-version=2021-02-01",
                "headers": "Metadata: true\r\n",
                "want": "azEnvironment",
            },
        ),
        commands=(
            (
                "sh",
                "-c",
                "az login --identity --output none && az vm deallocate --no-wait --ids "
                '"$(curl -s --noproxy "*" -H Metadata:true '
                '"http://169.254.169.254/metadata/instance/compute/resourceId'
                '?api-version=2021-02-01&format=text")"',
            ),
        ),
        checks=(
            {
                "command": ("sh", "-c", "az login --identity --output none"),
                "forbidden": "\0",
                "says": "",
                "unknown": "`az login --identity` fails: give the VM a managed identity that may "
                "deallocate it, and install az; an ordinary power-off keeps billing",
            },
        ),
        how="`az vm deallocate` with a managed identity (a power-off keeps billing)",
        bill="compute ends; disks and static addresses go on",
        data="managed disks stay; the temporary disk (/mnt) is LOST",
        sure="s2",
        laptop="az vm deallocate -g GROUP -n NAME",
    ),
    Preset(
        "lambda",
        "Lambda Cloud",
        Marks(files=("/lambda/nfs", "/usr/share/doc/lambda-stack-cuda")),
        calls=(
            {
                "method": "POST",
                "url": "https://cloud.lambdalabs.com/api/v1/instance-operations/terminate",
                "headers": {"Authorization": "Bearer ${file:~/.gpubox/lambda.key}"},
                "body": '{"instance_ids": ["${file:~/.gpubox/lambda.instance}"]}',
                "rehearse": "https://cloud.lambdalabs.com/api/v1/instances",
            },
        ),
        how="there is no stop: only terminate, by the API",
        bill="ends; the file system goes on; an ordinary power-off keeps billing",
        data="the local disk is DELETED; only /lambda/nfs stays",
        sure="s2",
        deletes=True,
        laptop="the same call of the API",
    ),
    Preset(
        "runpod",
        "RunPod",
        Marks(env=("RUNPOD_POD_ID", "RUNPOD_DC_ID", "RUNPOD_TCP_PORT_22")),
        commands=(
            ("runpodctl", "pod", "stop", "${RUNPOD_POD_ID}"),
            ("runpodctl", "stop", "pod", "${RUNPOD_POD_ID}"),
        ),
        calls=(
            {
                "method": "POST",
                "url": "https://rest.runpod.io/v1/pods/${RUNPOD_POD_ID}/stop",
                "headers": {"Authorization": "Bearer ${RUNPOD_API_KEY}"},
                "rehearse": "https://rest.runpod.io/v1/pods/${RUNPOD_POD_ID}",
            },
        ),
        how="`runpodctl pod stop`, or the same by the API (a key for this pod is inside)",
        bill="GPU ends; a stopped volume disk costs DOUBLE; a network volume goes on",
        data="the container disk is LOST, /workspace stays; it may come back without GPUs",
        sure="s",
        laptop="POST https://rest.runpod.io/v1/pods/ID/stop",
    ),
    Preset(
        "vast",
        "vast.ai",
        Marks(env=("CONTAINER_ID", "VAST_CONTAINERLABEL", "VAST_TCP_PORT_22"), hosts=(".vast.ai",)),
        calls=(
            {
                "method": "PUT",
                "url": "https://console.vast.ai/api/v0/instances/${CONTAINER_ID}/",
                "headers": {"Authorization": "Bearer ${CONTAINER_API_KEY}"},
                "body": '{"state": "stopped"}',
            },
        ),
        how="PUT state=stopped by the API (a key for this instance is inside)",
        bill="GPU ends; the disk is billed for ever, traffic too",
        data="stays on that host; the restart waits for the same GPU",
        sure="s2",
        laptop="vastai stop instance ID",
    ),
    Preset(
        "paperspace",
        "Paperspace Core",
        Marks(
            metadata={
                "host": "metadata.paperspace.com",
                "path": "/meta-data/machine",
                "want": "hostname",
            },
            files=("/home/paperspace",),
        ),
        how="from the console or pspace; what a power-off does is not known",
        bill="compute ends; disk, address and snapshots go on",
        data="the disk stays",
        sure="m",
        laptop="pspace",
    ),
    Preset(
        "hetzner",
        "Hetzner",
        Marks(
            dmi={"sys_vendor": "Hetzner"},
            metadata={
                "host": METADATA,
                "path": "/hetzner/v1/metadata/instance-id",
                "want": "",
            },
        ),
        how="none: a powered-off server is billed on, only deleting ends it",
        bill="goes on at power-off",
        data="stays",
        sure="s2",
        laptop="delete it in the console",
    ),
    Preset(
        "ovh",
        "OVH",
        Marks(hosts=(".ovh.net", ".ovh.com")),
        how="none from inside: shelve or delete",
        bill="goes on at power-off",
        data="stays",
        sure="m",
        laptop="openstack server shelve NAME",
    ),
)
UNKNOWN = Preset(
    "unknown",
    "a box that the kit can't tell",
    how="reminded about only",
    bill="not known",
    data="not known",
    sure="m",
)


@dataclass(frozen=True)
class Choice:
    """Whose box it is, and by what that is known."""

    preset: Preset
    marks: tuple[str, ...]
    told: bool  # by the user's word


def questions() -> dict[str, Any]:
    """The request for the box's `marks`: every mark of every provider."""
    return {
        "env": sorted({name for each in PRESETS for name in each.marks.env}),
        "files": sorted({path for each in PRESETS for path in each.marks.files}),
        "metadata": {
            each.name: dict(each.marks.metadata) for each in PRESETS if each.marks.metadata
        },
    }


def choose(setting: str, found: Mapping[str, Any], ssh_host: str) -> Choice:
    """The provider that the user named, else the one with most marks, if it has at least two."""
    if setting != "auto":
        names = {each.name: each for each in PRESETS}
        if setting not in names:
            raise ConfigError(
                f"boxes.NAME.provider: unknown provider {setting!r}", "known: " + ", ".join(names)
            )
        return Choice(names[setting], tuple(marks_of(names[setting], found, ssh_host)), True)
    told = [(each, marks_of(each, found, ssh_host)) for each in PRESETS]
    preset, marks = max(told, key=lambda pair: len(pair[1]))
    # Twins share their environment: what only one of them has decides.
    return Choice(preset if len(marks) >= TWO else UNKNOWN, tuple(marks), False)


def marks_of(preset: Preset, found: Mapping[str, Any], ssh_host: str) -> list[str]:
    marks, here = preset.marks, found
    seen = [f"variable {name}" for name in marks.env if name in here["env"]]
    seen += [path for path in marks.files if path in here["files"]]
    for key, start in marks.dmi.items():
        if str(here["dmi"].get(key, "")).lower().startswith(start.lower()):
            seen.append(f"DMI {key}")
    seen += ["metadata address"] if preset.name in here["metadata"] else []
    return seen + [f"SSH host *{end}" for end in marks.hosts if ssh_host.endswith(end)]


def power_off_command(found: Mapping[str, Any]) -> tuple[str, ...]:
    command = ("systemctl", "poweroff") if found["systemd"] else ("poweroff",)
    return command if found["root"] else ("sudo", "-n", *command)


def table_rows() -> list[Sequence[str]]:
    """The rows of the table in the README, docs/providers.md and `fab doctor`."""
    return [
        (each.title, each.how, each.bill, each.data, each.laptop or "–", each.sure)
        for each in PRESETS
    ]
