"""Loops as machine code: made by LLVM, in a process of its own that can be ended, and called on a state."""

import ctypes
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable
from threading import Thread
from typing import Any

import llvmlite
import llvmlite.binding as llvm

_GONE: weakref.ref[Any] = weakref.ref(set[int]())
_ELF_HEADER = 64  # bytes
_LOOK_S = 0.05  # between two questions whether to go on


# Without fused multiply-add, which rounds once where other processors round twice: results are the same on all.
_BASELINES = {"x86_64": "x86-64-v2"}


def baseline() -> str:
    """Name the target processor: any of its family from the last fifteen years."""
    return _BASELINES.get(llvm.get_process_triple().partition("-")[0], "generic")


def machine() -> str:
    """Return what machine code depends on beside its source."""
    return f"{llvmlite.__version__} {llvm.get_process_triple()} {baseline()}"


def object_code(text: str, goes_on: Callable[[], bool] = lambda: True) -> bytes | None:
    """Let LLVM make object code of a module; None as soon as `goes_on` says that it is not to go on."""
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for us, who end it
        )
    except OSError:
        return _object_code(text)
    said: list[bytes] = []
    talk = Thread(target=lambda: said.append(child.communicate(text.encode())[0]))
    talk.start()
    try:
        while talk.is_alive():
            talk.join(_LOOK_S)
            if talk.is_alive() and not goes_on():
                return None
    finally:
        child.kill()
        talk.join()
    return said[0] if child.returncode == 0 else _object_code(text)


def _object_code(text: str, cpu: str | None = None, features: str = "") -> bytes:
    target = _target(cpu or baseline(), features)
    module = llvm.parse_assembly(text)
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=1))
    builder.getModulePassManager().run(module, builder)
    return target.emit_object(module)  # type: ignore[no-any-return]


def _target(cpu: str, features: str = "") -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=cpu,
        features=features,
        opt=1,  # no run is faster for more, which takes twice as long to compile
        reloc="static",
        codemodel="jitdefault",
        jit=True,
    )


def is_object(code: bytes) -> bool:
    """Tell whether bytes can be object code: LLVM ends the process on any others.

    An ELF file ends with the table of its sections; of Mach-O there is the mark alone.
    """
    if code[:4] == b"\x7fELF" and len(code) > _ELF_HEADER:
        (begin,), (size, count) = struct.unpack_from("<Q", code, 0x28), struct.unpack_from("<HH", code, 0x3A)
        return bool(begin + size * count == len(code))
    return code[:4] == b"\xcf\xfa\xed\xfe"


class Loop:
    """A function `loop(state or states, *whole numbers)` of object code, see `kvplan.compiling.translate`."""

    def __init__(self, code: bytes, numbers: int) -> None:
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target(baseline()))
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * numbers)
        self._last: tuple[list[weakref.ref[Any]], Any] = [], (ctypes.c_int64 * 0)()
        self._call: Callable[..., int] = kind(self._engine.get_function_address("loop"))

    def __call__(self, state: Any, *numbers: int) -> int:
        """Run it; other threads run meanwhile."""
        arrays = [array for part in state for array in part] if isinstance(state[0], tuple) else state
        seen, places = self._last
        if len(seen) == len(arrays):
            seen, places = seen.copy(), type(places).from_buffer_copy(places)  # other threads have theirs
        else:
            seen, places = [_GONE] * len(arrays), (ctypes.c_int64 * (3 * len(arrays)))()
        for i, (last, array) in enumerate(zip(seen, arrays, strict=True)):
            if last() is not array:  # numpy takes a microsecond to say where an array is
                assert array.flags.c_contiguous
                assert array.itemsize == 8
                seen[i] = weakref.ref(array)
                places[3 * i : 3 * i + 3] = array.ctypes.data, array.shape[0], array.shape[-1]
        self._last = seen, places
        return self._call(places, *numbers)


if __name__ == "__main__":
    sys.stdout.buffer.write(_object_code(sys.stdin.read()))
