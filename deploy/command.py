"""Turns a function into a verb of `fab`: --host, --json, --dry-run, --debug, errors in one red line."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

from fabric.main import program
from fabric.tasks import Task
from invoke import Argument, Exit, ParseError
from invoke.util import helpline

from deploy.plan.help import help_text
from deploy.plan.words import words_as_flag

# Verbs that look at all their boxes at once, at none, or refuse more than one
ALL_AT_ONCE = ("status", "watch", "cost")
AT_NONE = ("compare", "demo", "get", "names", "completion", "export")
ONE_ONLY = ("tensorboard", "notebook", "shell", "forward")
TOGETHER = (*ALL_AT_ONCE, *AT_NONE, *ONE_ONLY)

HELP = {
    "host": "the box to work on: a name in gpubox.toml or in ~/.ssh/config",
    "hosts": "several boxes, with commas between",
    "json": "print one JSON document and nothing else on stdout",
    "dry_run": "show what would be done and why, and stop there",
    "accept_new": "accept a host key that is not known yet (a changed one never)",
    "debug": "show a traceback where there is an error",
}


class VerbTask(Task):  # type: ignore[misc]
    """A task whose `--hosts` is also `-H`, so that all boxes come in one call."""

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        arguments: list[Argument] = super().get_arguments(ignore_unknown_help)
        for argument in arguments:
            if argument.name == "hosts":
                argument.names = ("hosts", "H")
        return arguments


def verb(words: str = "", /, **help: str) -> Callable[[Callable[..., Any]], VerbTask]:
    """Decorate `body(desk, **flags)`; it returns a JSON-able value, an int as exit code,
    or an Outcome of both.

    `help` has a line for each of its flags. Bare words after the verb are the value of its flag
    `words`; they are no positional arguments of Fabric's, since those swallow --help.
    """

    def decorate(body: Callable[..., Any]) -> VerbTask:
        @functools.wraps(body)
        def run(
            context: Any,
            host: str = "",
            hosts: str = "",
            json: bool = False,
            dry_run: bool = False,
            accept_new: bool = False,
            debug: bool = False,
            **flags: Any,
        ) -> None:
            _run(body, host, hosts, json, dry_run, accept_new, debug, flags)

        run.__signature__ = _signature(run, body)  # type: ignore[attr-defined]
        if words:
            _take_words(run, words)
        return VerbTask(run, help={**HELP, **help}, auto_shortflags=False, positional=[])

    return decorate


def _signature(run: Callable[..., Any], body: Callable[..., Any]) -> inspect.Signature:
    common = list(inspect.signature(run, follow_wrapped=False).parameters.values())[:-1]
    own = list(inspect.signature(body).parameters.values())[1:]
    return inspect.Signature([common[0], *own, *common[1:]])


def _run(
    body: Callable[..., Any],
    host: str,
    hosts: str,
    machine: bool,
    dry_run: bool,
    accept_new: bool,
    debug: bool,
    flags: dict[str, Any],
) -> None:
    from deploy.console import Show
    from deploy.errors import KitError
    from deploy.verbs.desk import Desk, Outcome

    show = Show(machine, debug)
    try:
        desk = Desk(show, _hosts(host, hosts), dry_run, accept_new)
        desk.named = bool(desk.hosts)
        desk.hosts = desk.hosts or [desk.config.default_box]
        result = _on_each(body, desk, flags, debug) if _apart(body, desk) else body(desk, **flags)
    except KitError as fault:
        _report(show, fault, debug)
        raise Exit(code=fault.exit_code) from None
    except KeyboardInterrupt:
        show.warn("interrupted; the same command goes on where it was")
        raise Exit(code=130) from None
    except Exception as bug:
        hint = "a fault of the kit: please report it with what --debug prints"
        unforeseen = KitError(f"{type(bug).__name__}: {bug}", hint)
        unforeseen.__cause__ = bug
        _report(show, unforeseen, debug)
        raise Exit(code=KitError.exit_code) from None
    code = result if isinstance(result, int) else 0
    if isinstance(result, Outcome):
        result, code = result
    if machine and not isinstance(result, int):
        show.json({"schema": 1, "verb": body.__name__, "results": result})
    if code:
        raise Exit(code=code)


def _apart(body: Callable[..., Any], desk: Any) -> bool:
    """Whether the verb is done on one box after the other, none hindered by another's failure."""
    return len(desk.hosts) > 1 and body.__name__ not in TOGETHER


