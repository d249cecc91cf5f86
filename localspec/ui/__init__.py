"""What the terminal shows: streams, colours, the live line. Knows no models."""
