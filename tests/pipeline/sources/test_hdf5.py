import pytest

from pipeline.sources import hdf5
from pipeline.store.errors import DataFormatError


def test_what_is_no_hdf5_is_refused():
    with (
        pytest.raises(DataFormatError, match="expected a whole HDF5"),
        hdf5.opened(__file__),
    ):
        pass
