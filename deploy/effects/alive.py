"""A transport that notices a dead link: it asks for a sign of life and closes when none comes."""

from __future__ import annotations

import threading
import time
from typing import Any

import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST

PING_SECONDS = 5  # of our own silence, before we ask
DEAD_SECONDS = 20  # without one packet from the box; every kind of packet counts


class LiveTransport(paramiko.Transport):  # type: ignore[misc]
    """paramiko's own keepalive asks for no answer, so that a frozen link would be for ever."""

    def __init__(self, sock: Any, **options: Any) -> None:
        super().__init__(sock, **options)
        self.went_silent = False
        self._heard = time.monotonic()
        self._read = self.packetizer.read_message
        self.packetizer.read_message = self._read_and_note

    def watch(self) -> None:
        """From now on (the login is done), end the connection after DEAD_SECONDS of silence."""
        self._heard = time.monotonic()
        self.packetizer.set_keepalive(PING_SECONDS, self._ping)
        threading.Thread(target=self._end_when_silent, daemon=True).start()

    def _read_and_note(self) -> Any:
        message = self._read()
        self._heard = time.monotonic()
        return message

    def _ping(self) -> None:
        request = paramiko.Message()
        request.add_byte(cMSG_GLOBAL_REQUEST)
        request.add_string("keepalive@openssh.com")
        request.add_boolean(True)  # wants an answer, be it "no such request"
        self._send_user_message(request)

    def _end_when_silent(self) -> None:
        while self.is_active():
            left = self._heard + DEAD_SECONDS - time.monotonic()
            if left <= 0:
                self.went_silent = True
                self.close()
            else:
                time.sleep(left)
