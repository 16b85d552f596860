"""The commands: their arguments and messages, one class for each."""
