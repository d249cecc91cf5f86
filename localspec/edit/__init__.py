"""Rewriting a file with a model: from the bytes on the disk to the bytes on the disk, and back."""
