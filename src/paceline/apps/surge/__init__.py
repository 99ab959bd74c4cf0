"""SURGE: predict what programs print, of eight kinds, and score it against what they print when run."""
