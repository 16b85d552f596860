"""The commands of ``python -m trainer``, one file each."""
