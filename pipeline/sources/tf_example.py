"""Decodes TensorFlow's protobuf message ``Example`` without TensorFlow.

The message is described here, because TensorFlow is the only maintained package that
ships its description. Field numbers are those of tensorflow/core/example/feature.proto.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import DataFormatError

# The three kinds of values of a feature: field number, name and type.
_LISTS = (
    (1, "bytes_list", "TYPE_BYTES"),
    (2, "float_list", "TYPE_FLOAT"),
    (3, "int64_list", "TYPE_INT64"),
)


def parse(record: bytes, where: str) -> dict[str, npt.NDArray[Any]]:
    """Decodes the numeric features of an ``Example``.

    Args:
        record: The encoded message.
        where: File and record, for the error.

    Returns:
        Values of each numeric feature by name, ``f32[n]`` or ``i64[n]``.

    Raises:
        DataFormatError: If the bytes are no such message.
    """
    from google.protobuf.message import DecodeError

    try:
        features: Mapping[str, Any] = _message().FromString(record).features.feature
    except (DecodeError, UnicodeDecodeError) as error:
        raise DataFormatError(
            f"{where}: expected a tf.train.Example, got other bytes ({error}); write "
            "the data set with tfds"
        ) from error
    values: dict[str, npt.NDArray[Any]] = {}
    for name, feature in features.items():
        kind = feature.WhichOneof("kind")
        if kind == "float_list":
            values[name] = np.array(feature.float_list.value, np.float32)
        elif kind == "int64_list":
            values[name] = np.array(feature.int64_list.value, np.int64)
    return values


@functools.cache
def _message() -> Any:
    """Builds the message's class, once per process.

    The class lives in a descriptor pool of its own: if TensorFlow is imported too, the
    default pool already has a message of this name.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="tensorflow", syntax="proto3"
    )

    def add(message: Any, number: int, name: str, of: str, repeated: bool) -> Any:
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        field = message.field.add(name=name, number=number, label=label)
        if of.startswith("TYPE_"):
            field.type = getattr(kinds, of)
        else:
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".tensorflow.{of}"
        return field

    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name, of in _LISTS:
        values = file.message_type.add(name=name)
        add(values, 1, "value", of, repeated=True)
        add(feature, number, name, name, repeated=False).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, 1, "key", "TYPE_STRING", repeated=False)
    add(entry, 2, "value", "Feature", repeated=False)
    add(features, 1, "feature", "Features.FeatureEntry", repeated=True)
    example = file.message_type.add(name="Example")
    add(example, 1, "features", "Features", repeated=False)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("tensorflow.Example")
    )
