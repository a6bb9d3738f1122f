"""What we measure against others; `python -m bench.NAME [--quick] [--json] [--check]`."""

import os

# Where a machine's owner has set it, each start of the kit would compile all of its modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
