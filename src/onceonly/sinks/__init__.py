"""Exactly-once outputs. Each passes the contract suite in tests/contract."""
