"""Placement of experts by recorded routes, and what it saves (Speculative MoE, arXiv 2503.04398)."""
