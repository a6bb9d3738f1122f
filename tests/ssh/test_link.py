"""The way to a box over a real sshd: control over Fabric, bulk data over the system's ssh."""

import pytest

pytestmark = pytest.mark.sshd


def both_ways(link, command):
    """What a command prints by way of the control connection and by way of the bulk stream."""
    control = link.run(command)
    stream = link.stream(command)
    stream.stdin.close()
    bulk = stream.stdout.read()
    assert (control.code, stream.wait()) == (0, 0)
    stream.close()
    return control.stdout, bulk


def test_both_ways_reach_the_box(sshd):
    server = sshd()
    link = server.link()
    assert both_ways(link, 'echo "$HOME"') == (f"{server.home}\n".encode(),) * 2
    link.close()