def _on_each(body: Callable[..., Any], desk: Any, flags: dict[str, Any], debug: bool) -> Any:
    """The results of all boxes, an error in the place of a failed one's; the first one's exit code."""
    from deploy.errors import KitError
    from deploy.verbs.desk import Outcome

    results: list[Any] = []
    first = 0
    for host in desk.hosts:
        try:
            result = body(dataclasses.replace(desk, hosts=[host]), **flags)
        except KitError as fault:
            _say(desk.show, fault, debug)
            result, code = [{"box": host, "error": _as_json(fault)}], fault.exit_code
        else:
            code = result if isinstance(result, int) else 0
            result, code = result if isinstance(result, Outcome) else (result, code)
        results += result if isinstance(result, list) else [{"box": host, "result": result}]
        first = first or code
    return Outcome(results, first)


def _as_json(fault: Any) -> dict[str, Any]:
    return {
        "kind": type(fault).__name__,
        "message": fault.message,
        "hint": fault.hint,
        "exit_code": fault.exit_code,
    }


def _say(show: Any, fault: Any, debug: bool) -> None:
    show.error(fault)
    if debug:
        traceback.print_exception(fault, file=sys.stderr)
        sys.stderr.write(fault.on_the_box)


def _report(show: Any, fault: Any, debug: bool) -> None:
    _say(show, fault, debug)
    if show.machine:
        show.json({"schema": 1, "error": _as_json(fault)})


def _hosts(host: str, hosts: str) -> list[str]:
    """`--host`, `--hosts`/`-H` after the verb, or Fabric's own `-H` before it; each once."""
    names = [host, *hosts.split(","), *HOSTS_BEFORE_THE_VERB]
    return list(dict.fromkeys(each.strip() for each in names if each.strip()))


def take_hosts_from_fabric() -> list[str]:
    """Fabric would open each host of its own `-H` itself and call the verb once for each; ours
    opens them with host keys checked, and does all in one call."""
    core = getattr(program, "core", None)
    if not core or "hosts" not in core[0].args:
        return []
    argument = core[0].args["hosts"]
    names = (argument.value or "").split(",")
    argument._value = None
    return names


def show_verbs() -> None:
    """Print every verb with its first line, by what one wants to do; `fab --list` does the same."""
    lines = {name: helpline(program.collection[name]) for name in program.collection.task_names}
    sys.stdout.write(help_text({name: line or "" for name, line in lines.items()}))


def _take_words(run: Callable[..., Any], flag: str) -> None:
    core = getattr(program, "core", None)
    if not core:
        return
    switches = [
        ("--no-" if each.default else "--") + each.name.replace("_", "-")
        for each in inspect.signature(run).parameters.values()
        if isinstance(each.default, bool)
    ]
    name = run.__name__.replace("_", "-")
    core.unparsed = words_as_flag(core.unparsed, name, flag, [*switches, "--help", "-h"])


def _hint(word: str) -> str:
    """The nearest verb, or flag of the verb that was typed; else where to read on."""
    typed = program.core.unparsed[:1]
    verbs = [each for each in typed if each in program.parser.contexts]
    flags = [flag for each in verbs for flag in program.parser.contexts[each].flags]
    near = difflib.get_close_matches(word, [*program.collection.task_names, *flags], n=1)
    if near:
        return f"did you mean {near[0]}?"
    if word.startswith("-"):
        return " ".join(["`fab", *verbs, "--help` shows the flags"])
    return f"a box is named by --host {word}; `fab help` shows all verbs"


def _parse_with_a_hint(parse: Callable[[], None]) -> Callable[[], None]:
    """Fabric's reading of the command line, with our exit code and the nearest verb or flag."""

    def parsed() -> None:
        try:
            parse()
        except ParseError as no:
            word = next(iter(re.findall(r"'([^']+)'", str(no))), "")
            raise Exit(f"error: {no}\n  {_hint(word)}", code=2) from None

    return parsed


program.parse_tasks = _parse_with_a_hint(program.parse_tasks)
HOSTS_BEFORE_THE_VERB = take_hosts_from_fabric()
program.list_flat = show_verbs
