"""Every schedule of a few processes, up to a bound: the real coordinator on parts and a state table in memory."""
