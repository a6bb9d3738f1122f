"""PURE: the verbs by what one wants to do, and the scripts that complete them in a shell."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

# In the order in which a day with a rented box goes.
GROUPS: dict[str, tuple[str, ...]] = {
    "Get going": ("deploy", "demo", "doctor", "bootstrap", "facts"),
    "Data sets": ("get", "upload", "stage", "data"),
    "Runs": ("launch", "status", "logs", "stop", "resume", "rm"),
    "Results": ("fetch", "evaluate", "compare", "bench"),
    "Look inside": ("tensorboard", "notebook", "shell", "forward"),
    "Money and idleness": ("idle", "hold", "cost", "watch", "down", "up"),
    "Images": ("build", "ship"),
    "Housekeeping": ("gc", "unlock"),
    "Further": ("export", "completion", "help"),
}
OTHERS = "Others"
HIDDEN = ("names",)  # for the shell's completion, not for people


def grouped(verbs: Mapping[str, str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(group, [(verb, what it does)]) for every verb that there is; unplaced ones come last."""
    placed = {verb for names in GROUPS.values() for verb in names}
    groups = [(title, [v for v in names if v in verbs]) for title, names in GROUPS.items()]
    groups.append((OTHERS, sorted(v for v in verbs if v not in placed and v not in HIDDEN)))
    return [(title, [(v, verbs[v]) for v in names]) for title, names in groups if names]


def help_text(verbs: Mapping[str, str]) -> str:
    """What `fab` and `fab help` print."""
    width = max(map(len, verbs)) + 2
    lines = ["usage: fab VERB --host BOX …      fab VERB --help explains one", ""]
    for title, rows in grouped(verbs):
        lines.append(title)
        for verb, what in rows:
            lines += textwrap.wrap(
                what, 80, initial_indent=f"  {verb:<{width}}", subsequent_indent=" " * (width + 2)
            )
        lines.append("")
    return "\n".join(lines)


# After these flags comes a name that the kit knows.
KINDS = {
    "boxes": ("--host", "--hosts", "-H", "--workers"),
    "data": ("--data", "--name"),
    "runs": ("--run", "--runs", "--from"),
}
WORDS = {"data": ("stage",), "runs": ("compare",)}  # verbs whose words are names

BASH = """\
_fab_complete() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} kind=
    case $before in
@FLAGS@    esac
    if [ -z "$kind" ] && [ "${word#-}" = "$word" ] && [ "$COMP_CWORD" -gt 1 ]; then
        case $verb in
@WORDS@        esac
    fi
    local found
    if [ -n "$kind" ]; then
        found=$(fab names --kind $kind 2>/dev/null)
    else
        found=$(fab --complete -- "${COMP_WORDS[*]}" 2>/dev/null)
    fi
    local prefix=; case $word in *,*) prefix=${word%,*}, ;; esac  # a,b: the last one
    COMPREPLY=($(compgen -P "$prefix" -W "$found" -- "${word##*,}"))
}
complete -o default -F _fab_complete fab
"""
ZSH = (
    "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -u; }\n"
    "autoload -Uz bashcompinit && bashcompinit\n" + BASH
)
FISH = """\
function __fab_before; set -l words (commandline -opc); echo $words[-1]; end
complete -c fab -f -n 'not string match -q -- "-*" (commandline -ct)' \
-a '(fab --complete -- (commandline -opc) 2>/dev/null)'
complete -c fab -f -n 'string match -q -- "-*" (commandline -ct)' \
-a '(fab --complete -- (commandline -opc) (commandline -ct) 2>/dev/null)'
@FLAGS@"""


def completion(shell: str) -> str | None:
    """The script for a shell (bash, zsh, fish); None for one that we don't know."""
    if shell in ("bash", "zsh"):
        flags = "".join(f"    {'|'.join(names)}) kind={kind} ;;\n" for kind, names in KINDS.items())
        words = "".join(
            f"        {'|'.join(v)}) kind={kind} ;;\n" for kind, v in WORDS.items() if v
        )
        return (
            (BASH if shell == "bash" else ZSH).replace("@FLAGS@", flags).replace("@WORDS@", words)
        )
    if shell == "fish":
        lines = [
            f"complete -c fab -f -n 'contains -- (__fab_before) {' '.join(names)}' "
            f"-a '(fab names --kind {kind} 2>/dev/null)'\n"
            for kind, names in KINDS.items()
        ]
        return FISH.replace("@FLAGS@", "".join(lines))
    return None
