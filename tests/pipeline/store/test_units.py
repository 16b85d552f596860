import pytest

from pipeline.store.units import format_duration, format_size


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (153_400_000, "153 MB"),
        (1_530_000_000, "1.53 GB"),
        (1.2e13, "12 TB"),
    ],
)
def test_sizes(size_bytes: float, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.04 s"),
        (59, "59 s"),
        (60, "1 min"),
        (80, "1.3 min"),
        (3599, "60 min"),
        (3600, "1.0 h"),
        (5_400_000, "1,500.0 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
