"""Formats sizes and durations for people."""


def format_size(size_bytes: float) -> str:
    """Formats a number of bytes with a decimal unit (kB is 1000 B).

    Example:
        >>> format_size(1_530_000_000)
        '1.53 GB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:,.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.3g} TB"


def format_duration(seconds: float) -> str:
    """Formats seconds in hours, minutes or seconds, the largest unit that fills one.

    Example:
        >>> format_duration(108_900), format_duration(900), format_duration(7.2)
        ('30.2 h', '15 min', '7.2 s')
    """
    minutes, hours = seconds / 60, seconds / 3600
    if hours >= 1:
        return f"{hours:,.1f} h"
    return f"{minutes:.2g} min" if minutes >= 1 else f"{seconds:.2g} s"
