"""Parse a pickle into inert nodes without calling anything, so that it can be checked before it is unpickled.

A call in the pickle becomes a :class:`.Call`, a global name a :class:`.Named`. Hostile pickles can do harm without any
call: self-references and deep nesting cause a ``RecursionError`` in code that walks the result, shared references
expand to more nodes than fit into memory, and a memo with a large index takes gigabytes in Python's own unpickler. So
size, depth and expansion are limited here.
"""

from __future__ import annotations

import contextlib
import gc
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, cast

from composer.checkpoint.pickle_nodes import Call, Named, Persistent, nodes_of
from composer.checkpoint.pickle_tensors import push_tensor

__all__ = ["CodeError", "Outline", "collector_paused", "outline"]

_MOST_BYTES = 1 << 28
_MOST_INSTRUCTIONS = 1 << 24
# Nodes per byte when all shared references are expanded; ordinary files have less than one.
_MOST_EXPANSION = 16


class CodeError(ValueError):
    """A pickle contains an instruction that can construct arbitrary objects.

    >>> issubclass(CodeError, ValueError)
    True
    """


class Outline(NamedTuple):
    """The parsed content of a pickle.

    >>> outline(b"K\\x01.").end
    3
    """

    root: Any
    """The root object: plain values, containers and nodes."""
    nodes: list[Any]
    """All containers and nodes below the root, each once."""
    names: set[str]
    """Names of all classes and functions that the pickle refers to, whether it calls them or not."""
    end: int
    """The position after the pickle."""


def outline(data: Any, begin: int = 0) -> Outline:
    """Parse a pickle without unpickling it.

    Args:
        data: Bytes, or a memory-mapped file, that contain the pickle.
        begin: Position of its first byte.

    Raises:
        CodeError: It contains an instruction that constructs objects, and that torch never writes.
        ValueError: It is not a valid pickle, or is larger or more deeply nested than those of checkpoints.
        IndexError: It is not a valid pickle.

    >>> import pickle
    >>> outline(pickle.dumps({"weight": [1, 2.0, None]})).root
    {'weight': [1, 2.0, None]}
    >>> outline(pickle.dumps(print)).root.name
    'builtins.print'
    """
    interpreter = _Interpreter(data, begin)
    root = interpreter.run()
    nodes = nodes_of(root, most=1000 + _MOST_EXPANSION * (interpreter.position - begin))
    return Outline(root, nodes, interpreter.names, interpreter.position)


