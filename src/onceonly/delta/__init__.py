"""What the log of a Delta table looks like: its files, actions, checkpoints, transaction identifiers and protocol."""
