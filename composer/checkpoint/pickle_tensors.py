"""Parse the pickle instructions of a tensor in one step, in the form in which ``torch.save`` writes nearly all of them.

An index of many tensors repeats the same 32 instructions: a persistent ID with the storage, offset, shape and strides,
no hooks, and a call. One regular expression that recognizes all of them takes a tenth of the time of the instructions
one by one. It changes neither what is parsed nor what is allowed: any other form does not match, and is left to
:mod:`.pickle_outline`.
"""

from __future__ import annotations

import functools
import re
import struct
from typing import Any

from composer.checkpoint.pickle_nodes import Call, Persistent

__all__ = ["push_tensor"]

_INT = rb"(?:K.|M..|J.{4})"  # BININT1, BININT2, BININT
_GET = rb"(h.|j.{4})"  # BINGET, LONG_BINGET
_PUT = rb"(q.|r.{4})"  # BINPUT, LONG_BINPUT
_INTS = rb"(?:((?:" + _INT + rb"){1,3})([\x85-\x87])" + _PUT + rb"|\))"  # TUPLE1 to TUPLE3, or EMPTY_TUPLE
_TENSOR = re.compile(
    # After the function: its arguments, of which the first is the tuple "storage", class, key, location, length.
    rb"\(\(" + _GET + _GET + rb"X(.)\0\0\0([0-9]{1,19})" + _PUT + _GET + b"(" + _INT + b")t" + _PUT + b"Q"
    # Offset, shape, strides, requires_grad, and an empty OrderedDict of hooks.
    b"(" + _INT + b")" + _INTS + _INTS + rb"([\x88\x89])" + _GET + rb"\)R" + _PUT + b"t" + _PUT + b"R" + _PUT,
    re.DOTALL,
)  # fmt: skip
_LONG_PUTS = struct.Struct("<" + 7 * "xI")
_SIGNED, _TUPLE1 = ord("J"), 0x85
_WIDTHS = {ord("K"): 1, ord("M"): 2, _SIGNED: 4}


def push_tensor(data: Any, position: int, stack: list[Any], memo: dict[int, Any]) -> int:
    """Replace the function on the stack by its call; returns the position after the call, or -1 for another form.

    Args:
        data: The pickle.
        position: Position of the mark that begins the arguments.
        stack: The stack of the interpreter.
        memo: Its memo.

    >>> push_tensor(b"K\\x01.", 0, [], {})
    -1
    """
    match = _TENSOR.match(data, position)
    if match is None or not stack:
        return -1
    # fmt: off
    (kind, cls, key_length, key, put_key, location, length, put_id, offset, shape, shape_end, put_shape, strides,
     strides_end, put_strides, requires_grad, hooks, put_hooks, put_args, put_call) = match.groups()
    # fmt: on
    sizes, steps = _ints(shape), _ints(strides)
    if not (_are_counted(sizes, shape_end) and _are_counted(steps, strides_end)) or key_length[0] != len(key):
        return -1
    gets = [one[1] if len(one) == 2 else int.from_bytes(one[1:], "little") for one in (kind, cls, location, hooks)]
    # An empty tuple is not put.
    puts = (put_key, put_id, put_shape, put_strides, put_hooks, put_args, put_call)
    if None not in puts and len(joined := b"".join(puts)) == _LONG_PUTS.size:
        puts = _LONG_PUTS.unpack(joined)
    else:
        puts = [-1 if one is None else int.from_bytes(one[1:], "little") for one in puts]
    # Instruction by instruction, a get could refer to a put before it.
    if not memo.keys() >= set(gets) or not memo.keys().isdisjoint(puts):
        return -1
    kind, cls, location, hooks = (memo[index] for index in gets)
    key = key.decode()
    made_id = (kind, cls, key, location, *_ints(length))
    made_hooks = Call(hooks, ())
    args = (Persistent(made_id), *_ints(offset), sizes, steps, requires_grad == b"\x88", made_hooks)
    stack[-1] = call = Call(stack[-1], args)
    memo.update(zip(puts, (key, made_id, sizes, steps, made_hooks, args, call), strict=True))
    memo.pop(-1, None)
    return match.end()


@functools.lru_cache(maxsize=1024)  # most shapes and strides of a model occur again and again
def _ints(instructions: bytes | None) -> tuple[int, ...]:
    """Return what instructions push."""
    found: list[int] = []
    position = 0
    while instructions is not None and position < len(instructions):
        code = instructions[position]
        after = position + 1 + _WIDTHS[code]
        found.append(int.from_bytes(instructions[position + 1 : after], "little", signed=code == _SIGNED))
        position = after
    return tuple(found)


def _are_counted(found: tuple[int, ...], end: bytes | None) -> bool:
    """Return whether the instruction that makes a tuple takes all of what was pushed; None if the tuple is empty."""
    return end is None or end[0] - _TUPLE1 + 1 == len(found)
