"""The commands: their arguments and messages, one class for each.

A command imports its work when it is executed: ``--help`` loads the modules of all
commands, and would wait seconds for Beam.
"""
