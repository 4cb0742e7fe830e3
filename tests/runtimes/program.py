import ctypes
import sys

driver = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert not driver.cuInit(0)
assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not driver.cuCtxSetCurrent(context)
answered = 0
for _ in range(40):
    memory = ctypes.c_uint64()
    answered += not driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4000)) and not driver.cuMemFree_v2(memory)
print("answered", answered)
sys.exit(7)
