"""Benchmarks that run both sides in one go and print ratios; `python -m bench.NAME`."""

import os

# Where a machine's owner has set it, each start of the kit would compile all of its modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
