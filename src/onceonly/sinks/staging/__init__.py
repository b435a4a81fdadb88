"""What the sinks share: types and text formats of staged rows, the shapes of handles."""
