"""The model: a checkpoint's states and events, source offsets, and what sinks and sources are asked."""
