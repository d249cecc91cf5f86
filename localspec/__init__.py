"""localspec: local GGUF models, faster by speculative decoding, with the same text."""

__version__ = "0.1.0"
