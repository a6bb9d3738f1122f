"""One file per verb: gather facts, plan, show, stop here if --dry-run, apply."""
