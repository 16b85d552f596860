import contextlib
import threading

import pytest

from pipeline.cli import main
from pipeline.collection import scripted
from pipeline.domains.environments import seed_numpy


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--discounts", "7"], "--discounts: expected discounts in (0, 1], got 7"),
        (["--npz", "data.txt"], "--npz: expected a file name ending in .npz"),
    ],
)
def test_options_that_are_used_last_are_checked_first(tmp_path, capsys, wrong, message):
    arguments = ["collect", "cube-single-v0", "--dataset-type", "noisy"]
    arguments += ["--episodes", "1", "--max-rows", "20"]
    assert main([*arguments, "--out", str(tmp_path / "store"), *wrong]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_collection_is_the_same_where_threads_of_one_process_make_it(
    tmp_path, read_tree, monkeypatch
):
    """Flink, Prism and other runners give one worker several bundles at once."""
    arguments = ["collect", "cube-single-v0", "--dataset-type", "noisy"]
    arguments += ["--episodes", "4", "--max-rows", "20"]
    assert main([*arguments, "--out", str(tmp_path / "plain")]) == 0
    threads, both = set(), threading.Barrier(2)

    @contextlib.contextmanager
    def seeded(seed):
        with seed_numpy(seed):
            # Seeds of episodes are not 0. Without a lock, both threads would meet here.
            if seed:
                threads.add(threading.get_ident())
                with contextlib.suppress(threading.BrokenBarrierError):
                    both.wait(2)
            yield

    monkeypatch.setattr(scripted, "seed_numpy", seeded)
    together = ["--workers", "2", "--", "--direct_running_mode=multi_threading"]
    assert main([*arguments, "--out", str(tmp_path / "threads"), *together]) == 0
    assert len(threads) == 2
    assert read_tree(tmp_path / "threads") == read_tree(tmp_path / "plain")
