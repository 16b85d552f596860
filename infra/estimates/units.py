"""Figures with a unit a person can read."""


def size(size_bytes: float) -> str:
    """Bytes, in thousands.

    Example:
        >>> size(1_530_000_000)
        '1.53 GB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:,.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.3g} TB"


def duration(hours: float) -> str:
    """Hours, or what there is of one in minutes or seconds.

    Example:
        >>> duration(30.25), duration(0.25), duration(0.002)
        ('30.2 h', '15 min', '7.2 s')
    """
    if hours >= 1:
        return f"{hours:,.1f} h"
    return f"{hours * 60:.2g} min" if hours * 60 >= 1 else f"{hours * 3600:.2g} s"
