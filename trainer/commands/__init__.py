"""The commands of ``python -m trainer``, one file each.

A command imports its work when it is executed: ``--help`` loads the modules of all
commands, and would wait seconds for JAX.
"""
