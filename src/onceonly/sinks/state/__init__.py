"""Application state, published with the checkpoint that changed it: start reading at `sink`."""
