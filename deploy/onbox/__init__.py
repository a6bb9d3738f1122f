"""Runs on the box, from one zipapp: standard library only, Python 3.8 or newer."""
