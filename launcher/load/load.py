# A short load on the first GPU: matrix products, then reads of its memory. By torch where that is, else by the CUDA
# driver alone. It prints one line of JSON: what it reached, or why it did not begin.
import json, sys, time


def measure(work, each, seconds, wait):
    """What `work`, which does `each` at a time, does in a second."""
    for _ in range(3):
        work()
    wait()
    count, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        for _ in range(4):
            work()
        wait()
        count += 4
    return count * each / (time.monotonic() - began)


def by_torch(seconds):
    import torch
    if not torch.cuda.is_available():
        raise RuntimeError("torch %s sees no GPU" % torch.__version__)
    def make(*size):
        return torch.randn(*size, device="cuda:0", dtype=torch.bfloat16)
    n, m, wait = 8192, 16384, torch.cuda.synchronize
    a, b = make(n, n), make(n, n)
    c = torch.empty_like(a)
    out = {"via": "torch " + torch.__version__, "gpu": torch.cuda.get_device_name(0), "kind": "bf16"}
    out["flops"] = measure(lambda: torch.mm(a, b, out=c), 2 * n**3, seconds * 0.7, wait)
    a, v = make(m, m), make(m)
    y = torch.empty_like(v)
    # A product with one vector reads the matrix once: 512 MiB, more than any cache.
    out["read_bps"] = measure(lambda: torch.mv(a, v, out=y), 2 * m * m, seconds * 0.3, wait)
    return out


# spin multiplies and adds in eight unlike chains, 16 times a round; sweep reads 16 bytes a thread and step.
CHAINS, UNROLL = 8, 16
PTX = """.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 rounds) {
.reg .pred %%p<2>; .reg .f32 %%f<10>; .reg .b32 %%r<3>; .reg .b64 %%rd<3>;
ld.param.u64 %%rd1, [out]; ld.param.u32 %%r1, [rounds];
mov.u32 %%r2, %%tid.x; cvt.rn.f32.u32 %%f0, %%r2;
%s
mov.f32 %%f9, 0f3F000000;
MORE:
%s
sub.u32 %%r1, %%r1, 1; setp.ne.u32 %%p1, %%r1, 0; @%%p1 bra MORE;
%s
setp.eq.f32 %%p1, %%f0, 0fBF800000;
@%%p1 st.global.f32 [%%rd1], %%f0;
ret; }
.visible .entry sweep(.param .u64 from, .param .u64 items, .param .u64 out) {
.reg .pred %%p<2>; .reg .b32 %%r<10>; .reg .b64 %%rd<8>;
ld.param.u64 %%rd1, [from]; ld.param.u64 %%rd2, [items]; ld.param.u64 %%rd7, [out];
mov.u32 %%r1, %%ctaid.x; mov.u32 %%r2, %%ntid.x; mov.u32 %%r3, %%tid.x; mov.u32 %%r4, %%nctaid.x;
mad.wide.u32 %%rd3, %%r1, %%r2, 0; cvt.u64.u32 %%rd4, %%r3; add.u64 %%rd3, %%rd3, %%rd4;
mul.wide.u32 %%rd5, %%r2, %%r4; mov.u32 %%r9, 0;
NEXT:
setp.ge.u64 %%p1, %%rd3, %%rd2; @%%p1 bra DONE;
shl.b64 %%rd6, %%rd3, 4; add.u64 %%rd6, %%rd6, %%rd1;
ld.global.v4.u32 {%%r5, %%r6, %%r7, %%r8}, [%%rd6];
xor.b32 %%r9, %%r9, %%r5; xor.b32 %%r9, %%r9, %%r6; xor.b32 %%r9, %%r9, %%r7; xor.b32 %%r9, %%r9, %%r8;
add.u64 %%rd3, %%rd3, %%rd5; bra NEXT;
DONE:
setp.eq.u32 %%p1, %%r9, 305419896;
@%%p1 st.global.u32 [%%rd7], %%r9;
ret; }
""" % ("\n".join("add.f32 %%f%d, %%f0, 0f%08X;" % (i, 0x3F800000 + i) for i in range(1, CHAINS)),
       "\n".join("fma.rn.f32 %%f%d, %%f%d, %%f9, %%f9;" % (i, i) for i in range(CHAINS)) * UNROLL,
       "\n".join("add.f32 %%f0, %%f0, %%f%d;" % i for i in range(1, CHAINS)))


def by_driver(seconds):
    import ctypes as c
    cuda = c.CDLL("libcuda.so.1")

    def do(name, *args):
        code = getattr(cuda, name)(*args)
        if code:
            raise RuntimeError("%s gives error %d" % (name, code))
    do("cuInit", 0)
    device, version, cores, name = c.c_int(), c.c_int(), c.c_int(), c.create_string_buffer(100)
    context, module, spin, sweep, memory = (c.c_void_p() for _ in range(5))
    do("cuDeviceGet", c.byref(device), 0)
    do("cuDriverGetVersion", c.byref(version))
    do("cuDeviceGetName", name, 100, device)
    do("cuDeviceGetAttribute", c.byref(cores), 16, device)  # its multiprocessors
    do("cuDevicePrimaryCtxRetain", c.byref(context), device)
    do("cuCtxSetCurrent", context)
    do("cuModuleLoadData", c.byref(module), PTX.encode())
    do("cuModuleGetFunction", c.byref(spin), module, b"spin")
    do("cuModuleGetFunction", c.byref(sweep), module, b"sweep")
    size = 512 << 20
    do("cuMemAlloc_v2", c.byref(memory), c.c_size_t(size))
    do("cuMemsetD8_v2", memory, c.c_ubyte(1), c.c_size_t(size))
    blocks, threads, rounds = cores.value * 8, 256, 4096

    def launch(function, *values):
        args = (c.c_void_p * len(values))(*(c.cast(c.pointer(v), c.c_void_p) for v in values))
        do("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, args, None)

    def wait():
        do("cuCtxSynchronize")
    v = version.value
    out = {"via": "CUDA driver %d.%d" % (v // 1000, v % 1000 // 10), "gpu": name.value.decode(), "kind": "fp32"}
    out["flops"] = measure(lambda: launch(spin, memory, c.c_uint(rounds)),
                           blocks * threads * rounds * UNROLL * CHAINS * 2, seconds * 0.7, wait)
    out["read_bps"] = measure(lambda: launch(sweep, memory, c.c_uint64(size // 16), memory), size, seconds * 0.3, wait)
    return out


why = []
for way in (by_torch, by_driver):
    try:
        print(json.dumps(dict(way(float(sys.argv[1])), trouble="; ".join(why))))
        sys.exit(0)
    except Exception as e:
        why.append("%s: %s" % (way.__name__.replace("_", " "), str(e) or type(e).__name__))
print(json.dumps({"trouble": "; ".join(why)}))
