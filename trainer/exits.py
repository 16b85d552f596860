"""Exit codes of ``python -m trainer``; launchers tie what they do next to them."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DIVERGED = 3
EXIT_STALLED = 4
# sysexits.h EX_TEMPFAIL: saved, and the same command goes on. Cluster restart
# policies are tied to it.
EXIT_PREEMPTED = 75
EXIT_INTERRUPTED = 130
