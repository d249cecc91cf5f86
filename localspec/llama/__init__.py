"""The one boundary to llama.cpp: nothing outside this package imports llama_cpp."""
