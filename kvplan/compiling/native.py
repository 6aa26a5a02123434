"""Loops as machine code: made by LLVM, in a process of its own that can be ended, and called on a state."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from threading import Thread
from typing import Any

import llvmlite
import llvmlite.binding as llvm

_LOOK_S = 0.05  # between two questions whether to go on


def machine() -> str:
    """What machine code depends on beside its source."""
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvmlite.__version__} {llvm.get_process_triple()} {llvm.get_host_cpu_name()} {features}"


def object_code(text: str, goes_on: Callable[[], bool] = lambda: True) -> bytes | None:
    """What LLVM makes of a module, where so much can be told; None as soon as it is not to go on."""
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


def _object_code(text: str) -> bytes:
    target = _target()
    module = llvm.parse_assembly(text)
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return target.emit_object(module)  # type: ignore[no-any-return]


def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static",
        codemodel="jitdefault",
        jit=True,
    )


class Loop:
    """A function `loop(state or states, *whole numbers)` of object code, see `kvplan.compiling.translate`."""

    def __init__(self, code: bytes, numbers: int) -> None:
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * numbers)
        self._call: Callable[..., int] = kind(self._engine.get_function_address("loop"))

    def __call__(self, state: Any, *numbers: int) -> int:
        """Run it; other threads run meanwhile."""
        arrays = [array for one in state for array in one] if isinstance(state[0], tuple) else state
        assert all(array.flags.c_contiguous and array.itemsize == 8 for array in arrays)
        given = [part for a in arrays for part in (a.ctypes.data, a.shape[0], a.shape[-1])]
        return self._call((ctypes.c_int64 * len(given))(*given), *numbers)


if __name__ == "__main__":
    sys.stdout.buffer.write(_object_code(sys.stdin.read()))
