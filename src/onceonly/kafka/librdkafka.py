"""librdkafka's producer by its C API: a whole batch of records in one call.

`confluent_kafka.Producer.produce` takes one record per call. Preparing the call costs as much as sending the record,
and the batches that a partition gets meanwhile are so small that the broker has several times as many to append. Here
the columns of an Arrow batch are passed at once, and librdkafka copies the records out of them.

`confluent_kafka.Producer.produce_batch` (2.16.1) does not replace this. It drops the headers of a message without an
error, raises NotImplementedError for a timestamp, and ignores a message's own partition. It also takes one dict per
record, which is what costs the time.

The library is the one that confluent_kafka brings, with its settings and errors. Source: rdkafka.h, a stable interface.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from time import monotonic
from typing import Any

import pyarrow as pa

COPY = 2  # RD_KAFKA_MSG_F_COPY
UNASSIGNED = -1  # a partition that the record's key decides
PRODUCER = 0  # RD_KAFKA_PRODUCER
ERROR_TEXT_BYTES = 512  # of an error message
RETRY_WAITS = (0.02, 0.02, 0.02, 0.04, 0.08, 0.16, 0.32)  # seconds that the first calls of init_transactions wait
# One argument of rd_kafka_produceva: END, TOPIC, then these
RKT, PARTITION, VALUE, KEY, _, FLAGS, TIMESTAMP, _, HEADERS = range(2, 11)
FIXED_ARGUMENTS = (RKT, PARTITION, VALUE, KEY, FLAGS, TIMESTAMP)  # of each record; headers follow, if it has any
Pointer, Int, Text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
FailureCallback = Callable[[int, str, str, int], None]  # error code, what it means, topic, partition
Headers = list[tuple[str, bytes | None]] | None


class Message(ctypes.Structure):
    """rd_kafka_message_t, which reports a delivery."""

    _fields_ = (("error", Int), ("topic", Pointer), ("partition", ctypes.c_int32))  # and more, which is not read


DeliveryCallback = ctypes.CFUNCTYPE(None, Pointer, ctypes.POINTER(Message), Pointer)
ErrorCallback = ctypes.CFUNCTYPE(None, Pointer, Int, Text, Pointer)
SIGNATURES: Mapping[str, tuple[Any, ...]] = {  # result, arguments
    "conf_new": (Pointer,),
    "conf_set": (Int, Pointer, Text, Text, Pointer, ctypes.c_size_t),
    "conf_destroy": (None, Pointer),
    "conf_set_dr_msg_cb": (None, Pointer, DeliveryCallback),
    "conf_set_error_cb": (None, Pointer, ErrorCallback),
    "conf_set_log_cb": (None, Pointer, Pointer),
    "new": (Pointer, Int, Pointer, Pointer, ctypes.c_size_t),
    "destroy": (None, Pointer),
    "topic_new": (Pointer, Pointer, Text, Pointer),
    "topic_name": (Text, Pointer),
    "topic_destroy": (None, Pointer),
    "init_transactions": (Pointer, Pointer, Int),
    "begin_transaction": (Pointer, Pointer),
    "produce_batch": (Int, Pointer, ctypes.c_int32, Int, Pointer, Int),
    "produceva": (Pointer, Pointer, Pointer, ctypes.c_size_t),
    "headers_new": (Pointer, ctypes.c_size_t),
    "header_add": (Int, Pointer, Text, ctypes.c_ssize_t, Text, ctypes.c_ssize_t),
    "headers_destroy": (None, Pointer),
    "poll": (Int, Pointer, Int),
    "flush": (Int, Pointer, Int),
    "outq_len": (Int, Pointer),
    "err2str": (Text, Int),
    "last_error": (Int,),
    "fatal_error": (Int, Pointer, Pointer, ctypes.c_size_t),
    "error_code": (Int, Pointer),
    "error_string": (Text, Pointer),
    "error_is_fatal": (Int, Pointer),
    "error_is_retriable": (Int, Pointer),
    "error_destroy": (None, Pointer),
}


class Producer:
    """A producer with its threads. They end when it is closed or dropped; an open transaction stays open then.

    After an error it has to be closed: the error holds on to it, and its threads would go on to send what waits.

    Args:
        config: librdkafka's settings, without callbacks.
        failed: called from `poll` and `flush` for each record that was not delivered, and for a fatal error.
    Raises:
        KafkaException: a setting that librdkafka refuses.
    """

    def __init__(self, config: Mapping[str, Any], failed: FailureCallback) -> None:
        self._lib = _library()
        callbacks = _callbacks(self._lib, failed)
        self._handle = _start(self._lib, config, callbacks)
        self._topics: dict[str, int] = {}
        self._end = weakref.finalize(self, _end, self._lib, self._handle, self._topics, callbacks)
        self._end.atexit = False  # the process takes the threads with it

    def close(self) -> None:
        """End its threads, as often as it is called. What waits is not sent, and nothing else can be called."""
        self._end()

    def __len__(self) -> int:
        """Return the number of records that are not acknowledged yet."""
        return int(self._lib.outq_len(self._handle))

    def begin(self, timeout: float) -> None:
        """Fence earlier producers of the transactional id, and begin a transaction."""
        self._init_transactions(monotonic() + timeout)
        self._raise_error(self._lib.begin_transaction(self._handle))

    def _init_transactions(self, deadline: float) -> None:
        """Fence earlier producers, by short calls first.

        librdkafka waits 500 ms if no broker is connected at the moment when it is asked. So the first calls get little
        time and are repeated; the last one gets all the time that remains.
        """
        for wait in RETRY_WAITS:
            error = self._call_init(min(wait, deadline - monotonic()))
            if not error or not self._lib.error_is_retriable(error):
                return self._raise_error(error)
            self._lib.error_destroy(error)
        return self._raise_error(self._call_init(deadline - monotonic()))

    def _call_init(self, seconds: float) -> int | None:
        """Call librdkafka once, and return its error or null."""
        error: int | None = self._lib.init_transactions(self._handle, max(int(seconds * 1000), 1))
        return error

    def poll(self, seconds: float) -> None:
        """Wait for reports of failures, `seconds` at most."""
        self._lib.poll(self._handle, int(seconds * 1000))

    def flush(self, seconds: float) -> int:
        """Send what waits. Returns how many records are not acknowledged after `seconds`."""
        self._lib.flush(self._handle, int(seconds * 1000))
        return len(self)

    def queue(self, topic: str, records: Records) -> int:
        """Queue records in their order, as many as there is room for; returns how many.

        Raises:
            KafkaException: one was refused.
        """
        topic_pointer = self._topic_pointer(topic)
        if records.plain:
            return self._queue_at_once(topic_pointer, records)
        return self._queue_one_by_one(topic_pointer, records)

    def _queue_at_once(self, topic: int, records: Records) -> int:
        """Queue records without partition, timestamp and headers, by one call for all of them."""
        messages = records.messages()
        self._lib.produce_batch(topic, UNASSIGNED, COPY, messages.ctypes.data, len(messages))
        errors = messages["error"]
        refusals = errors[(errors != 0) & (errors != _queue_full_code())]
        if len(refusals):
            code = int(refusals[0])
            raise _exception(code, self._lib.err2str(code).decode())
        return int((errors == 0).sum())  # once the queue is full, librdkafka takes none of the rest

    def _queue_one_by_one(self, topic: int, records: Records) -> int:
        """Queue records by one call for each, with all that a record may have."""
        produce, arguments, row_size = self._lib.produceva, records.arguments(topic), len(FIXED_ARGUMENTS) + 1
        start, step = arguments.ctypes.data, arguments.itemsize * row_size
        headers = records.headers()
        for row in range(len(records)):
            argument_count = len(FIXED_ARGUMENTS)
            if headers is not None and headers[row]:
                arguments[row, row_size - 1]["number"] = self._copy_headers(headers[row])
                argument_count = row_size
            if error := produce(self._handle, start + row * step, argument_count):
                if argument_count == row_size:  # otherwise librdkafka owns them now
                    self._lib.headers_destroy(int(arguments[row, row_size - 1]["number"]))
                if self._lib.error_code(error) != _queue_full_code():
                    self._raise_error(error)
                self._lib.error_destroy(error)
                return row
        return len(records)

    def _copy_headers(self, headers: Any) -> int:
        """Return a new rd_kafka_headers_t with these. The caller owns it until a record was queued with it."""
        headers_pointer: int = self._lib.headers_new(len(headers))
        for name, value in headers:
            encoded_name = name.encode()
            self._lib.header_add(headers_pointer, encoded_name, len(encoded_name), value, len(value or b""))
        return headers_pointer

    def _topic_pointer(self, name: str) -> int:
        """Return the rd_kafka_topic_t of that name, which lives as long as the producer."""
        if name not in self._topics:
            pointer = self._lib.topic_new(self._handle, name.encode(), None)
            if not pointer:
                code = self._lib.last_error()
                raise _exception(code, self._lib.err2str(code).decode())
            self._topics[name] = pointer
        return self._topics[name]

    def _raise_error(self, error: int | None) -> None:
        """Raise what librdkafka returned, unless it is null."""
        if error:
            code, text = self._lib.error_code(error), self._lib.error_string(error).decode()
            self._lib.error_destroy(error)
            raise _exception(code, text)


class Records:
    """Rows for one topic, with the columns value, key, partition, timestamp and headers."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        is_placed = any(batch.column(name).null_count < len(batch) for name in ("partition", "timestamp"))
        self.plain = not is_placed and not len(batch.column("headers").flatten())

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def skip(self, count: int) -> Records:
        """Return the records without the first `count` ones."""
        return Records(self._batch.slice(count))

    def messages(self) -> Any:
        """Return an array of rd_kafka_message_t. It refers to the memory of the batch."""
        import numpy as np

        names = ("error", "topic", "partition", "value", "value_size", "key", "key_size", "offset", "own")
        kinds = ("i4", "u8", "i4", "u8", "u8", "u8", "u8", "i8", "u8")
        messages = np.zeros(len(self), np.dtype({"names": names, "formats": kinds}, align=True))
        for name in ("value", "key"):
            messages[name], messages[f"{name}_size"] = _pointers(self._batch.column(name))
        return messages

    def arguments(self, topic: int) -> Any:
        """Return a row of rd_kafka_vu_t for each record, with room for headers.

        It refers to the memory of the batch.
        """
        import numpy as np

        layout = np.dtype([("kind", "i8"), ("number", "i8"), ("size", "u8"), ("rest", "V48")])
        arguments = np.zeros((len(self), len(FIXED_ARGUMENTS) + 1), layout)
        arguments["kind"] = [*FIXED_ARGUMENTS, HEADERS]
        numbers, sizes = arguments["number"], arguments["size"]
        numbers[:, 0], numbers[:, 4] = topic, COPY
        numbers[:, 1] = _numbers(self._batch.column("partition"), UNASSIGNED)
        numbers[:, 2], sizes[:, 2] = _pointers(self._batch.column("value"))
        numbers[:, 3], sizes[:, 3] = _pointers(self._batch.column("key"))
        numbers[:, 5] = _numbers(self._batch.column("timestamp"), 0)  # 0: now
        return arguments

    def headers(self) -> list[Headers] | None:
        """Return the headers of each record, or None if no record has any."""
        column = self._batch.column("headers")
        if not len(column.flatten()):
            return None
        headers: list[Headers] = []
        for row in column.to_pylist():
            headers.append(row and [(header["key"], header["value"]) for header in row])
        return headers


