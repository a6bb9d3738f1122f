"""PURE: bare words after a verb become the value of one of its flags, before Fabric reads them."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def words_as_flag(
    tokens: Sequence[str], verb: str, flag: str, switches: Collection[str]
) -> list[str]:
    """`forward 6006 --host b` as `forward --port 6006 --host b`; several words get commas between.

    Fabric's own positional arguments would swallow --help. `tokens` is the command line after
    Fabric's own flags; it is returned as it was where it is not this verb's. `switches` are the
    flags (`--json`) that take no value; what follows any other flag is its value.
    """
    if not tokens or tokens[0] != verb:
        return list(tokens)
    words: list[str] = []
    rest: list[str] = []
    for before, token in zip(tokens, tokens[1:], strict=False):
        is_value = before.startswith("-") and "=" not in before and before not in switches
        bare = not token.startswith("-") and not is_value
        (words if bare else rest).append(token)
    return [verb, *([f"--{flag}", ",".join(words)] if words else []), *rest]
