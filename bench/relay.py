"""Carries TCP ports to others with a round trip of 50 ms, or as long as said: a far box on this machine.

python -m bench.relay "[[OUTER, INNER], …]" [SECONDS]
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial

ROUND_TRIP = 0.05  # seconds


async def relay(pairs: list[list[int]], round_trip: float = ROUND_TRIP) -> None:
    """Carries each first port to the second one, every byte half a round trip late."""

    async def later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            while True:
                data = await reader.read(65536)
                waiting.put_nowait((time.monotonic() + round_trip / 2, data))
                if not data:
                    return

        reading = asyncio.create_task(read())
        try:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except OSError:
            pass
        finally:
            reading.cancel()

    async def serve(port: int, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        await asyncio.sleep(round_trip)  # the connection itself costs one
        try:
            far, there = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(later(near, there), later(far, back))
            there.close()
        except OSError:
            pass
        back.close()

    alive: set[asyncio.Task[None]] = set()  # the loop itself holds tasks weakly

    def taken(inner: int, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(inner, near, back))
        alive.add(task)
        task.add_done_callback(alive.discard)

    servers = [
        await asyncio.start_server(partial(taken, inner), "127.0.0.1", outer)
        for outer, inner in pairs
    ]
    await asyncio.gather(*(each.serve_forever() for each in servers))


if __name__ == "__main__":
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else ROUND_TRIP
    asyncio.run(relay(json.loads(sys.argv[1]), seconds))
