"""What we measure against others; `python -m bench.NAME [--quick] [--json] [--check]`."""
