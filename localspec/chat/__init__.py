"""Conversations: prompts, turns, and the loop that keeps them going."""
