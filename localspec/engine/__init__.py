"""Pure decoding: numbers in, numbers out. Imports numpy and nothing of ours outside this package."""
