"""Sweeps: what each sampler proposes, and the trials of a study."""