@contextlib.contextmanager
def collector_paused() -> Generator[None]:
    """Pause the cyclic garbage collector while many containers are made, each of which stays.

    It would visit all objects of the process again and again, torch's modules included, which takes longer than the
    parsing.

    >>> with collector_paused():
    ...     outline(b"K\\x01.").root
    1
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Interpreter:
    """Interprets the instructions of a pickle; none of them can do more than fill containers."""

    def __init__(self, data: Any, begin: int) -> None:
        self.data = data
        self.position = begin
        self.names: set[str] = set()
        self._stack: list[Any] = []
        self._above: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._most = begin + _MOST_BYTES

    def run(self) -> Any:
        data, memo, stack, position = self.data, self._memo, self._stack, self.position
        end = min(len(data), self._most + 1)
        for _ in range(_MOST_INSTRUCTIONS):
            if position >= end:
                if position >= len(data):
                    raise ValueError("it is cut off")
                break
            code = data[position]
            position += 1
            # Nearly all instructions in a file of tensors and random states are these: they are done without a call.
            if code == 0x72:  # LONG_BINPUT
                memo[int.from_bytes(data[position : position + 4], "little")] = stack[-1]
                position += 4
            elif code == 0x68 and data[position] in memo:  # BINGET
                stack.append(memo[data[position]])
                position += 1
            elif code == 0x4B:  # BININT1
                stack.append(data[position])
                position += 1
            elif code == 0x28:  # MARK
                if position < end and data[position] == 0x28:
                    after = push_tensor(data, position - 1, stack, memo)
                    if after > 0:
                        position = after
                        continue
                self._above.append(stack)
                self._stack = stack = []
            elif code == 0x4A:  # BININT
                stack.append(int.from_bytes(data[position : position + 4], "little", signed=True))
                position += 4
            elif code == 0x8A:  # LONG1
                after = position + 1 + data[position]
                stack.append(int.from_bytes(data[position + 1 : after], "little", signed=True))
                position = after
            elif code == 0x89:  # NEWFALSE
                stack.append(False)
            elif code == 0x29:  # EMPTY_TUPLE
                stack.append(())
            elif code == 0x2E:  # STOP
                self.position = position
                if len(stack) != 1 or self._above:
                    raise ValueError("it ends too early")
                return stack[0]
            else:
                self.position = position
                self._act(code)
                position, stack = self.position, self._stack
        raise ValueError(f"it has more than {_MOST_BYTES} bytes or {_MOST_INSTRUCTIONS} instructions")

    def _act(self, code: int) -> None:
        act = _ACTS.get(code)
        if act is None:
            factory = CodeError if code in _MAKES_OBJECTS else ValueError
            raise factory(f"it has the instruction {code:#04x}, which torch does not write")
        act(self)

    def take(self, count: int) -> bytes:
        begin = self.position
        self.position = begin + count
        taken = bytes(self.data[begin : self.position])
        if len(taken) != count:
            raise ValueError("it is cut off")
        return taken

    def byte(self) -> int:
        self.position += 1
        return self.data[self.position - 1]

    def number(self, form: str, size: int) -> int:
        return struct.unpack(form, self.take(size))[0]

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, self.position + 4096)
        if end < 0:
            raise ValueError("it has a name without an end")
        return self.take(end + 1 - self.position)[:-1].decode()

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        return self._stack.pop()

    def since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._above.pop()
        return items

    def push_all(self, factory: Callable[[list[Any]], Any]) -> None:
        items = self.since_mark()
        self.push(factory(items))

    def put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def memoize(self) -> None:
        self.put(len(self._memo))

    def get(self, index: int) -> None:
        if index not in self._memo:
            raise ValueError(f"it refers to object {index}, which does not exist")
        self._stack.append(self._memo[index])

    def tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise ValueError("it pops more objects than it has pushed")
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is Call:
            target.items += items
        elif type(target) is list:
            cast("list[Any]", target).extend(items)
        else:
            raise ValueError(f"it appends to {type(target).__name__}")

    def add(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not set:
            raise ValueError(f"it adds to {type(target).__name__}")
        cast("set[Any]", target).update(items)

    def set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if len(items) % 2:
            raise ValueError("it has a key without a value")
        if type(target) is Call:
            target.items += items
        elif type(target) is dict:
            cast("dict[Any, Any]", target).update(zip(items[::2], items[1::2], strict=True))
        else:
            raise ValueError(f"it sets items of {type(target).__name__}")

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def named(self) -> None:
        module, name = self.line(), self.line()
        # As unpicklers do, torch's included, for names that differ in Python 2.
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        self.name(f"{module}.{name}")

    def name(self, name: str) -> None:
        self.names.add(name)
        self.push(Named(name))

    def named_by_stack(self) -> None:
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise ValueError("it has a name that is not a string")
        self.name(f"{module}.{name}")

    def call(self) -> None:
        args, function = self.pop(), self.pop()
        if type(args) is not tuple:
            raise ValueError("it has a call whose arguments are not a tuple")
        self.push(Call(function, cast("tuple[Any, ...]", args)))

    def call_by_name(self) -> None:
        keywords, args, function = self.pop(), self.pop(), self.pop()
        self.push(Call(function, (args, keywords)))

    def build(self) -> None:
        state, target = self.pop(), self._stack[-1]
        if type(target) is not Call:
            raise ValueError(f"it sets a state on {type(target).__name__}")
        target.states.append(state)


def _text(interpreter: _Interpreter, length: int) -> None:
    interpreter.push(interpreter.take(length).decode("utf-8", "surrogatepass"))


_Act = Callable[[_Interpreter], object]
# By opcode; see https://docs.python.org/3/library/pickletools.html. Protocols 2 to 5.
_ACTS: dict[int, _Act] = {
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME
    0x4E: lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x4D: lambda m: m.push(m.number("<H", 2)),
    0x47: lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    0x58: lambda m: _text(m, m.number("<I", 4)),
    0x8C: lambda m: _text(m, m.byte()),
    0x8D: lambda m: _text(m, m.number("<Q", 8)),
    0x42: lambda m: m.push(m.take(m.number("<I", 4))),
    0x43: lambda m: m.push(m.take(m.byte())),
    0x8E: lambda m: m.push(m.take(m.number("<Q", 8))),
    0x55: lambda m: m.push(m.take(m.byte())),
    0x5D: lambda m: m.push([]),
    0x7D: lambda m: m.push({}),
    0x8F: lambda m: m.push(set()),
    0x74: lambda m: m.push_all(tuple),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    0x91: lambda m: m.push_all(frozenset),
    0x61: lambda m: m.append([m.pop()]),
    0x65: lambda m: m.append(m.since_mark()),
    0x90: lambda m: m.add(m.since_mark()),
    0x73: _Interpreter.set_item,
    0x75: lambda m: m.set_items(m.since_mark()),
    0x71: lambda m: m.put(m.byte()),
    0x94: _Interpreter.memoize,
    0x68: lambda m: m.get(m.byte()),
    0x6A: lambda m: m.get(m.number("<I", 4)),
    0x63: _Interpreter.named,
    0x93: _Interpreter.named_by_stack,
    0x52: _Interpreter.call,
    0x81: _Interpreter.call,
    0x92: _Interpreter.call_by_name,
    0x62: _Interpreter.build,
    0x51: lambda m: m.push(Persistent(m.pop())),
}
# INST, OBJ, EXT1, EXT2, EXT4, PERSID
_MAKES_OBJECTS = frozenset({0x69, 0x6F, 0x82, 0x83, 0x84, 0x50})
