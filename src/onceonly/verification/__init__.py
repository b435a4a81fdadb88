"""Proof after the fact: does every record that a pipeline has read show in its targets, once?

The state table is read once, sources and targets are asked, and nothing of theirs is changed. What is found is kept in
a table beside the state table, so that what was right while it could be seen stays "right when checked on …".
"""
