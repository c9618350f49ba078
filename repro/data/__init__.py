"""Documents to packed token files, the split, the leakage check, and the order in which blocks are drawn."""
