"""Writes the pages that are made from the code; `--check` fails where one is out of date."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from deploy.errors import all_errors  # noqa: E402
from deploy.plan import config  # noqa: E402
from deploy.plan.providers import SURE, table_rows  # noqa: E402

TABLES = {
    "Config": "Top of the file",
    "Box": "`[boxes.NAME]`",
    "StopRule": "`[boxes.NAME.stop]`",
    "IdleRule": "`[idle]` and `[boxes.NAME.idle]`",
    "DataSet": "`[data.NAME]`",
    "RunRule": "`[run]`",
    "FetchRule": "`[fetch]`",
}


def config_page() -> str:
    """Every key of gpubox.toml with its type, default and comment, read from deploy/plan/config.py."""
    source = Path(config.__file__).read_text()
    classes = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)}
    parts = [
        "# gpubox.toml: every key",
        "Made from `deploy/plan/config.py` by `make docs`. The file is looked for in this folder and "
        "those above it, or where `$GPUBOX_CONFIG` says. Unknown keys are refused. Durations are "
        'written with units: `"30m"`, `"1h30m"`.',
    ]
    for name, title in TABLES.items():
        parts += [
            f"## {title}",
            ast.get_docstring(classes[name]) or "",
            _table(classes[name], source),
        ]
    return "\n\n".join(parts) + "\n"


def _table(found: ast.ClassDef, source: str) -> str:
    lines = source.splitlines()
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    for field in found.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            comment = lines[field.end_lineno - 1][field.end_col_offset :].strip().lstrip("# ")
            kind = ast.unparse(field.annotation).replace("|", "or").replace("Literal", "")
            default = ast.unparse(field.value) if field.value else "must be given"
            shown = "" if "default_factory" in default else f"`{_readable(default)}`"
            rows.append(f"| `{field.target.id}` | {kind} | {shown} | {comment} |")
    return "\n".join(rows)


def _readable(default: str) -> str:
    if default.startswith("Seconds("):
        seconds = eval(default.removeprefix("Seconds"))
        for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
            if seconds % size == 0:
                return f'"{seconds // size}{unit}"'
    return re.sub(r"Name\(('[^']*')\)", r"\1", default)


def errors_page() -> str:
    """Every kind of error with its exit code, read from deploy/errors.py."""
    rows = [f"| {kind.exit_code} | `{kind.__name__}` | {kind.meaning} |" for kind in all_errors()]
    return "\n".join([ERRORS_HEAD, *rows]) + "\n"


ERRORS_HEAD = """\
# Errors and exit codes

Made from `deploy/errors.py` by `make docs`. An error is one line on stderr, what happened and
where, and under it what to do next. With `--json` the answer on stdout is
`{"schema": 1, "error": {"kind", "message", "hint", "exit_code"}}`; with `--debug` a traceback
follows on stderr, the box's own one as well where the fault was there. 0 means that all was done,
130 that Ctrl-C ended it. `fab doctor` ends with the code of the worst thing that it found.

| exit code | kind | meaning |
|---|---|---|"""


def providers_page() -> str:
    """What a stop does at each provider, read from deploy/plan/providers.py."""
    rows = ["| " + " | ".join(cells) + " |" for cells in table_rows()]
    sure = [f"- **{mark}**: {meaning}" for mark, meaning in SURE.items()]
    return "\n".join([PROVIDERS_HEAD.format(sure="\n".join(sure)), *rows]) + "\n"


PROVIDERS_HEAD = """\
# What a stop does, provider by provider

Made from `deploy/plan/providers.py` by `make docs`. Read in November 2026 from pages of varying
age, on boxes that the kit's authors have not rented: defaults to be checked, and overridden by
`boxes.NAME.provider` and `[boxes.NAME.stop]`. The last column says how sure each row is:

{sure}

A box is taken for a provider's when two marks say so (variables, files, DMI, the metadata
address, the SSH host's name), or when `provider` names it. Any other box is reminded about and
never switched off. `fab idle --arm` shows what was found.

