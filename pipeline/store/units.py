"""Formats sizes, durations, counts and rates for people."""


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


def format_count(count: int, noun: str) -> str:
    """Formats a number of things; the plural of the noun must end in s.

    Example:
        >>> format_count(1, "part"), format_count(1200, "part")
        ('1 part', '1,200 parts')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_rate(rate: float) -> str:
    """Formats a rate with three digits, or as a whole number, never as 1.26e+03.

    Example:
        >>> format_rate(0.512), format_rate(1264.3)
        ('0.512', '1,264')
    """
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
