"""The edge: SSH, the laptop's engine, calls of the agent on the box, local files."""
