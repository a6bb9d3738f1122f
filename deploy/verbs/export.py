"""`fab export`: the run of gpubox.toml as a file for a cluster, where single boxes are outgrown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploy.effects.copies import write_atomically
from deploy.errors import UsageError
from deploy.plan import kubernetes, skypilot
from deploy.plan.export import Export, export_of
from deploy.plan.yaml_text import yaml_text
from deploy.verbs.desk import Desk

TARGETS = ("kubernetes", "skypilot")


def export(desk: Desk, to: str, out: str = "", **asked: Any) -> dict[str, Any]:
    """Print the file, or write it to `out`; `asked` are the flags that export_of takes."""
    if to not in TARGETS:
        raise UsageError(f"--to: expected {' or '.join(TARGETS)}, got {to!r}", "")
    run = export_of(desk.config, **asked)
    document, text = document_of(to, run)
    if out and not desk.dry_run:
        write_atomically(Path(out), text.encode())
        desk.show.done(f"{out}: {document.get('kind', 'task')} {run.name}")
    else:
        for line in text.splitlines():
            desk.show.say(line)
    return {"to": to, "file": out, "document": document}


def document_of(to: str, run: Export) -> tuple[dict[str, Any], str]:
    """The document, and the text with what it takes for granted at its top."""
    made = kubernetes.manifest(run) if to == "kubernetes" else skypilot.task(run)
    notes = kubernetes.notes(run) if to == "kubernetes" else skypilot.notes(run)
    head = "".join(f"# {line}\n" for line in ("Made by `fab export`.", *notes))
    return made, head + yaml_text(made)
