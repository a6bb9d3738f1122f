"""A headless Chromium that tests steer over its debugging pipe: pages, requests, sizes, pictures."""

import base64
import contextlib
import json
import os
import shutil
import subprocess

import pytest


class Page:
    """One page; `requests` holds every address that it asked for, `errors` what its scripts threw."""

    def __init__(self, process, send_fd, receive_fd):
        self.process, self._send_fd = process, send_fd
        self._receive = os.fdopen(receive_fd, "rb", buffering=0)
        self._count, self._buffer, self._session = 0, b"", None
        self.requests, self.errors = [], []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self(f"{domain}.enable")

    def __call__(self, method, **params):
        """Send one command of the DevTools protocol and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send_fd, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("id") == self._count:
                assert "error" not in heard, heard["error"]
                return heard["result"]

    def _next(self):
        while b"\0" not in self._buffer:
            more = self._receive.read(1 << 16)
            assert more, "Chromium ended"
            self._buffer += more
        message, self._buffer = self._buffer.split(b"\0", 1)
        heard = json.loads(message)
        if heard.get("method") == "Network.requestWillBeSent":
            self.requests.append(heard["params"]["request"]["url"])
        if heard.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.errors.append(heard["params"])
        return heard

    def size(self, width, height, mobile=False):
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if mobile else 1,
            mobile=mobile,
        )

    def open(self, url):
        self("Page.navigate", url=url)
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def js(self, expression):
        result = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def picture(self, path):
        shot = self("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def chromium(folder):
    """A Page of its own browser, with its profile under `folder`."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    to_browser, to_us = os.pipe(), os.pipe()

    def as_3_and_4():
        ends = [os.dup(to_browser[0]), os.dup(to_us[1])]
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe"
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *flags.split(), f"--user-data-dir={folder / 'profile'}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=False,
            preexec_fn=as_3_and_4,
        )
    os.close(to_browser[0])
    os.close(to_us[1])
    try:
        yield Page(process, to_browser[1], to_us[0])
    finally:
        process.terminate()
        process.wait(20)
        os.close(to_browser[1])
