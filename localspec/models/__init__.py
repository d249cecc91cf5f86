"""Which file to run, and which may guess for which. Knows no llama.cpp."""
