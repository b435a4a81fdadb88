"""The flights of 2013, and a pipeline that runs on them."""
