"""A provider takes the machine back: the notice is read from a local server as from AWS or Google."""

import http.server
import threading

import pytest

from deploy.onbox.preemption import aws_notice, gcp_notice
from deploy.onbox.tending import tend

LOOP = """
step = newest()
try:
    while True:
        step += 1
        progress(step, 10**6)
        time.sleep(0.02)
except Ending:
    publish(step)
    sys.exit(75)
"""


class Metadata(http.server.BaseHTTPRequestHandler):
    """Answers as the metadata services do; `notice` turns the notices on."""

    notice = False
    token_needed = True

    def do_PUT(self):
        self._answer(200, "a-token")

    def do_GET(self):
        if "spot/instance-action" in self.path:
            if self.headers.get("X-aws-ec2-metadata-token") != "a-token":
                return self._answer(401, "")
            return self._answer(*((200, '{"action": "stop"}') if self.notice else (404, "no")))
        if self.headers.get("Metadata-Flavor") != "Google":
            return self._answer(403, "")
        self._answer(200, "TRUE" if self.notice else "FALSE")

    def _answer(self, code, text):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def metadata(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(Metadata, "notice", False)
    monkeypatch.setenv("GPUBOX_METADATA", f"http://127.0.0.1:{server.server_port}")
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_what_each_service_says(metadata):
    assert (aws_notice(metadata), gcp_notice(metadata)) == ("", "")
    Metadata.notice = True
    assert (aws_notice(metadata), gcp_notice(metadata)) == ("AWS spot", "Google spot")


def test_no_answer_is_no_notice():
    assert aws_notice("http://127.0.0.1:9") == ""
    assert gcp_notice("http://127.0.0.1:9") == ""


@pytest.mark.slow
@pytest.mark.parametrize("provider,words", [("aws", "AWS spot"), ("gcp", "Google spot")])
def test_the_run_saves_and_is_interrupted_until_the_next_boot(box, metadata, provider, words):
    run = box.launch(LOOP, provider=provider)["id"]
    Metadata.notice = True
    state = box.until(run, "interrupted")
    assert words in state["ending"]["text"] and state["exit_code"] == 75
    assert state["best_step"] > 0  # saved
    assert tend(box.places) == []  # the machine is about to go: not started again on it
