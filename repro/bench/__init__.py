"""Performance as ratios: ours against a peer, measured side by side, after both were shown to do the same."""
