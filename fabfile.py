"""The command line: one task per verb. `fab --list` shows them, `fab VERB --help` explains one."""

from __future__ import annotations

from typing import Any

from deploy.command import verb


@verb()
def facts(desk: Any) -> Any:
    """What a box is: system, folders, engine, GPUs."""
    from deploy.verbs.facts import facts

    return facts(desk)


@verb(name="which one: mnist")
def get(desk: Any, name: str = "mnist") -> Any:
    """Fetch a public data set by name to the laptop, checked by its checksums."""
    from deploy.verbs.get import get

    return get(desk, name)
