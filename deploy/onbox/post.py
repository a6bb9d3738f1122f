"""One HTTP request with a deadline, in a process of its own: a notice, or a provider's stop call."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Callable
from urllib.parse import urlsplit

from .refusal import Refusal

SECONDS = 20.0

# What the chat services want in their webhooks; any other address gets all fields as they are.
SHAPES: dict[str, Callable[[str], dict[str, Any]]] = {
    "hooks.slack.com": lambda all: {"text": all},
    "discord.com": lambda all: {"content": all[:1900]},
    "oapi.dingtalk.com": lambda all: {"msgtype": "text", "text": {"content": all}},
    "qyapi.weixin.qq.com": lambda all: {"msgtype": "text", "text": {"content": all}},
    "open.feishu.cn": lambda all: {"msg_type": "text", "content": {"text": all}},
    "open.larksuite.com": lambda all: {"msg_type": "text", "content": {"text": all}},
}


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A notice that is sent on elsewhere has not arrived: the address has to be right."""

    def redirect_request(self, *anything: Any) -> None:
        return None


def post(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Request: {url, title, text, fields}. Answer: {status}; a Refusal never shows the address."""
    host = urlsplit(request["url"]).hostname or ""
    everything = "{}\n{}".format(request["title"], request["text"])
    shape = SHAPES.get(host)
    plain = {"title": request["title"], "text": request["text"], **request.get("fields", {})}
    body = shape(everything) if shape else plain
    return {"status": send("POST", request["url"], {}, json.dumps(body).encode())[0]}


def send(method: str, url: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
    """Status and body of an answer of 2xx; a Refusal for everything else."""
    content = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "gpubox"}
    asked = urllib.request.Request(url, body or None, {**content, **headers}, method=method)
    try:
        opener = urllib.request.build_opener(NoRedirect())
        with opener.open(asked, timeout=SECONDS) as answer:
            return answer.status, answer.read(1 << 20)
    except urllib.error.HTTPError as no:
        raise Refusal("StopFailed", f"HTTP {no.code}", "") from None
    except (OSError, ValueError) as no:
        reason = getattr(no, "reason", no)
        raise Refusal("StopFailed", f"no answer: {type(reason).__name__}", "") from None
