import base64
import json
import struct
import zlib

import google_crc32c
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from pipeline.cli import main
from pipeline.sources import records
from pipeline.sources.detection import find_sources
from pipeline.sources.episode_reader import ReaderSource
from pipeline.sources.episodes import cut
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from tests.fuzz import MUTATIONS, drill, mutate_bytes, mutate_json

STEPS = (5, 3, 7, 4)
READER = "pipeline.sources.rlds:RldsReader"
TFDS = "tensorflow_datasets.core.features"


# One record of one file, and its features.json, as TFDS 4.9.10 wrote them with
# TensorFlow 2.21: three steps of observations count, goal [2, 2], gripper, state [3],
# an image, of action [2], reward and a text.
TFDS_RECORD = (
    "eNr7z8QABv6FjFFcf1i5FLh4iktSC4r1i1LLE4tShASE+Lh41ggk2p/7+W6f7IEN+7gkuHghKjKL"
    "43MSi0uE2KVYuZgZGBi51LikUgsyi/NTUuNzU0sSUxJLEvXTMnNS4wsSSzKEOLjYuFjKEnMMuWS4"
    "BOEmlKQW5WbmJebATGHg0uGSgsjmJOallyamp8Zn5hWXFJUml2Tm54Fcw8WUng/HulySENX5ScWp"
    "RWWJIEX66UWZBQWpRRDHd5YH7l9XUL2fd7KDPZckFx/c6rTMIpjrGYH2fmHkEsc0KjMX6AKhG4xc"
    "Vxm5XDsD/Nx5uaS4gM7k9fRwCQLSLCDMAQpEtcmcmkCKx9PFMYRjZnKCgiyQZ8LAqOzcXAoKYU9X"
    "P5d1TglNg8wYJWy+Ts4vzYNFLCMTMEqgiSIREgkyQlJcElXnpexPccnt33Ve2z47+v6+r6XF+yvm"
    "b7Tj8uMSwxIl+cA4NhEy4jIIncO4/8F/cfsW5RR7a7cldozX5+/P275gX9SsWFu/1d12mvZNdtYH"
    "59gXhM7Y1z3Rfz+XMzYXFpcklqQKaQipcakccTy5d3bPYdsHhwRtQww697dJZdnLxizZk6RRaHc/"
    "38m+nPvyfqA3oRGfklkM8R04cTAwNNjD8OQO2R4AxcDeAg=="
)
TFDS_FEATURES = (
    "eNrNlk1PwzAMhv9LzqUSGwe0KxMSFy5wQ6jyWreLlCYhdhnTxH/HCWu1A4ypqNoqVY3z8fqJazfd"
    "qRqBu4C01CWrxW6wYxu9Jldh0SJDBQyH4z/Nr7XBwgOvo+G3vHb2zgDRI7SoForRkgu1cZsiqhEy"
    "5aULmPcaOeMHF3srfxZDZSr2id6nXNko0b5RVIKc3x/yiyIxehrLu+8ekJfftlATvnVoSzwI0V/R"
    "g5K1s+NDF2ccBC+aKXypIaoVb33UEhXg+UzGBNBV2jbSaZ3FiL0Gn0Ar3cpC4RG0FzVTryn8labS"
    "dZbHQlIJBkL+lB6j4RKKpqLWgSZEWTlnTuIQv5eAwRhabcGcG8WAbTposNCWOHT/zOojH4RMuRVh"
    "eIfew7HqmjhvtT0paxs3/v1MXOHZUOVN0N5juIQibyWP4sqh0Ut0EvDb37dzI0PxnsctjTs2kssh"
    "2g8JIJ0XwHiRrzDtdaJTMuAGQnX2jJhmcwZtE/9Z1NW1msbHF+5aauM="
)
TFDS_OBSERVATIONS = [
    [0.0, -0.5063, 0.5937, 0.8912, 0.3208, -0.8182, -0.0983, 0.0955, 0.0356],
    [1.0, -1.2487, -0.3139, 0.0541, 0.2728, -0.9822, -1.0718, 0.9145, -0.0201],
    [2.0, 0.2544, 1.2246, -0.2975, -0.8108, 0.7522, 0.2355, 0.7595, -1.6488],
]
TFDS_ACTIONS = [[0.6047, -0.6174], [0.6711, -0.4362]]
TFDS_REWARDS = [0.8792, -0.4667]


