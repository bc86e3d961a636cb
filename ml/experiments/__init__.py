"""The paper's experiments, its way and ours side by side. Run by `lethe paper` and `lethe bench forget`."""
