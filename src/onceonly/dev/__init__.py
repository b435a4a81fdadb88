"""Trying Onceonly on one machine: the demo, a broker and a Spark server."""