def make_episodes(counts=STEPS):
    """Steps of each episode; all but the second end in a terminal state."""
    random = np.random.default_rng(0)
    return [
        {
            "observation/state": random.normal(size=(n, 3)).astype("f4"),
            "observation/goal": random.normal(size=(n, 2, 2)).astype("f4"),
            "action": random.uniform(-1, 1, (n, 2)).astype("f4"),
            "reward": random.normal(size=n).astype("f4"),
            "is_first": np.arange(n) == 0,
            "is_last": np.arange(n) == n - 1,
            "is_terminal": (np.arange(n) == n - 1) & (number != 1),
        }
        for number, n in enumerate(counts)
    ]


def varint(value):
    digits = []
    while value >= 128:
        digits.append(value % 128 + 128)
        value //= 128
    return bytes([*digits, value])


def field(number, data):
    return varint(8 * number + 2) + varint(len(data)) + data


def to_record(frames):
    """An episode as tfds writes it, a tf.train.Example of protobuf's wire format."""
    features = b""
    for name, values in frames.items():
        if values.dtype.kind == "f":
            feature = field(2, field(1, values.astype("<f4").tobytes()))
        else:
            feature = field(3, field(1, b"".join(map(varint, values.ravel().tolist()))))
        features += field(1, field(1, f"steps/{name}".encode()) + field(2, feature))
    image = field(1, field(1, b"png") * len(frames["reward"]))
    features += field(1, field(1, b"steps/observation/image") + field(2, image))
    return field(1, features)


def masked(data):
    value = google_crc32c.value(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) % 2**32)


def write_records(path, records):
    if "array_record" in path.name:
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
        return
    with path.open("wb") as stream:
        for record in records:
            size = struct.pack("<Q", len(record))
            stream.write(size + masked(size) + record + masked(record))


def tensor(*sizes, dtype="float32"):
    shape = {"dimensions": [str(size) for size in sizes]} if sizes else {}
    return {
        "pythonClassName": f"{TFDS}.tensor_feature.Tensor",
        "tensor": {"shape": shape, "dtype": dtype, "encoding": "none"},
    }


