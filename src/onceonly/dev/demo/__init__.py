"""The demo: the flights of 2013, and a pipeline that processes them."""
