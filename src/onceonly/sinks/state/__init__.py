"""Application state, published with the checkpoint that changed it: begin with `sink`."""
