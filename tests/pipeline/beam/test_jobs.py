"""The jobs that a cluster receives: names of their steps, and their size."""

import functools
import os
import pickle

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipeline.assembly.append import plan_append
from pipeline.assembly.commit import commit_store
from pipeline.assembly.plan import DEFAULTS, Inputs, describe_inputs, plan_inputs
from pipeline.assembly.relabel import commit_labels, plan_relabelling
from pipeline.beam import pipelines
from pipeline.collection.staging import EpisodePlan
from pipeline.sources.base import Description
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store.manifest import FieldSpec
from tests.parts import write_alone

LENGTHS = (5, 5, 7, 4, 1, 6)
# Half of what Dataflow accepts.
JOB_BYTES = 5_000_000


class DaskRunner(FnApiRunner):
    """Stands for Dask's runner, which `create` knows by its name."""


def job(define, plan, runner="FnApiRunner", **options):
    root = beam.Pipeline(runner=runner)
    define(root, plan, **options)
    return root.to_runner_api()


@pytest.fixture
def jobs(make_npz, make_plan, tmp_path):
    """The job of each pipeline, with the labels of its steps."""
    plan = make_plan(make_npz(LENGTHS))
    commit_store(plan, write_alone(*plan.parts))
    more = describe_inputs(
        [("train", OgbenchNpz(make_npz((6, 9), name="b.npz", seed=5)))]
    )
    append = plan_append(plan.root, more, DEFAULTS)
    relabel = plan_relabelling(plan.root, discounts=(0.5,))
    episodes = [
        EpisodePlan(str(tmp_path), "cube-single-play", "train", i, i, 9)
        for i in range(3)
    ]
    commit = {"CommitStore", "CommitStore/Gather", "CommitStore/Commit"}
    parts = {"Parts", "WriteParts", "WriteParts/Spread", "WriteParts/Write", *commit}
    labels = {"WriteLabels", "WriteLabels/Spread", "WriteLabels/Write"}
    collection = {"CollectEpisodes/Spread", "CollectEpisodes/Collect"}
    return [
        (job(pipelines.define_sharding, plan, runs=2), parts),
        (job(pipelines.define_appending, append, runs=2), parts),
        (job(pipelines.define_relabelling, relabel), {"Parts", *labels, *commit}),
        (
            job(pipelines.define_collection, episodes),
            {"Episodes", "CollectEpisodes", *collection},
        ),
    ]


def test_every_step_has_a_short_label_and_no_plan_appears_in_any_text(jobs):
    for proto, expected in jobs:
        steps = dict(proto.components.transforms)
        for root in proto.root_transform_ids:
            del steps[root]
        names = {step.unique_name for step in steps.values()}
        # Beam labels the steps inside its own steps.
        ours = {
            name
            for name in names
            if name.count("/") < 2 and not name.startswith(("Parts/", "Episodes/"))
        }
        assert ours == expected
        assert max(map(len, names)) <= 100
        for kind in (b"Plan(", b"PartManifest(", b"Content("):
            assert kind not in proto.SerializeToString()


def test_no_job_holds_the_store_s_manifest(make_npz, make_plan):
    """A manifest of a thousand parts is megabytes; the commit gets its digest."""
    plan = make_plan(make_npz((5,) * 60), part_rows=5)
    commit_store(plan, write_alone(*plan.parts))
    assert len(plan.parts) == 60
    more = describe_inputs(
        [("train", OgbenchNpz(make_npz((6, 9), name="b.npz", seed=5)))]
    )
    append = plan_append(plan.root, more, DEFAULTS)
    relabel = plan_relabelling(plan.root, discounts=(0.5,))
    held = os.path.getsize(os.path.join(plan.root, "dataset.json"))
    proto = job(pipelines.define_appending, append, runs=1)
    assert proto.ByteSize() < held / 5
    # Elements of a relabelling hold manifests of parts, and the commit holds none.
    commit = pickle.dumps(functools.partial(commit_labels, relabel.without_parts()))
    assert len(commit) < len(pickle.dumps(relabel)) / 5


def test_a_divided_input_adds_short_steps_and_hardly_a_byte(make_npz, make_plan):
    plan = make_plan(make_npz((5,) * 60), part_rows=5)
    whole = job(pipelines.define_sharding, plan, runs=60)
    divided = job(pipelines.define_sharding, plan, runs=60, divided=True)
    names = {step.unique_name for step in divided.components.transforms.values()}
    assert {"DivideInputs/Spread", "DivideInputs/Divide", "WriteParts/Write"} <= names
    assert max(map(len, names)) <= 100
    assert divided.ByteSize() < 1.2 * whole.ByteSize()
    # Four runs are too few to read the input in advance.
    few = job(pipelines.define_sharding, plan, runs=4, divided=True)
    names = {step.unique_name for step in few.components.transforms.values()}
    assert "DivideInputs/Divide" not in names


def test_dask_alone_is_sent_the_transform_that_it_looks_for(make_npz, make_plan):
    plan = make_plan(make_npz(LENGTHS))
    urns = []
    for runner in ("FnApiRunner", DaskRunner()):
        proto = job(pipelines.define_sharding, plan, runner=runner, runs=2)
        steps = {
            step.unique_name: step for step in proto.components.transforms.values()
        }
        urns.append(steps["Parts"].spec.urn)
    assert urns == [
        python_urns.GENERIC_COMPOSITE_TRANSFORM,
        python_urns.PICKLED_TRANSFORM,
    ]


def test_a_job_of_a_billion_rows_is_small(tasks):
    """A thousand files of 5,000 episodes, a quarter of which end early.

    Lengths are compressed, so their size in the job depends on how much they vary: next
    to nothing if all are equal, 7 MB if all are drawn from 100 to 300.
    """
    random = np.random.default_rng(0)
    fields = {
        "observations": FieldSpec("float32", (28,), "row"),
        "actions": FieldSpec("float32", (5,), "row"),
        "qpos": FieldSpec("float32", (21,), "row"),
        "qvel": FieldSpec("float32", (20,), "row"),
    }
    described = []
    for i in range(1000):
        early = random.random(5000) < 0.25
        lengths = np.where(early, random.integers(2, 231, 5000), 230)
        name = f"cube-single-play-{i:05d}.npz"
        digest = f"sha256:{random.bytes(32).hex()}"
        description = Description(
            "ogbench_npz", name, digest, fields, tuple(lengths.tolist())
        )
        described.append(
            ("train", OgbenchNpz(f"gs://some-bucket/data/{name}"), description)
        )
    plan = plan_inputs(
        "gs://some-bucket/store",
        Inputs(tuple(described), {}),
        dataset="cube-single-play",
        environment_id="cube-single-v0",
        tasks=tasks,
        discounts=(0.99,),
        versions={"numpy": "0"},
    )
    assert plan.rows > 1_000_000_000
    assert plan.episodes == 5_000_000
    assert len(plan.parts) >= 1000
    proto = job(pipelines.define_sharding, plan, runs=len(plan.parts))
    assert JOB_BYTES / 2 < proto.ByteSize() < JOB_BYTES
    names = [step.unique_name for step in proto.components.transforms.values()]
    assert max(map(len, names)) <= 100
