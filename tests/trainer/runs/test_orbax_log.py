import warnings
from collections.abc import Coroutine

from trainer.runs.orbax_log import hide_unstarted_writes


def async_serialize_from_host() -> Coroutine[None, None, None]:
    """Has the name of Orbax's function, which is in the name of its coroutines."""

    async def write_fragment() -> None: ...

    return write_fragment()


async def ours() -> None: ...


def test_only_orbax_s_unstarted_writes_are_hidden() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async_serialize_from_host()
        assert len(caught) == 1
        assert "async_serialize_from_host" in str(caught[0].message)
        hide_unstarted_writes()
        async_serialize_from_host()
        assert len(caught) == 1
        ours()
        assert len(caught) == 2
