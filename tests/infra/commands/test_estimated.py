"""Hours and sizes that a launch estimates are by measured rates, which it names."""

from infra.estimates.measured import MEASURED
from tests.infra.command_lines import (
    DATAFLOW,
    FLINK,
    FLINK_CLUSTER,
    GPU,
    SHARD,
    SPARK,
    TPU,
    TRAIN,
    documents,
    printed,
)


def test_hours_are_by_the_rate_that_is_named(capsys):
    rate = next(r for r in MEASURED.update_rates if r.platform == "cpu")
    local = f"{TRAIN} --target local --out runs/one"
    setting = (
        f"--agent.width {rate.agent['width']} --trainer.batch-size {rate.batch_size} "
        f"--trainer.seeds {rate.seeds}"
    )
    _, error = printed(capsys, f"{local} -- {setting}")
    assert f"updates at {rate.updates_per_s:g} updates/s ({rate.source})" in error
    for other in ("width 512", "depth 2", "flow-steps 1", "precision bfloat16"):
        _, error = printed(capsys, f"{local} -- {setting} --agent.{other}")
        assert "hours not known" in error
        assert "updates at" not in error
    _, error = printed(capsys, f"{local} -- {setting} --agent iql")
    assert "no measured rate of iql at width 64, depth 4, float32, batch 256" in error
    _, error = printed(capsys, f"{TPU} --chips 16 --updates-per-s 100")
    assert "2.8 h, 44.4 chip hours for 1,000,000 updates at 100" in error
    _, error = printed(capsys, f"{TPU} --chips 16")
    assert "hours not known: no measured rate of vast at width 512, depth 4" in error
    assert "at the very least" in error
    _, error = printed(capsys, f"{GPU} --chips 8 --spot")
    assert "gives 15 s to save" in error


def test_collections_are_estimated_by_their_own_rates(capsys):
    collect = (
        "launch pipeline --target local --max-workers 2 --dry-run "
        "--out gs://vast-data/x --episodes 1000 --dataset"
    )
    _, error = printed(capsys, f"{collect} cube-triple-play")
    # 1,001,000 rows of 400 bytes, by two processes of 290 rows/s: 1,726 s.
    assert "1,001,000 rows, store about 400 MB" in error
    assert "about 29 min" in error
    assert "by cube-triple-play's 290 rows/s a core" in error
    _, error = printed(capsys, f"{collect} pointmaze-medium-navigate")
    # 27 bytes a row, and two processes of 12,318 rows/s: 41 s.
    assert "1,001,000 rows, store about 27 MB" in error
    assert "about 41 s" in error
    assert "by pointmaze-medium-navigate's 12,318 rows/s a core" in error
    # Other data of the same environment are named.
    _, error = printed(capsys, f"{collect} cube-single-noisy")
    assert "by cube-single-play's 393 rows/s a core" in error
    _, error = printed(capsys, f"{collect} puzzle-4x6-play")
    assert "1,001,000 rows, its store's size not known" in error
    assert "hours not known: no rate of collection was measured for puzzle-4" in error


def test_sharding_does_not_become_faster_with_cores_that_idle(capsys):
    shard = f"{SHARD} --rows 100000000"
    # 20 machines of 366,195 rows/s, which two cores give: 13.7 s.
    for machine in ("n2-standard-2", "n2-standard-32"):
        _, error = printed(capsys, f"{shard} {DATAFLOW} --machine-type {machine}")
        assert "about 14 s with all of them busy" in error
        assert "by cube-triple-play's 366,195 rows/s on 2 cores, for 20 files," in error
    # A task manager that is made for the job has two cores as well.
    _, error = printed(capsys, f"{shard} {FLINK_CLUSTER}")
    assert "about 14 s with all of them busy" in error
    pools = [
        container["resources"]["requests"]["cpu"]
        for document in documents(f"{shard} {FLINK_CLUSTER}")
        if document["kind"] == "FlinkDeployment"
        for container in document["spec"]["taskManager"]["podTemplate"]["spec"][
            "initContainers"
        ]
    ]
    assert pools == ["2"]
    _, error = printed(capsys, f"{shard} {FLINK} --max-workers 20")
    assert "about 27 s with all of them busy" in error
    own = shard.replace("--dataset cube-triple-play", "--dataset own-walks")
    assert own != shard
    _, error = printed(capsys, f"{own} {DATAFLOW}")
    assert "100,000,000 rows, its store's size not known" in error
    assert "about 14 s with all of them busy" in error
    _, error = printed(capsys, f"{shard} {SPARK}")
    assert "hours not known: Spark decides how many cores it uses; 0.2 core" in error
