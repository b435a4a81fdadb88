"""The protocol. Read `coordinator` first, then plan, pins, gate, publish, rewind and sweep."""
