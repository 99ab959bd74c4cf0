"""Learned orders for `cluster.workflow`: small networks on PyTorch, and how they are trained."""