def features_dict(**features):
    return {
        "pythonClassName": f"{TFDS}.features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }


def describe(**changes):
    step = {
        "observation": features_dict(
            state=tensor(3),
            goal=tensor(2, 2),
            image={"pythonClassName": f"{TFDS}.image_feature.Image", "image": {}},
        ),
        "action": tensor(2),
        "reward": tensor(),
        **{n: tensor(dtype="bool") for n in ("is_first", "is_last", "is_terminal")},
        "language_instruction": {"pythonClassName": f"{TFDS}.text_feature.Text"},
        **changes,
    }
    step = {name: feature for name, feature in step.items() if feature is not None}
    return features_dict(
        steps={
            "pythonClassName": f"{TFDS}.dataset_feature.Dataset",
            "sequence": {"feature": features_dict(**step), "length": "-1"},
        },
        episode_metadata=features_dict(file_path={"text": {}}),
    )


def write_rlds(root, splits, form="tfrecord", shards=2, **changes):
    """A data set in the layout of tfds."""
    root.mkdir(parents=True)
    info = []
    for split, episodes in splits.items():
        records = [to_record(frames) for frames in episodes]
        pieces = [records[number::shards] for number in range(shards)]
        for number, piece in enumerate(pieces):
            name = f"toy-{split}.{form}-{number:05d}-of-{shards:05d}"
            write_records(root / name, piece)
        lengths = [str(len(piece)) for piece in pieces]
        info.append({"name": split, "shardLengths": lengths})
    (root / "features.json").write_text(json.dumps(describe(**changes)))
    (root / "dataset_info.json").write_text(json.dumps({"splits": info}))
    return ReaderSource(READER, f"{root}/features.json")


def read_all(source, rows=1000):
    blocks = list(source.read(cut(source.describe().episodes, rows)))
    return {n: np.concatenate([b.rows[n] for b in blocks]) for n in blocks[0].rows}


def expected_rows(frames):
    """The steps: the last one's action and reward mean nothing."""
    n = len(frames["reward"])
    goal = frames["observation/goal"].reshape(n, 4)
    rows = {
        "observations": np.hstack([goal, frames["observation/state"]]),
        "actions": frames["action"].copy(),
        "rewards": frames["reward"].copy(),
        "masks": np.append(~frames["is_terminal"][1:], True),
    }
    rows["actions"][-1] = rows["rewards"][-1] = 0
    return rows


@pytest.mark.parametrize("rows", [4, 1000])
@pytest.mark.parametrize("form", ["tfrecord", "array_record"])
def test_both_kinds_of_files_are_read_as_the_same(tmp_path, form, rows):
    episodes = make_episodes()
    source = write_rlds(tmp_path / "toy" / "1.0.0", {"train": episodes}, form)
    facts = source.describe()
    assert facts.name == "toy/1.0.0"
    in_order = [*episodes[::2], *episodes[1::2]]
    assert facts.lengths == tuple(len(each["reward"]) for each in in_order)
    assert facts.fields["observations"].unit == "side by side: goal[4], state[3]"
    assert facts.ignored == ("is_first", "language_instruction", "observation/image")
    found = read_all(source, rows)
    for name in found:
        values = np.concatenate([expected_rows(each)[name] for each in in_order])
        np.testing.assert_array_equal(found[name], values)


def test_what_tfds_wrote_is_read(tmp_path):
    for name, text in (
        ("toy-train.tfrecord-00000-of-00001", TFDS_RECORD),
        ("features.json", TFDS_FEATURES),
    ):
        (tmp_path / name).write_bytes(zlib.decompress(base64.b64decode(text)))
    source = ReaderSource(READER, f"{tmp_path}/features.json")
    facts = source.describe()
    assert facts.lengths == (3,)
    assert facts.fields["observations"].unit == (
        "side by side: count[1], goal[4], gripper[1], state[3]"
    )
    assert "observation/image" in facts.ignored
    found = read_all(source)
    np.testing.assert_allclose(found["observations"], TFDS_OBSERVATIONS, atol=5e-5)
    np.testing.assert_allclose(found["actions"][:-1], TFDS_ACTIONS, atol=5e-5)
    np.testing.assert_allclose(found["rewards"][:-1], TFDS_REWARDS, atol=5e-5)
    assert found["masks"].tolist() == [True, True, True]


def test_splits_are_those_of_the_files(tmp_path, capsys):
    episodes = make_episodes()
    splits = {"train": episodes[:2], "val": episodes[2:3], "test": episodes[3:]}
    root = tmp_path / "toy"
    write_rlds(root, splits, shards=1)
    out = str(tmp_path / "store")
    assert main(["shard", str(root), "--dataset", "toy", "--out", out]) == 0
    assert "splits not used: test" in capsys.readouterr().out
    store = Store(out)
    for split in ("train", "val"):
        for name in ("observations", "actions"):
            rows = [expected_rows(each)[name] for each in splits[split]]
            found = store.read(name, split=split)
            np.testing.assert_array_equal(found, np.concatenate(rows))
    assert main(["verify", out, "--deep"]) == 0


def cut_short(root):
    path = root / "toy-train.tfrecord-00001-of-00002"
    path.write_bytes(path.read_bytes()[:-5])


def lose_a_record(root):
    path = root / "toy-train.tfrecord-00001-of-00002"
    data = path.read_bytes()
    path.write_bytes(data[: 16 + struct.unpack("<Q", data[:8])[0]])


def flip_a_bit(root):
    path = root / "toy-train.tfrecord-00001-of-00002"
    data = bytearray(path.read_bytes())
    data[100] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut_short, r"00001-of-00002: record 1 cannot be read \(the file ends in it"),
        (flip_a_bit, r"record 0 cannot be read \(its checksum is another"),
        (lose_a_record, r"expected 4 episodes, as dataset_info\.json says, got 3"),
        (
            lambda root: (root / "toy-train.tfrecord-00000-of-00002").unlink(),
            "expected all files of the split train, got those of 1",
        ),
        (
            lambda root: [path.unlink() for path in root.glob("*.tfrecord-*")],
            "found nothing",
        ),
    ],
)
def test_files_that_are_not_whole_are_refused(tmp_path, spoil, message):
    root = tmp_path / "toy"
    write_rlds(root, {"train": make_episodes()})
    spoil(root)
    with pytest.raises((DataFormatError, UsageError), match=message) as said:
        read_all(find_sources(str(root), dataset="toy")[1][0][1])
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action": features_dict(arm=tensor(2))}, "action, reward and is_terminal"),
        ({"reward": None}, "expected steps with observation, action, reward"),
        ({"observation": {"image": {}}}, "besides is_first"),
        ({"action": tensor(3)}, r"expected action of 5 steps, \[3\] each, got 10"),
        ({"action": tensor(2, dtype="string")}, "expected steps with"),
    ],
)
def test_steps_that_cannot_be_kept_are_refused(tmp_path, changes, message):
    source = write_rlds(tmp_path / "toy", {"train": make_episodes()}, **changes)
    with pytest.raises(DataFormatError, match=message) as said:
        source.describe()
    assert "\n" not in str(said.value)


