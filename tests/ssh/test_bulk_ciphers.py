"""Bulk data goes by the quickest cipher of those that the user's ssh allows."""

import pytest

from deploy.effects.target import fastest_first

GCM128, GCM256, CHACHA = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
)


@pytest.mark.parametrize(
    "allowed, chosen",
    [
        ((CHACHA, "aes128-ctr", GCM256, GCM128), [GCM128, GCM256, CHACHA, "aes128-ctr"]),
        ((CHACHA, "aes128-ctr"), None),
        ((), None),
    ],
)
def test_the_order_changes_and_nothing_is_added(allowed, chosen):
    found = fastest_first(allowed).get("Ciphers")
    assert (found and found.split(",")) == chosen
