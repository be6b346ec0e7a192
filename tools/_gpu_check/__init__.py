"""The sections of gpu_check.py; they need nothing but torch, numpy and what they check."""