def _pointers(column: pa.Array) -> tuple[Any, Any]:
    """Return address and size of each value in the memory of the column; address 0: null."""
    import numpy as np

    if column.null_count == len(column):
        return 0, 0
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, "i4")[column.offset : column.offset + len(column) + 1].astype("u8")
    start = offsets.address  # all values are empty: any address but 0
    if data is not None and data.size:
        start = data.address
    addresses, sizes = ends[:-1] + start, ends[1:] - ends[:-1]
    if column.null_count:
        is_valid = column.is_valid().to_numpy(zero_copy_only=False).astype("u8")
        return addresses * is_valid, sizes * is_valid
    return addresses, sizes


def _numbers(column: pa.Array, empty: int) -> Any:
    """Return the numbers of the column, with `empty` in place of null."""
    if column.null_count == len(column):
        return empty
    return column.fill_null(empty).to_numpy(zero_copy_only=False)


# ---- the library


class _Library:
    """The functions of librdkafka, without their prefix."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:  # for the type checker: all names are there
        raise AttributeError(name)


@cache
def _library() -> _Library:
    """Return the functions of the library that confluent_kafka has loaded."""
    from confluent_kafka import cimpl

    shared_library, functions = ctypes.CDLL(cimpl.__file__), {}
    for name, (result, *arguments) in SIGNATURES.items():
        functions[name] = function = getattr(shared_library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return _Library(functions)


def _start(lib: _Library, config: Mapping[str, Any], callbacks: Iterable[Any]) -> int:
    """Start a producer and return its handle. Raises KafkaException: a setting that librdkafka refuses."""
    settings, error_text = lib.conf_new(), ctypes.create_string_buffer(ERROR_TEXT_BYTES)
    delivery_callback, error_callback = callbacks
    for key, value in config.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if lib.conf_set(settings, key.encode(), text.encode(), error_text, ERROR_TEXT_BYTES):
            lib.conf_destroy(settings)
            raise _exception(_invalid_setting_code(), error_text.value.decode())
    lib.conf_set_dr_msg_cb(settings, delivery_callback)
    lib.conf_set_error_cb(settings, error_callback)
    lib.conf_set_log_cb(settings, None)  # what matters is raised as an error
    handle: int | None = lib.new(PRODUCER, settings, error_text, ERROR_TEXT_BYTES)
    if not handle:
        lib.conf_destroy(settings)
        raise _exception(_invalid_setting_code(), error_text.value.decode())
    return handle


def _callbacks(lib: _Library, failed: FailureCallback) -> tuple[Any, Any]:
    """Return the callbacks for delivery reports and for errors, which call `failed`."""
    fatal_code = _code("_FATAL")

    def report_delivery(_: int, message: Any, __: int) -> None:
        if code := message.contents.error:
            topic = lib.topic_name(message.contents.topic).decode()
            failed(code, lib.err2str(code).decode(), topic, message.contents.partition)

    def report_error(handle: int, code: int, _: bytes, __: int) -> None:
        if code == fatal_code:
            text = ctypes.create_string_buffer(ERROR_TEXT_BYTES)
            failed(lib.fatal_error(handle, text, ERROR_TEXT_BYTES), text.value.decode(), "", UNASSIGNED)

    return DeliveryCallback(report_delivery), ErrorCallback(report_error)


def _end(lib: _Library, handle: int, topics: Mapping[str, int], callbacks: Any) -> None:
    """End the producer's threads. `callbacks` are kept until now, because librdkafka may call them."""
    for topic in topics.values():
        lib.topic_destroy(topic)
    lib.destroy(handle)


def _exception(code: int, text: str) -> Exception:
    from confluent_kafka import KafkaError, KafkaException

    exception: Exception = KafkaException(KafkaError(code, text))
    return exception


def _code(name: str) -> int:
    """Return the number of the error that confluent_kafka names so."""
    from confluent_kafka import KafkaError

    return int(getattr(KafkaError, name))


@cache
def _queue_full_code() -> int:
    return _code("_QUEUE_FULL")


@cache
def _invalid_setting_code() -> int:
    return _code("_INVALID_ARG")
