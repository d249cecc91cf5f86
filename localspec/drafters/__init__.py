"""Where guesses come from: one class a file, all behind the `Drafter` protocol of `engine.types`."""
