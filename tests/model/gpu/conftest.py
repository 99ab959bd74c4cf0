"""Kernels of a GPU, by Triton's interpreter where there is none."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
