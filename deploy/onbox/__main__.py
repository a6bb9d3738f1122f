"""Takes one request from stdin, does it, answers one JSON document: `python onbox.pyz VERB`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .deploylock import deploy_lock
from .refusal import Refusal
from .wire import Wire, request_of, standard_wire

# verb → module and function (request, wire) → answer; imported late, so that a request
# pays only for what it needs
VERBS = {
    "facts": ("facts", "facts"),
    "prospect": ("prospect", "prospect"),
    "image_state": ("shipment", "image_state"),
    "load_layers": ("shipment", "load_layers"),
    "save_layers": ("shipment", "save_layers"),
    "build_image": ("images", "build_image"),
    "data_check": ("damage", "check"),
    "data_list": ("keeping", "list_sets"),
    "data_pin": ("keeping", "pin"),
    "data_remove": ("keeping", "remove"),
    "data_state": ("shelf", "state"),
    "manifest": ("shelf", "send_manifest"),
    "receive": ("receive", "receive"),
    "activate": ("commit", "activate"),
    "stage": ("stage", "stage"),
    "stage_ahead": ("staging_ahead", "stage_ahead"),
    "check_staged": ("datacheck", "check_staged"),
    "doctor": ("checkup", "doctor"),
    "launch": ("launch", "launch"),
    "wait": ("launch", "wait"),
    "resume": ("resuming", "resume"),
    "stop": ("stopping", "stop"),
    "status": ("report", "status"),
    "logs": ("report", "logs"),
    "rm": ("report", "remove"),
    "send": ("sending", "send"),
    "home": ("sending", "home"),
    "unlock": ("deploylock", "unlock"),
    "renew": ("deploylock", "renew"),
    "evaluate": ("evaluate", "evaluate"),
    "seed": ("seed", "seed"),
    "gc": ("cleanup", "gc"),
    "survey": ("survey", "survey"),
    "perform": ("perform", "perform"),
    "view": ("view", "view"),
    "addresses": ("workers", "addresses"),
    "await_peers": ("workers", "await_peers"),
    "reach": ("workers", "reach"),
    "overview": ("overview", "overview"),
    "arm": ("arming", "arm"),
    "disarm": ("arming", "disarm"),
    "idle": ("keeper_status", "idle_status"),
    "marks": ("marks", "marks"),
    "hold": ("hold", "hold"),
    "down": ("down", "down"),
    "notices": ("down", "try_notices"),
    "post": ("post", "post"),
    "cost": ("ledger", "cost"),
    "notify_ready": ("notify_install", "ready"),
    "notify_install": ("notify_install", "install"),
}


def act(verb: str, request: dict[str, Any], wire: Wire) -> Any:
    module, function = VERBS[verb]
    return getattr(importlib.import_module("." + module, __package__), function)(request, wire)


def handle(verb: str, request: dict[str, Any], wire: Wire) -> dict[str, Any]:
    """The answer to one request; errors become part of the answer."""
    try:
        with deploy_lock(request, wire):
            answer = act(verb, request, wire)
            if request.get("ahead"):  # what the laptop will ask next: it saves the round trips
                folders = {"folders": request.get("folders") or {}}
                answer["ahead"] = [
                    handle(each, {**folders, **more}, wire) for each, more in request["ahead"]
                ]
            return {"schema": 1, "ok": answer}
    except Refusal as no:
        return {"schema": 1, "error": {"kind": no.kind, "message": no.message, "hint": no.hint}}
    except Exception as fault:
        import traceback  # large, and hardly ever needed

        return {
            "schema": 1,
            "error": {
                "kind": "KitError",
                "message": f"on the box, in {verb}: {type(fault).__name__}: {fault}",
                "hint": "run it again with --debug and report what it prints",
                "traceback": traceback.format_exc(),
            },
        }


def main(argv: list[str]) -> int:
    if argv[1:] == ["keeper"]:
        from .keeper import keep

        return keep()
    if argv[1:2] == ["compile"]:
        from .bytecode import compile_own

        compile_own(argv[0], argv[2])
        return 0
    if len(argv) not in (2, 3) or argv[1] not in VERBS:
        verbs = ", ".join(sorted(VERBS))
        sys.stderr.write(f"usage: python3 onbox.pyz VERB [REQUEST in base64]; verbs: {verbs}\n")
        return 2
    wire = standard_wire()
    request = wire.request() if len(argv) == 2 else request_of(argv[2])
    wire.beat_for_ever()
    answer = handle(argv[1], request, wire)
    wire.answer(answer)
    return 0 if "ok" in answer else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
