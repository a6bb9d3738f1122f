"""report.html: one self-contained page with curves, confusion matrix, misread images, device."""

from __future__ import annotations

import base64
import html
from typing import Any

from workload.progress import duration

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:60rem;color:#1c2330}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}.big{font-size:2.4rem;font-weight:700}
svg{width:100%;height:auto;background:#f7f8fa;border-radius:6px}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem}td,th{padding:.25rem .5rem;text-align:right}
th{font-weight:600}.facts td{text-align:left}.facts th{text-align:left;color:#5b6575}
figure{display:inline-block;margin:.4rem;text-align:center;font-size:.75rem}
figure img{width:72px;height:72px;object-fit:contain;image-rendering:pixelated;background:#000}
.a{stroke:#1667c1}.b{stroke:#d1531d}.key{font-size:.85rem}.key b{padding:0 .3rem}
@media(prefers-color-scheme:dark){body{background:#14171c;color:#e4e8ee}svg{background:#1d222a}
.a{stroke:#6db1ff}.b{stroke:#ff9a62}text{fill:#aab}}
"""
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 220, 56, 24


def page(result: dict[str, Any], rows: list[dict[str, Any]], images: list[bytes]) -> str:
    """The page for a result.json and the rows of its metrics.jsonl.

    images: a PNG for each entry of result["misread"], in that order.
    """
    title = f"{result['model']}: {100 * result['test_accuracy']:.2f} %"
    accuracies = [("accuracy", "a", "on training batches")]
    accuracies.append(("validation_accuracy", "b", "on validation images"))
    body = [
        f"<h1>{_text(result['model'])} on {_text(result['device']['names'][0])}</h1>",
        f'<p><span class="big">{100 * result["test_accuracy"]:.2f} %</span> of '
        f"{result['test_images']} test images right, after {result['step']} steps in "
        f"{duration(result['training_seconds'])} of training.</p>",
        "<h2>Accuracy</h2>" + curves(rows, accuracies),
        "<h2>Loss</h2>" + curves(rows, [("loss", "a", "of the last step")]),
        "<h2>Confusion</h2>" + confusion(result["confusion"], result["class_names"]),
        f"<h2>Misread ({result['misread_total']} in all)</h2>" + misread(result, images),
        "<h2>The run</h2>" + facts(result),
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head><body>"
        f"{''.join(body)}</body></html>\n"
    )


def curves(rows: list[dict[str, Any]], series: list[tuple[str, str, str]]) -> str:
    """Lines over the steps as SVG; series: (key in the rows, class, what it is)."""
    found = []
    for key, look, _ in series:
        points = [(r["step"], r[key]) for r in rows if r.get(key) is not None]
        found.append((look, points))
    every = [point for _, points in found for point in points]
    if not every:
        return "<p>Nothing was measured.</p>"
    last = max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)
    span = (high - low) or 1.0

    def place(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - 8) * x / last
        return f"{across:.1f},{(HEIGHT - BOTTOM - 8) * (high - y) / span + 8:.1f}"

    lines = "".join(
        f'<polyline class="{look}" fill="none" stroke-width="2" '
        f'points="{" ".join(place(x, y) for x, y in points)}"/>'
        for look, points in found
        if points
    )
    labels = (
        f'<text x="4" y="16" font-size="12">{high:.4g}</text>'
        f'<text x="4" y="{HEIGHT - BOTTOM}" font-size="12">{low:.4g}</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 6}" font-size="12" text-anchor="end">step {last}</text>'
    )
    key = "".join(
        f'<svg style="width:1.2rem;background:none" viewBox="0 0 20 8"><path class="{look}" '
        f'stroke-width="3" d="M0 4H20"/></svg><b>{_text(what)}</b>'
        for _, look, what in series
    )
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{lines}{labels}</svg>'
    return f'{picture}<div class="key">{key}</div>'


def confusion(table: list[list[int]], names: list[str]) -> str:
    """The matrix as a table, the more the darker; a row is a true class."""
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    lines = []
    for name, row in zip(names, table, strict=True):
        total = sum(row) or 1
        cells = "".join(
            f'<td style="background:rgba({"22,103,193" if own == name else "209,83,29"},'
            f'{min(1.0, (count / total) * (0.8 if own == name else 8)):.2f})">{count or ""}</td>'
            for own, count in zip(names, row, strict=True)
        )
        lines.append(f"<tr><th>{_text(name)}</th>{cells}</tr>")
    return (
        '<p class="key">A row is what the image shows, a column what it was taken for.</p>'
        f'<div class="wide"><table><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'
    )


def misread(result: dict[str, Any], images: list[bytes]) -> str:
    """Images that were taken for something else, with what they are."""
    names = result["class_names"]
    parts = []
    for entry, image in zip(result["misread"], images, strict=True):
        source = "data:image/png;base64," + base64.b64encode(image).decode()
        said = f"{names[entry['label']]} taken for {names[entry['predicted']]}"
        parts.append(
            f'<figure><img alt="{_text(said)}" src="{source}"><figcaption>{_text(said)}<br>'
            f"no. {entry['index']}</figcaption></figure>"
        )
    return "".join(parts) or "<p>None.</p>"


def facts(result: dict[str, Any]) -> str:
    """Device, versions, times, checksums and arguments as a table."""
    device = result["device"]
    threads = f"{device['intra_threads']} in an operation, {device['inter_threads']} operations"
    rows = {
        "Device": f"{device['count']} x {device['kind'].upper()}: {', '.join(device['names'])}",
        "Threads": threads,
        "Same bits every time": "yes" if device["deterministic"] else "no",
        "Wall time of this start": duration(result["wall_seconds"]),
        "First step after": f"{result['first_step_seconds']} s",
        "Versions": ", ".join(f"{name} {v}" for name, v in result["versions"].items()),
        "SHA-256 of the state": result["state_sha256"],
        "Arguments": ", ".join(f"{name} {v}" for name, v in result["arguments"].items()),
    }
    cells = "".join(f"<tr><th>{k}</th><td>{_text(str(v))}</td></tr>" for k, v in rows.items())
    return f'<div class="wide"><table class="facts">{cells}</table></div>'


def _text(value: str) -> str:
    return html.escape(value, quote=True)
