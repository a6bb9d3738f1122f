"""What every verb works with: the config, the voice, the flags, and boxes opened by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deploy.console import Show
from deploy.effects.agent import Agent
from deploy.effects.link import Link, LocalLink
from deploy.effects.settings import beside_config, load_config
from deploy.plan.config import Box, Config, box_named


class Outcome(NamedTuple):
    """What a verb answers where its exit code is not simply 0."""

    results: Any
    exit_code: int


@dataclass
class Desk:
    """One command's surroundings; `hosts` are the boxes it was asked to work on."""

    show: Show
    hosts: list[str]
    dry_run: bool = False
    accept_new: bool = False
    config: Config = field(default_factory=load_config)
    named: bool = True  # the user said which boxes; else it is the default one

    def box(self, name: str) -> Box:
        return box_named(self.config, name)

    @contextmanager
    def open(self, name: str, ahead: str = "") -> Iterator[Agent]:
        """The agent of a box; the connection is closed when the block ends.

        ahead: the command of a stream that will be begun, on its way while we log in
        """
        box = self.box(name)
        link = self._link(name, box, ahead)
        try:
            yield Agent(link, folders_of(box))
        finally:
            link.close()

    def _link(self, name: str, box: Box, ahead: str) -> Link:
        if (box.host or name) == "local":
            return LocalLink()
        from deploy.effects.hostkeys import HostKeys
        from deploy.effects.ssh import SshLink  # paramiko takes a while to import

        keys = HostKeys(self.show.ask, self.accept_new, box.fingerprint)
        ssh_config = str(beside_config(self.config.ssh_config)) if self.config.ssh_config else ""
        return SshLink(name, keys, ssh_config, box.user, box.port, box.host, ahead)


def folders_of(box: Box) -> dict[str, str]:
    """The folders that the user named, as every request carries them."""
    named = {"data": box.data, "input": box.input, "runs": box.runs}
    return {key: value for key, value in named.items() if value}
