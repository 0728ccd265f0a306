"""Hostile cells that reach for something outside their process: one attack each.

`## name -> required end`: see `sandbox_attacks.py`, which also has the helpers `native`,
`refused`, `hunt` and `CALLS`. A cell that succeeds ends in another way, or prints ESCAPED.
"""

FILES = r"""
## open and look -> ok
refused(open, "/etc/hostname")
refused(open, sys.executable, "rb")
refused(open, "/tmp/sandbox-attack", "w")
refused(os.listdir, "/")
refused(os.readlink, "/proc/self/exe")
if list(os.walk("/")): print("ESCAPED")
## change -> ok
refused(os.chmod, "/tmp", 0o777)
refused(os.rename, "/tmp/sandbox-attack-a", "/tmp/sandbox-attack-b")
refused(os.unlink, "/tmp/sandbox-attack")
refused(os.mkdir, "/tmp/sandbox-attack")
refused(os.symlink, "/etc/passwd", "/tmp/sandbox-attack")
## stat -> refused
os.stat("/")
## access -> ok
if os.access("/", os.F_OK): print("ESCAPED")
## source files -> ok
import importlib.machinery
loader = importlib.machinery.SourceFileLoader("m", "/etc/hostname")
refused(loader.get_data, "/etc/hostname")
refused(loader.load_module)
## import from disk -> exception
sys.path.append("/usr/lib/python3")
import sqlite3
"""

PROC = r"""
## any process -> ok
for name in ("environ", "mem", "maps"):
    refused(open, f"/proc/self/{name}", "rb")
    refused(open, f"/proc/{PARENT}/{name}", "rb")
for link in ("root", "cwd"):
    refused(open, f"/proc/1/{link}/etc/hostname")
refused(os.listdir, "/proc/self/fd")
refused(os.listdir, "/proc")
"""

NETWORK = r"""
## sockets -> ok
refused(socket.create_connection, ("127.0.0.1", 1), 1)
refused(socket.socket, socket.AF_UNIX)
refused(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
refused(socket.socketpair)
## name lookup -> exception
socket.getaddrinfo("localhost", 80)
## the channel as a socket -> ok
refused(socket.socket, fileno=3)
refused(native, "sendmsg", 3, bytes(56), 0)
"""

PROCESSES = r"""
## new processes -> ok
refused(subprocess.run, ["true"])
refused(os.execv, "/bin/true", ["true"])
refused(os.posix_spawn, "/bin/true", ["true"], {})
refused(native, "clone3", bytes(88), 88)
if os.system("true") == 0: print("ESCAPED")
## fifty forks -> ok
for _ in range(50):
    try:
        if os.fork() == 0: os._exit(0)
        print("ESCAPED")
    except PermissionError: pass
## five hundred threads -> ok
for _ in range(500):
    try:
        threading.Thread(target=print, args=["ESCAPED"]).start()
    except RuntimeError: pass
## signals to others -> ok
refused(os.kill, PARENT, 9)
refused(os.kill, -1, 9)
refused(os.killpg, 0, 9)
refused(native, "tgkill", SELF, SELF, 19)
## signal itself -> refused
os.kill(SELF, 0)
## priority -> refused
os.setpriority(os.PRIO_PROCESS, 0, 19)
## the machine's resources -> ok
refused(os.sched_setaffinity, 0, {0})
refused(os.memfd_create, "x")
refused(native, "shmget", 0, 4096, 0o1600)
refused(os.pipe)
"""

NATIVE = r"""
## libc.system -> ok
if libc.system(b"true") == 0: print("ESCAPED")
## a file as memory -> ok
refused(mmap.mmap, 3, 4096)
## x32 table -> killed lost
libc.syscall(0x40000000 | 39)
print("ESCAPED")
## executable mmap -> refused
mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
## memory made executable -> refused
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, 4096, 3, 0x22, -1, 0)
native("mprotect", page, 4096, 7)
## ctypes callback -> memory
ctypes.CFUNCTYPE(None)(print)
## library from disk -> exception
ctypes.CDLL("libgomp.so.1")
print("ESCAPED")
## segfault -> killed lost
ctypes.string_at(0)
## smashed type -> killed lost
ctypes.memset(id(type), 0, 400)
type(1)(2)
## smashed stack -> killed lost, cpu
sys.setrecursionlimit(10**9)
class A:
    def __repr__(self): return repr([self])
print(A())
## every other call by number -> ok
for name, number in CALLS.items():
    ctypes.set_errno(0)
    got = libc.syscall(number, -1, 0, 0, 0, 0, 0)
    if (got, ctypes.get_errno()) != (-1, 1): print("ESCAPED", name, got, ctypes.get_errno())
"""

INTROSPECTION = r"""
## gc scan -> ok
gc.unfreeze()
parts = (part for thing in gc.get_objects() for part in gc.get_referents(thing))
hunt(part for part in parts if isinstance(part, (str, bytes)) or not gc.is_tracked(part))
## frames by sys -> ok
frame = sys._getframe()
while frame:
    hunt([*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_builtins.values()])
    frame = frame.f_back
## frames of a generator -> ok
def f():
    yield
g = f()
hunt([g.gi_frame.f_builtins, g.gi_frame.f_globals])
## a callback's __self__ -> ok
for function in (search, llm_query, FINAL, SHOW_VARS):
    hunt(vars(function.__self__).values())
    hunt(vars(type(function.__self__)).values())
## the worker behind a callback -> ok
worker = FINAL.__self__._finish.__self__
hunt(vars(worker).values())
hunt(vars(worker._channel).values())
## __subclasses__ to os -> ok
wrap = [c for c in object.__subclasses__() if c.__name__ == "_wrap_close"][0]
hunt(wrap.__init__.__globals__["environ"].values())
if wrap.__init__.__globals__["system"]("true") == 0: print("ESCAPED")
## print.__self__ -> refused
hunt(vars(print.__self__).values())
print.__self__.open("/etc/hostname")
## format string -> ok
hunt(["{0.__self__.__class__.__init__.__globals__}".format(search)])
hunt(["{0.__func__.__globals__[os].environ}".format(FINAL.__self__._finish)])
## a callback's exception -> ok
for mistake in (lambda: llm_query(3), lambda: search(1, 2), lambda: rlm_query("q", {1: [object]})):
    try:
        mistake()
    except Exception as error:
        hunt([str(error), repr(error.args)])
        if "/" in str(error): print("ESCAPED", error)
## environment -> ok
hunt([os.environ, os.environb, sys.argv, sys.path, sys.orig_argv])
## modules -> ok
hunt(value for module in list(sys.modules.values()) for value in vars(module).values())
print(*(f"ESCAPED {name}" for name in sys.modules if name.partition(".")[0] in ("env", "rewards")))
## memory by address -> ok
for text in context.values():
    hunt([ctypes.string_at(id(text) & ~0x3FFF, 0x4000)])
## C environment -> ok
libc.getenv.restype = ctypes.c_char_p
hunt([libc.getenv(b"RLM_TEST_SECRET"), libc.getenv(b"PATH")])
## debugger -> exception
import pdb
"""
