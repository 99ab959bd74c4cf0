"""Blocks of models over processes: where each lies, and what that does to latency (BlockLLM, arXiv 2404.18322)."""
