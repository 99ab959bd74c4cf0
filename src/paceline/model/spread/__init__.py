"""A mixture over several processes: each holds some experts, and tokens go to where theirs are expected to be
(Speculative MoE, arXiv 2503.04398)."""
