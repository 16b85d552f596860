"""The notebook runs from top to bottom in a folder of its own."""

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[1] / "notebooks/own_data.ipynb"


@pytest.mark.slow
# The warnings come from the kernel's libraries, which this project does not use.
@pytest.mark.filterwarnings("ignore")
def test_own_data_becomes_a_policy(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    said = "".join(each.text for each in outputs if each.output_type == "stream")
    assert "rewards float32 () row_and_task" in said
    (solved,) = re.findall(r"reached the goal from (\d+) of 20", said)
    (walks,) = re.findall(r"(\d+)% of the walks", said)
    assert int(walks) < 15
    assert int(solved) >= 10
    assert any("image/png" in each.get("data", {}) for each in outputs)


def test_no_output_is_kept_with_it() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 5
    for cell in code:
        assert (cell.outputs, cell.execution_count) == ([], None)
        compile(cell.source, str(NOTEBOOK), "exec")
