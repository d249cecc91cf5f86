"""Measuring what guessing brings on this machine: workloads, runs and their report."""
