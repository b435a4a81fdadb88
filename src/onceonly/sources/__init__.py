"""Where checkpoints read from; one module for each kind of source."""
