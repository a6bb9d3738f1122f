"""Runs on the laptop (onbox aside): plans, effects and verbs of the kit."""
