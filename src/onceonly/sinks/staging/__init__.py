"""What the sinks share of staged rows: their types, their text, the shapes of handles."""
