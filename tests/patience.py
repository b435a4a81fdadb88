"""How long a test waits for a condition: the wait ends when the condition holds, however busy the machine is."""

PATIENCE = 300.0  # seconds; pytest's own limit (pyproject.toml) is above it
