"""The model: a checkpoint's states and events, source offsets, and the interfaces of sinks and sources."""
