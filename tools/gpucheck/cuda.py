"""The few required calls of the CUDA driver API, through ctypes, with kernels in PTX (cuda.h; PTX ISA 6.0)."""

from __future__ import annotations

import ctypes
from enum import IntEnum

from tools.gpucheck.plan import NotPossible

LIBRARY = "libcuda.so.1"
ENDLESS_NS = 1 << 62


class Scheduling(IntEnum):
    """CU_CTX_SCHED_*: how a host thread waits for its device."""

    AUTO = 0
    SPIN = 1
    YIELD = 2
    BLOCKING_SYNC = 4


# Which is the oldest target that a driver's compiler accepts is not known in advance.
_TARGETS = (("6.0", "sm_50"), ("6.3", "sm_75"), ("7.8", "sm_90"), ("8.6", "sm_100"))
_PTX = """.version {version}
.target {target}
.address_size 64
.visible .entry wait_ns(.param .u64 duration)
{{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [duration];
    mov.u64 %rd2, %globaltimer;
AGAIN:
    mov.u64 %rd3, %globaltimer;
    sub.s64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra AGAIN;
    ret;
}}
.visible .entry write_to(.param .u64 address)
{{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [address];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}}
"""


class CudaError(NotPossible):
    """A call of the driver failed; `code` is its CUresult."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call} failed with {code} ({text})")
        self.code = code


class Driver:
    """libcuda.so.1. Every call raises `CudaError` if the driver reports one."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NotPossible(f"{LIBRARY} cannot be loaded ({error})") from None

    def call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NotPossible(f"{LIBRARY} has no {name}") from None
        code = int(function(*arguments))
        if code:
            raise CudaError(name, code, self._text(code))

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        known = self._library.cuGetErrorName(code, ctypes.byref(text)) == 0
        return text.value.decode() if known and text.value else "unknown"

    def initialize(self) -> None:
        self.call("cuInit", 0)

    def device_count(self) -> int:
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def version(self) -> int:
        """The CUDA version of the driver: 12040 is 12.4."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def device_name(self) -> str:
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 128, 0)
        return name.value.decode()

    def create_context(self, scheduling: Scheduling) -> None:
        context = ctypes.c_void_p()
        self.call("cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(scheduling), 0)

    def use_primary_context(self, scheduling: Scheduling) -> None:
        """Use the primary context, as the runtime API and torch do."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxSetFlags_v2", 0, ctypes.c_uint(scheduling))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def allocate(self, size_bytes: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return address.value


class Work:
    """Our kernels on a separate stream, in the current context."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        module = self._load()
        self._functions: dict[str, ctypes.c_void_p] = {}
        for name in ("wait_ns", "write_to"):
            function = ctypes.c_void_p()
            driver.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            self._functions[name] = function
        self._stream = ctypes.c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(1))

    def _load(self) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        for version, target in _TARGETS:
            text = _PTX.format(version=version, target=target).encode()
            try:
                self._driver.call("cuModuleLoadData", ctypes.byref(module), text)
            except CudaError as error:
                refused = error
            else:
                return module
        raise refused

    def _launch(self, name: str, argument: int) -> None:
        value = ctypes.c_uint64(argument)
        values = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        one = [ctypes.c_uint(1)] * 6
        function = self._functions[name]
        shared = ctypes.c_uint(0)
        self._driver.call("cuLaunchKernel", function, *one, shared, self._stream, values, None)

    def wait(self, duration_ns: int) -> None:
        """Run a single device thread for `duration_ns` nanoseconds."""
        self._launch("wait_ns", duration_ns)

    def write_to(self, address: int) -> None:
        """Let a single device thread write four bytes to the address."""
        self._launch("write_to", address)

    def synchronize(self) -> None:
        self._driver.call("cuStreamSynchronize", self._stream)
