"""The commands: arguments and messages, one class each."""