| provider | how it is stopped | the bill | the data | from outside | sure |
|---|---|---|---|---|---|"""

# What the lines of the README's table of figures are called in its Chinese sister.
FIGURES = {
    "what": "内容",
    "measured": "实测",
    "bench": "基准",
    "convolutional net, rate against the plain TensorFlow-1 program (CPU time)": (
        "卷积网络,速度与原始 TensorFlow-1 程序之比(CPU 时间)"
    ),
    "BP network, the same": "BP 网络,同上",
    "test accuracy: BP, 30,000 steps, three seeds": "测试准确率:BP,30,000 步,三个随机种子",
    "convolutional net, 2,000 steps, three seeds; 20,000 steps, six; as a plain TensorFlow-1 "
    "program, three": ("卷积网络,2,000 步,三个随机种子;20,000 步,六个;原始 TensorFlow-1 程序,三个"),
    "a checkpoint every 1,000 steps costs": "每 1,000 步存一个检查点的代价",
    "100,000 small files over a slow line (50 ms, 100 Mbit/s): share of the line's rate; files per "
    "second against Fabric `put`, `scp -r`; time against `rsync -a`": (
        "慢线路(50 ms、100 Mbit/s)上传 100,000 个小文件:占线路速率的比例;每秒文件数与 Fabric "
        "`put`、`scp -r` 之比;用时与 `rsync -a` 之比"
    ),
    "100,000 small files over loopback: time against `tar \\| ssh tar`, which checks and syncs "
    "nothing": "本机回环上传 100,000 个小文件:用时与不校验也不落盘的 `tar \\| ssh tar` 之比",
    "one file of 1 GiB over loopback: rate against the best of `scp`, `rsync -a`, `tar \\| ssh tar`": (
        "本机回环上传一个 1 GiB 的文件:速率与 `scp`、`rsync -a`、`tar \\| ssh tar` 中最快者之比"
    ),
    "100,000 files with nothing changed: over loopback, and by `rsync -a`; over the slow line": (
        "100,000 个文件毫无改变:本机回环,以及 `rsync -a`;慢线路"
    ),
    "staging 20,000 small files from a disk with 10 ms an operation, against `cp -r`; from a plain "
    "folder there; at 1 ms": (
        "从每次操作 10 ms 的盘搬运 20,000 个小文件,与 `cp -r` 之比;从那里的普通文件夹;1 ms 时"
    ),
    "the same at 10 ms, against the best of `rclone` and a thread pool; time against unpacking a tar "
    "from the local disk": "同上,10 ms,与 `rclone` 和线程池中最快者之比;用时与从本地盘解 tar 之比",
    "one file changed, one added, one removed among 100,000: bytes sent; time over loopback": (
        "100,000 个文件中改一个、加一个、删一个:发送的字节数;本机回环用时"
    ),
    "a changed 3 MiB layer of the image: bytes sent; time against `docker save \\| ssh docker load`": (
        "镜像中 3 MiB 的一层改变:发送的字节数;用时与 `docker save \\| ssh docker load` 之比"
    ),
    "`import tensorflow` in a new container, from start to end; without our start": (
        "新容器中 `import tensorflow`,从启动到结束;不用我们的启动文件时"
    ),
    "CPU image; GPU image": "CPU 镜像;GPU 镜像",
    "requests of a warm `fab deploy`; of `fab status`": (
        "一切已就绪时 `fab deploy` 的请求数;`fab status` 的请求数"
    ),
    "a warm `fab deploy` to the first step, beyond what the program itself needs there": (
        "一切已就绪时 `fab deploy` 到第一步为止,程序自身所需之外的用时"
    ),
    "`fab status` of 100 boxes at 50 ms, all on the same two cores: time; memory; time against "
    "`ssh BOX true` for each": (
        "`fab status` 查看 100 台机器(往返 50 ms,都在同样两个核心上):用时;内存;"
        "用时与逐台 `ssh BOX true` 之比"
    ),
    "a changed workload: bytes sent; time against `docker save` alone": (
        "只改训练程序:发送的字节数;用时与单独 `docker save` 之比"
    ),
    "the keeper: memory; share of one core at a look every 15 s": (
        "看守程序:内存;每 15 秒查看一次时占一个核心的比例"
    ),
    "the keeper, 10,000 random days: stopped at work, left idle, over a cap; of the money saved": (
        "看守程序,随机的 10,000 天:工作时被关、闲置未关、超出上限的次数;省下的钱"
    ),
}


def chinese_readme() -> str:
    """README.zh-CN.md with the table of figures of README.md: the same figures in both. A line
    whose translation is missing stays in English."""
    english = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.search(r"## Figures.*?(^\|.*?)\n\n", english, re.DOTALL | re.MULTILINE)
    text = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
    before, mark, rest = text.partition("<!-- made from README.md by `make docs` -->\n")
    if table is None or not mark:
        raise SystemExit("README.md or README.zh-CN.md: the table of figures is not found")
    rows = "\n".join(map(_in_chinese, table[1].splitlines()))
    return before + mark + rows + "\n\n" + rest.partition("\n\n")[2]


def _in_chinese(row: str) -> str:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1]]
    shown = [FIGURES.get(cell, cell).replace("CPU time", "CPU 时间") for cell in cells]
    return row if set(row) <= set("|-") else f"| {' | '.join(shown)} |"


PAGES = {
    "config.md": config_page,
    "errors.md": errors_page,
    "providers.md": providers_page,
    "../README.zh-CN.md": chinese_readme,
}


def main(check: bool) -> int:
    """Write the pages, or with `check` name those that differ and return 1."""
    stale = []
    for name, make in PAGES.items():
        page = DOCS / name
        text = make()
        if check and (not page.exists() or page.read_text(encoding="utf-8") != text):
            stale.append(name)
        elif not check:
            page.write_text(text, encoding="utf-8")
    if stale:
        sys.stderr.write(f"out of date: docs/{', docs/'.join(stale)}; run `make docs`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
