"""Malicious checkpoint files, for tests of the readers."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

PROTO, STOP = b"\x80\x02", b"."
FLOATS = 8


def text(value: str) -> bytes:
    """The instruction of a pickle that makes a string."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """The instruction that makes a number."""
    raw = value.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def sized(values: tuple[int, ...]) -> bytes:
    """The instructions that make a tuple of numbers."""
    return b"(" + b"".join(map(number, values)) + b"t"


def named(name: str) -> bytes:
    """The instruction that names a class or function."""
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def storage(key: str = "0", kind: str = "torch.FloatStorage", count: int = FLOATS) -> bytes:
    """The instructions that refer to a storage."""
    return b"(" + text("storage") + named(kind) + text(key) + text("cpu") + number(count) + b"tQ"


HOOKS = named("collections.OrderedDict") + b")R"


def tensor(
    size: tuple[int, ...] = (FLOATS,),
    stride: tuple[int, ...] = (1,),
    *,
    offset: int = 0,
    of: bytes | None = None,
    hooks: bytes = HOOKS,
) -> bytes:
    """The instructions that make a tensor."""
    parts = [of or storage(), number(offset), sized(size), sized(stride), b"\x89", hooks]
    return named("torch._utils._rebuild_tensor_v2") + b"(" + b"".join(parts) + b"tR"


def checkpoint(weight: bytes, beside: bytes = b"") -> bytes:
    """The index of a checkpoint with one weight."""
    model = text("model") + b"}" + text("w") + weight + b"s"
    return PROTO + b"}" + text("state") + b"}" + model + b"s" + beside + b"s" + STOP


def zipped(index: bytes, *, data: bytes = bytes(4 * FLOATS), key: str = "data/0") -> bytes:
    """A file with a custom index, with a valid directory and valid checksums."""
    file = io.BytesIO()
    writer: Any = torch._C.PyTorchFileWriter(file)
    for name, content in {"data.pkl": index, "byteorder": b"little", key: data}.items():
        writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return file.getvalue()


def plain_file() -> bytes:
    """A small checkpoint that has nothing wrong."""
    file = io.BytesIO()
    torch.save({"state": {"model": {"w": torch.arange(8.0), "b": torch.ones(3)}}, "rng": [{"n": 1}]}, file)
    return file.getvalue()


WELL_FORMED = frozenset(
    {
        "a model that is a list",
        "keys that are no text",
        "methods that are a number",
        "averages without weights",
    }
)
"""The files that hold what they say, which is no checkpoint."""


def _calls(name: str, *args: bytes, state: bytes = b"") -> bytes:
    return named(name) + b"(" + b"".join(args) + b"tR" + (state + b"b" if state else b"")


def _array(dtype: str, shape: tuple[int, ...], content: bytes) -> bytes:
    made = named("numpy.core.multiarray._reconstruct") + b"(" + named("numpy.ndarray") + sized((0,)) + text("b") + b"tR"
    kind = named("numpy.dtype") + b"(" + text(dtype) + b"\x89\x88tR"
    return made + b"(" + number(1) + sized(shape) + kind + b"\x89" + content + b"tb"


def indexes(trace: Path) -> Iterator[tuple[str, bytes]]:
    """Indexes in files that are intact otherwise."""
    yield from _running(trace)
    yield from _shapeless()
    yield from _not_held()
    yield from _made_otherwise()
    yield from _not_checkpoints()


def _running(trace: Path) -> Iterator[tuple[str, bytes]]:
    """What runs code."""
    yield "runs os.system", checkpoint(_calls("os.system", text(f"touch {trace}")))
    yield "runs posix.system", checkpoint(_calls("posix.system", text(f"touch {trace}")))
    yield "runs eval", checkpoint(_calls("builtins.eval", text(f"open({str(trace)!r}, 'w')")))
    yield "runs eval of Python 2", checkpoint(_calls("__builtin__.eval", text(f"open({str(trace)!r}, 'w')")))
    yield "INST", checkpoint(b"(" + text(f"touch {trace}") + b"ios\nsystem\n")
    yield "OBJ", checkpoint(b"(" + named("os.system") + text(f"touch {trace}") + b"o")
    yield "EXT1", checkpoint(b"\x82\x01")


def _shapeless() -> Iterator[tuple[str, bytes]]:
    """Pickles that are none, or too deep, or too large."""
    good = tensor()
    yield "holds itself", PROTO + b"}q\x00" + text("state") + b"}" + text("model") + b"h\x00ss" + STOP
    yield "a list in itself", checkpoint(b"]q\x00h\x00a")
    yield "nested deeply", checkpoint(b"]" * 5000 + b"a" * 4999)
    yield "nested deeply in tuples", checkpoint(b")" + b"\x85" * 100_000)
    doubled = b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(60))
    yield "billion laughs", checkpoint(b"(]q\x00" + doubled + b"t")
    yield "a huge memo", checkpoint(b"Nr\xff\xff\xff\x7f") + b"more"
    yield "a string longer than the file", PROTO + b"X\xff\xff\xff\x7fabc"
    yield "no end", checkpoint(good)[:-1]
    yield "more than its end", checkpoint(good) + b"N."
    yield "nothing", b""
    yield "an empty stack", PROTO + b"R."


def _not_held() -> Iterator[tuple[str, bytes]]:
    """Tensors that their file does not have."""
    yield "a storage that is not there", checkpoint(tensor(of=storage("7")))
    yield "a storage longer than its record", checkpoint(tensor((1000,), of=storage(count=1000)))
    yield "a storage shorter than its record", checkpoint(tensor((4,), of=storage(count=4)))
    yield "a storage of another type", checkpoint(tensor(of=storage(kind="torch.DoubleStorage")))
    yield "a storage of no type", checkpoint(tensor(of=storage(kind="os.system")))
    yield "a persistent id that is none", checkpoint(b"NQ")
    yield "a tensor beyond its storage", checkpoint(tensor((FLOATS + 1,)))
    yield "an offset beyond its storage", checkpoint(tensor(offset=1))
    yield "a stride beyond its storage", checkpoint(tensor((2,), (FLOATS,)))
    yield "a negative size", checkpoint(tensor((-1,)))
    yield "a negative stride", checkpoint(tensor((2,), (-1,)))
    yield "an expanded tensor of a terabyte", checkpoint(tensor((1 << 38,), (0,)))
    yield (
        "many views of a storage",
        checkpoint(b"]q\x00(" + b"".join(tensor((1 << 20, n), (0, 0)) for n in range(1, 60)) + b"e"),
    )


def _made_otherwise() -> Iterator[tuple[str, bytes]]:
    """Objects that are made in another way than torch makes them."""
    good = tensor()
    yield "hooks", checkpoint(tensor(hooks=HOOKS + number(1) + named("torch.Tensor") + b"s"))
    yield "torch.Tensor of nothing", checkpoint(_calls("torch.Tensor", number(1000)))
    yield "FloatTensor of nothing", checkpoint(_calls("torch.FloatTensor", number(1000)))
    yield "Tensor by NEWOBJ", checkpoint(named("torch.Tensor") + b"(" + number(1000) + b"t\x81")
    yield "a storage of nothing", checkpoint(_calls("torch.storage.UntypedStorage", number(1 << 40)))
    yield "bytes of nothing", checkpoint(_calls("builtins.bytearray", number(1 << 40)))
    yield "bytes of nothing of Python 2", checkpoint(_calls("__builtin__.bytearray", number(1 << 40)))
    yield "empty bytes of nothing", checkpoint(_calls("builtins.bytes", number(1 << 40)))
    yield "a slow codec", checkpoint(_calls("_codecs.encode", text("a" * 10), text("idna")))
    yield "a state of a tensor", checkpoint(good + b"(" + storage() + number(0) + sized((1,)) + sized((1,)) + b"tb")
    attributes = b"}" + text("placements") + b"Ns"
    yield (
        "a tensor that seems sharded",
        checkpoint(_calls("torch._utils._rebuild_parameter_with_state", good, b"\x89", HOOKS, attributes)),
    )
    yield (
        "data by an attribute",
        checkpoint(
            _calls(
                "torch._utils._rebuild_parameter_with_state", good, b"\x89", HOOKS, b"}" + text("data") + good + b"s"
            )
        ),
    )
    yield (
        "nothing by _rebuild_from_type_v2",
        checkpoint(
            _calls(
                "torch._tensor._rebuild_from_type_v2", named("torch.Tensor"), named("torch.Tensor"), sized((999,)), b"}"
            )
        ),
    )
    yield "a dict with methods of its own", checkpoint(HOOKS + b"}" + text("items") + b"Nsb")
    yield (
        "an array longer than its bytes",
        checkpoint(_array("f8", (1 << 40,), _calls("_codecs.encode", text("a"), text("latin1")))),
    )
    yield "an array of objects", checkpoint(_array("O8", (5,), b"]"))
    yield (
        "an array from nothing",
        checkpoint(_calls("numpy.core.multiarray._reconstruct", named("numpy.ndarray"), sized((1 << 40,)), text("b"))),
    )
    yield "a size of negative numbers", checkpoint(_calls("torch.Size", sized((-1,))))
    yield "a sparse tensor out of bounds", checkpoint(
        _calls(
            "torch._utils._rebuild_sparse_tensor",
            _calls("torch.serialization._get_layout", text("torch.sparse_coo")),
            b"(" + tensor((1, 1), (1, 1), of=storage(kind="torch.LongStorage", count=4)) + tensor((1,))
            + sized((0,)) + b"t",
        )
    )  # fmt: skip
    yield "a time of its own", checkpoint(_calls("datetime.timedelta", number(1 << 60)))


def _not_checkpoints() -> Iterator[tuple[str, bytes]]:
    """Something else than a checkpoint."""
    good = tensor()
    yield "no dict", PROTO + b"]" + STOP
    yield "a model that is a list", PROTO + b"}" + text("state") + b"}" + text("model") + b"]ss" + STOP
    yield (
        "keys that are no text",
        PROTO + b"}" + text("state") + b"}" + text("model") + b"}" + number(1) + b"Nsss" + STOP,
    )
    yield "a key that cannot be one", PROTO + b"}]Ns" + STOP
    yield "methods that are a number", checkpoint(good, text("algorithms") + number(1) + b"s")
    yield (
        "averages without weights",
        checkpoint(good, text("algorithms") + b"]" + text("EMA") + b"}" + text("ema_model") + number(1) + b"s\x86as"),
    )


def files(trace: Path) -> Iterator[tuple[str, bytes]]:
    """Whole files."""
    for name, index in indexes(trace):
        yield name, zipped(index)
    whole = plain_file()
    yield "bytes before", b"junk" + whole
    yield "bytes behind", whole + b"junk"
    yield "twice", whole + whole
    yield "two records of one name", _doubled(whole)
    yield "two records that differ in capitals", zipped(checkpoint(tensor()), key="DATA.PKL")
    yield "a record that torch does not write", zipped(checkpoint(tensor()), key="code/x.py")
    yield "TorchScript", zipped(checkpoint(tensor()), key="constants.pkl")
    yield "compressed", _rezipped(whole, zipfile.ZIP_DEFLATED)
    yield "compressed by LZMA", _rezipped(whole, zipfile.ZIP_LZMA)
    yield "a bomb", _bomb()
    yield "stored by another program", _rezipped(whole, zipfile.ZIP_STORED)
    yield "a comment", _commented(whole)
    yield "an empty file", b""
    yield "the beginning alone", b"PK\x03\x04"
    yield "the end alone", whole[-98:]
    yield "zeros", bytes(len(whole))
    yield from _legacy(trace)


def _rezipped(whole: bytes, method: int) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(target, "w", method) as made:
        for name in source.namelist():
            made.writestr(name, source.read(name))
    return target.getvalue()


def _bomb() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("archive/data.pkl", checkpoint(b"(" + b"]" * 2_000_000 + b"t"))
        made.writestr("archive/version", "3\n")
    return target.getvalue()


def _commented(whole: bytes) -> bytes:
    return whole[:-2] + struct.pack("<H", 4) + b"text"


def _doubled(whole: bytes) -> bytes:
    """The name of a record changed into that of another, everywhere."""
    return whole.replace(b"archive/data/1", b"archive/data/0")


def _legacy(trace: Path) -> Iterator[tuple[str, bytes]]:
    """Files of the format before 1.6."""
    magic = PROTO + b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
    head = magic + PROTO + number(1001) + STOP + PROTO + b"}" + STOP
    kept = b"(" + text("storage") + named("torch.FloatStorage") + text("0") + text("cpu") + number(FLOATS) + b"NtQ"
    keys = PROTO + b"]" + text("0") + b"a" + STOP
    data = struct.pack("<Q", FLOATS) + bytes(4 * FLOATS)
    index = checkpoint(tensor(of=kept))
    yield "old: runs os.system", head + checkpoint(_calls("os.system", text(f"touch {trace}"))) + PROTO + b"]" + STOP
    yield "old: no bytes of its storage", head + index + PROTO + b"]" + STOP
    yield "old: storages cut off", head + index + keys + data[:-1]
    yield "old: more than its storages", head + index + keys + data + b"x"
    yield "old: another length", head + index + keys + struct.pack("<Q", FLOATS - 1) + data[8:-4]
    yield (
        "old: a huge storage",
        head + checkpoint(tensor(of=kept.replace(number(FLOATS), number(1 << 50)))) + keys + data,
    )
    yield "old: another magic number", magic[:-2] + b"\x18." + head[len(magic) :] + index + keys + data
    module = b"(" + text("module") + named("torch.nn.Linear") + text("x.py") + text("source") + b"tQ"
    yield "old: source code", head + checkpoint(module) + keys + data