def test_records_of_anything_else_are_refused(tmp_path):
    root = tmp_path / "toy"
    source = write_rlds(root, {"train": make_episodes()}, shards=1)
    write_records(root / "toy-train.tfrecord-00000-of-00001", [b"\xff" * 9])
    with pytest.raises(DataFormatError, match=r"record 0: expected a tf\.train\.Ex"):
        source.describe()


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(tmp_path, count):
    root = tmp_path / "toy"
    episodes = make_episodes((3, 2))
    source = write_rlds(root, {"train": episodes}, shards=1)
    (root / "dataset_info.json").unlink()
    data = root / "toy-train.tfrecord-00000-of-00001"
    described = root / "features.json"
    valid = {path: path.read_bytes() for path in (data, described)}
    records = [to_record(frames) for frames in episodes]

    def mutate(draw):
        kind = draw.randrange(3)
        if kind == 0:
            return lambda: described.write_bytes(mutate_json(valid[described], draw))
        if kind == 1:
            return lambda: data.write_bytes(mutate_bytes(valid[data], draw))
        # With good checksums, as whoever means harm writes them.
        return lambda: write_records(
            data, [mutate_bytes(each, draw) for each in records]
        )

    def read(spoil):
        spoil()
        try:
            with np.errstate(all="ignore"):
                read_all(source)
        finally:
            for path, before in valid.items():
                path.write_bytes(before)

    found = drill(mutate, read, count=count)
    assert found.read > 0 < found.refused


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_damage_of_array_records_ends_in_a_traceback(tmp_path, count):
    root = tmp_path / "toy"
    source = write_rlds(
        root, {"train": make_episodes((3, 2))}, "array_record", shards=1
    )
    data = root / "toy-train.array_record-00000-of-00001"
    valid = data.read_bytes()
    # Most of its 128 kB are zeros that are skipped.
    used = [place for place, byte in enumerate(valid) if byte]

    def mutate(draw):
        if draw.random() < 0.5:
            return mutate_bytes(valid, draw)
        spoilt = bytearray(valid)
        spoilt[draw.choice(used)] ^= 1 << draw.randrange(8)
        return bytes(spoilt)

    def read(spoilt):
        data.write_bytes(spoilt)
        read_all(source)

    found = drill(mutate, read, count=count)
    assert found.read > 0 < found.refused


@pytest.mark.parametrize("declared", [True, False])
def test_files_before_those_of_a_worker_are_not_read_through(
    tmp_path, monkeypatch, declared
):
    source = write_rlds(tmp_path / "toy", {"train": make_episodes()})
    *_, last = cut(source.describe().episodes, 4)
    if not declared:
        (tmp_path / "toy" / "dataset_info.json").unlink()
    counted, count = [], records.count_records
    monkeypatch.setattr(
        records, "count_records", lambda *file: counted.append(file) or count(*file)
    )
    (block,) = source.read([last])
    assert block.lengths.tolist() == list(last.lengths)
    assert (counted == []) == declared


def test_files_of_another_number_of_episodes_than_declared_are_refused(tmp_path):
    """Workers find their episodes by the declared numbers."""
    source = write_rlds(tmp_path / "toy", {"train": make_episodes()})
    info = {"splits": [{"name": "train", "shardLengths": ["1", "3"]}]}
    (tmp_path / "toy" / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(DataFormatError, match=r"00000-of-00002: expected 1 ep.*got 2"):
        source.describe()


def test_another_number_of_episodes_is_refused_though_the_files_are_others(tmp_path):
    source = write_rlds(tmp_path / "toy", {"train": make_episodes()})
    info = {"splits": [{"name": "train", "shardLengths": ["9"]}]}
    (tmp_path / "toy" / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(DataFormatError, match=r"toy: expected 9 episodes.*got 4"):
        source.describe()
