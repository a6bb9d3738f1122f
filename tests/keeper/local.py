"""A box `local` with a real keeper process in its own home, and a webhook that listens."""

import http.server
import json
import os
import signal
import threading
import time
from pathlib import Path

from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink
from deploy.onbox.keeper_status import keeper_lives
from deploy.plan.config import Box, IdleRule, StopRule
from deploy.plan.keeper import arm_request, stop_plan
from deploy.plan.providers import choose

NOTHING = {"env": [], "files": [], "dmi": {}, "metadata": [], "root": True, "systemd": False}
# This machine's own load and traffic are not the test's business.
DEAF = {"cpu_below": 1e9, "net_below": 1e9, "disk_below": 1e9}
QUICK = IdleRule(remind_after=2.0, stop_after=6.0, poll=1.0, **DEAF)


class LocalBox:
    """`arm()` starts a keeper; what it did is read from its files and from its stop command."""

    def __init__(self, home, folder):
        self.home, self.folder = home, folder
        self.keeper = Path(os.environ["GPUBOX_HOME"]) / "keeper"
        self.stopped = folder / "stopped"
        for name in ("data", "input", "runs"):
            (folder / name).mkdir()
        folders = {name: str(folder / name) for name in ("data", "input", "runs")}
        self.agent = Agent(LocalLink(), folders)

    def stop_script(self, body="", mode=0o755, shebang="#!/bin/sh\n"):
        """The box's stop command: notes that it was called, then does `body`."""
        path = self.folder / "stop"
        path.write_text(f"{shebang}echo called >>{self.stopped}\n{body}\n")
        path.chmod(mode)
        return str(path)

    def request(self, command=(), rule=QUICK, channels=(), stop=None, **more):
        box = Box(idle=rule, stop=StopRule(command=tuple(command)), price_per_hour=3600.0)
        choice = choose("auto", NOTHING, "")
        plan = {**stop_plan(box, choice, NOTHING), "pauses": [2.0], "verify": 2.0, **(stop or {})}
        asked = arm_request("local", box, rule, {}, plan, choice, "EUR", 5.0)
        extra = {"asked": "x", "mode": "detached", "channels": list(channels)}
        return {**asked, **extra, **more}

    def arm(self, *arguments, **options):
        return self.agent.call("arm", **self.request(*arguments, **options))

    def idle(self):
        return self.agent.call("idle")

    def status(self):
        try:
            return json.loads((self.keeper / "status.json").read_text())
        except FileNotFoundError:
            return None

    def log(self):
        path = self.keeper / "log"
        return path.read_text() if path.exists() else ""

    def calls(self):
        return self.stopped.read_text().count("called") if self.stopped.exists() else 0

    def wait(self, what, seconds=25):
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def end(self):
        self.agent.call("disarm")
        status = self.status()
        if status and keeper_lives(status):
            os.kill(status["pid"], signal.SIGKILL)


class Webhook:
    """A webhook's server; `answer` is a status, "hang" or "redirect"."""

    def __init__(self, answer=200):
        self.got = []
        self.answer = answer
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(json.loads(body))
                if outer.answer == "hang":
                    time.sleep(60)
                    return
                self.send_response(302 if outer.answer == "redirect" else outer.answer)
                if outer.answer == "redirect":
                    self.send_header("Location", outer.url() + "elsewhere")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/s3cret"

    def channel(self):
        return {"name": "hook", "url": self.url()}

    def titles(self):
        return [each["title"] for each in self.got]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
