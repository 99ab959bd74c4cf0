"""Kernels of a GPU: linear layers whose bits do not depend on the other rows of a pass,
fused operations between them, and passes that are replayed from captured graphs."""
