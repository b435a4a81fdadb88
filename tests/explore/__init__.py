"""Every schedule of a few processes, up to a bound: the real coordinator on sources, sinks and a state table in memory."""
