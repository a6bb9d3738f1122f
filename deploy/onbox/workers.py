"""Several boxes as one training: how they reach each other, and what TensorFlow is told about it."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import select
import socket
import struct
import time
from typing import Any, Sequence

from .refusal import Refusal

SIOCGIFADDR = 0x8915
SILENCE = 60.0  # seconds without a byte from the laptop, after which a listener ends
DIAL_SECONDS = 3.0
SHARED = ipaddress.ip_network("100.64.0.0/10")  # RFC 6598: carriers and overlay networks


def tf_config(worker: dict[str, Any]) -> str:
    """TF_CONFIG for one worker: `hosts` ("address:port", the chief first) and its `index`."""
    task = {"type": "worker", "index": worker["index"]}
    return json.dumps({"cluster": {"worker": worker["hosts"]}, "task": task})


def addresses(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: this box's IPv4 addresses, those of private networks and the others."""
    found = own_addresses()
    private = [each for each in found if is_private(each)]
    return {"private": private, "public": [each for each in found if each not in private]}


def own_addresses() -> list[str]:
    """The first IPv4 address of each interface but the loopback."""
    return [address for address in map(_address, _interfaces()) if address]


def moved(worker: dict[str, Any], own: Sequence[str]) -> str:
    """Why the other workers can't reach this one: its address among them is none of the box's `own`
    any more, as after a start with a new lease, or of a tunnel that is not up yet; "" if it is. Pure.

    The program must not be started then: it would meet its peers, fail with them at their first
    exchange, and so again at every try.
    """
    known = worker["hosts"][worker["index"]].rpartition(":")[0]
    if known in own:
        return ""
    return (
        f"the other workers know this box as {known}, its addresses are {', '.join(own) or 'none'}: "
        f"fab deploy --workers {','.join(worker['runs'])} goes on"
    )


def is_private(address: str) -> bool:
    """RFC 1918 and RFC 6598, no loopback and no link-local address."""
    parsed = ipaddress.ip_address(address)
    if parsed.is_loopback or parsed.is_link_local:
        return False
    return parsed.is_private or parsed in SHARED


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex() if name != "lo"]


def _address(interface: str) -> str:
    """The interface's IPv4 address; "" without one (netdevice(7), SIOCGIFADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            ask = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, ask)[20:24])
        except OSError:
            return ""


def await_peers(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: listen on `port` and answer each caller with `nonce`, while the laptop holds on.

    Refusal where the port is taken: then TensorFlow could not have it either.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("0.0.0.0", request["port"]))
        except OSError as no:
            raise Refusal(
                "BoxUnfit",
                "port {} is not free: {}".format(request["port"], no.strerror),
                "is another run of several workers there? fab status; or --port",
            ) from no
        listener.listen(16)
        wire.event(ready=request["port"])
        _answer_until_let_go(listener, wire.input.fileno(), request["nonce"].encode())
    return {}


def _answer_until_let_go(listener: socket.socket, stdin: int, nonce: bytes) -> None:
    heard = time.monotonic()
    while time.monotonic() - heard < SILENCE:
        readable, _, _ = select.select([listener.fileno(), stdin], [], [], 1.0)
        if listener.fileno() in readable:
            with listener.accept()[0] as caller:
                caller.sendall(nonce)
        if stdin in readable:
            if not os.read(stdin, 4096):
                return
            heard = time.monotonic()


def reach(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: which of `targets` ([address, port, nonce]) answer from here, each with its own nonce:
    the same private address may be another machine's, as docker0's is everywhere."""
    return {
        "reached": [address for address, *rest in request["targets"] if _answers(address, *rest)]
    }


def _answers(address: str, port: int, nonce: str) -> bool:
    try:
        with socket.create_connection((address, port), timeout=DIAL_SECONDS) as line:
            return line.recv(64) == nonce.encode()
    except OSError:
        return False
