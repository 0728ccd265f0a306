"""Hostile cells that reach for something outside their process: one attack each.

`## name -> required end`: see `sandbox_attacks.py`, which also has the helpers `native`, `hunt`
and `CALLS`. A cell that succeeds ends in another way, or prints ESCAPED.
"""

FILES = r"""
## read -> refused
open("/etc/hostname").read()
## read its own interpreter -> refused
open(sys.executable, "rb").read(4)
## write -> refused
open("/tmp/sandbox-attack", "w").write("x")
## list -> refused
os.listdir("/")
## walk -> ok
if list(os.walk("/")):
    print("ESCAPED")
## stat -> refused
os.stat("/")
## access -> ok
if os.access("/", os.F_OK):
    print("ESCAPED")
## chmod -> refused
os.chmod("/tmp", 0o777)
## rename -> refused
os.rename("/tmp/sandbox-attack-a", "/tmp/sandbox-attack-b")
## unlink -> refused
os.unlink("/tmp/sandbox-attack")
## mkdir -> refused
os.mkdir("/tmp/sandbox-attack")
## chdir -> refused
os.chdir("/")
## working folder -> refused
os.getcwd()
## symlink -> refused
os.symlink("/etc/passwd", "/tmp/sandbox-attack")
## read a link -> refused
os.readlink("/proc/self/exe")
## temporary file -> exception
import tempfile
tempfile.TemporaryFile()
## load a source file -> refused
import importlib.machinery
importlib.machinery.SourceFileLoader("m", "/etc/hostname").get_data("/etc/hostname")
## run a source file -> refused
import importlib.machinery
importlib.machinery.SourceFileLoader("m", "/etc/hostname").load_module()
## import from disk -> exception
sys.path.append("/usr/lib/python3")
import sqlite3
"""

PROC = r"""
## own environ -> refused
open("/proc/self/environ", "rb").read()
## own mem -> refused
open("/proc/self/mem", "rb").read(1)
## own maps -> refused
open("/proc/self/maps").read()
## own descriptors -> refused
os.listdir("/proc/self/fd")
## parent's environ -> refused
open(f"/proc/{PARENT}/environ", "rb").read()
## parent's mem -> refused
open(f"/proc/{PARENT}/mem", "rb").read(1)
## parent's maps -> refused
open(f"/proc/{PARENT}/maps").read()
## first process's root -> refused
open("/proc/1/root/etc/hostname").read()
## list of processes -> refused
os.listdir("/proc")
"""

NETWORK = r"""
## tcp -> refused
socket.create_connection(("127.0.0.1", 1), 1)
## udp -> refused
socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
## unix -> refused
socket.socket(socket.AF_UNIX)
## raw packets -> refused
socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
## netlink -> refused
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
## pair -> refused
socket.socketpair()
## name lookup -> exception
socket.getaddrinfo("localhost", 80)
## urllib -> exception
import urllib.request
urllib.request.urlopen("http://127.0.0.1:1")
## the channel as a socket -> refused
socket.socket(fileno=3)
## a descriptor over the channel -> refused
native("sendmsg", 3, bytes(56), 0)
"""

PROCESSES = r"""
## os.system -> ok
if os.system("true") == 0:
    print("ESCAPED")
## subprocess -> refused
subprocess.run(["true"])
## exec -> refused
os.execv("/bin/true", ["true"])
## spawn -> refused
os.posix_spawn("/bin/true", ["true"], {})
## fifty forks -> ok
for _ in range(50):
    try:
        if os.fork() == 0:
            os._exit(0)
        print("ESCAPED")
    except PermissionError:
        pass
## fork bomb -> refused
while True:
    os.fork()
## vfork -> refused
native("vfork")
## clone -> refused
native("clone", 17, 0, 0, 0, 0)
## clone3 -> refused
native("clone3", bytes(88), 88)
## five hundred threads -> ok
import threading
for _ in range(500):
    try:
        threading.Thread(target=print, args=["ESCAPED"]).start()
    except RuntimeError:
        pass
## low-level thread -> exception
import _thread
_thread.start_new_thread(print, ("ESCAPED",))
## kill parent -> refused
os.kill(PARENT, 9)
## kill all -> refused
os.kill(-1, 9)
## signal itself -> refused
os.kill(SELF, 0)
## stop itself -> refused
native("tgkill", SELF, SELF, 19)
## process group -> refused
os.killpg(0, 9)
## outlive its parent -> refused
native("prctl", 1, 0, 0, 0, 0)
## own session -> refused
os.setsid()
## another processor -> refused
os.sched_setaffinity(0, {0})
## priority -> refused
os.setpriority(os.PRIO_PROCESS, 0, 19)
## memfd -> refused
os.memfd_create("x")
## shared memory -> refused
segment = native("shmget", 0, 4096, 0o1600)
native("shmctl", segment, 0, 0)
## message queue -> refused
queue = native("msgget", 0, 0o1600)
native("msgctl", queue, 0, 0)
## eventfd -> refused
os.eventfd(0)
## pipe -> refused
os.pipe()
"""

NATIVE = r"""
## libc.system -> ok
if libc.system(b"true") == 0:
    print("ESCAPED")
## raw openat -> refused
native("openat", -100, b"/etc/hostname", 0)
## raw socket -> refused
native("socket", 2, 1, 0)
## io_uring -> refused
native("io_uring_setup", 1, bytes(120))
## x32 table -> killed lost
libc.syscall(0x40000000 | 39)
print("ESCAPED")
## ptrace -> refused
native("ptrace", 16, PARENT, 0, 0)
## process_vm_readv -> refused
native("process_vm_readv", PARENT, 0, 0, 0, 0, 0)
## executable mmap -> refused
import mmap
mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
## memory made executable -> refused
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, 4096, 3, 0x22, -1, 0)
native("mprotect", page, 4096, 7)
## text made writable -> refused
address = ctypes.cast(libc.getpid, ctypes.c_void_p).value & ~4095
native("mprotect", address, 4096, 7)
## ctypes callback -> memory
ctypes.CFUNCTYPE(None)(print)
## map of a file -> refused
import mmap
mmap.mmap(3, 4096)
## library from disk -> exception
ctypes.CDLL("libgomp.so.1")
print("ESCAPED")
## personality -> refused
native("personality", 0xFFFFFFFF)
## its process id -> refused
native("getppid")
## own timer -> refused
signal.alarm(1000)
native("setitimer", 0, bytes(32), 0)
## landlock undone -> refused
native("landlock_restrict_self", 3, 0)
## another filter -> refused
native("seccomp", 1, 0, bytes(16))
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
    if (got, ctypes.get_errno()) != (-1, 1):
        print("ESCAPED", name, got, ctypes.get_errno())
"""

INTROSPECTION = r"""
## gc scan -> ok
import gc
gc.unfreeze()
parts = (part for thing in gc.get_objects() for part in gc.get_referents(thing))
hunt(part for part in parts if isinstance(part, (str, bytes)) or not gc.is_tracked(part))
## frames by sys -> ok
frame = sys._getframe()
while frame:
    hunt([*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_builtins.values()])
    frame = frame.f_back
## frames by traceback -> ok
try:
    1 / 0
except ZeroDivisionError as error:
    frame = error.__traceback__.tb_frame
    while frame:
        hunt([*frame.f_locals.values(), *frame.f_globals.values()])
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
## a callback's __closure__ -> ok
for function in (search, llm_query, FINAL):
    closure = function.__func__.__closure__
    hunt([closure, function.__func__.__code__.co_consts, function.__func__.__defaults__])
## a callback's __globals__ -> ok
for function in (search, llm_query, FINAL):
    hunt(function.__func__.__globals__.values())
## __subclasses__ to os -> ok
wrap = [c for c in object.__subclasses__() if c.__name__ == "_wrap_close"][0]
hunt(wrap.__init__.__globals__["environ"].values())
if wrap.__init__.__globals__["system"]("true") == 0:
    print("ESCAPED")
## __subclasses__ to Popen -> refused
[c for c in object.__subclasses__() if c.__name__ == "Popen"][0](["true"])
## print.__self__ -> refused
hunt(vars(print.__self__).values())
print.__self__.open("/etc/hostname")
## random._os -> refused
import random
hunt(random._os.environ.values())
random._os.listdir("/")
## format string -> ok
hunt(["{0.__self__.__class__.__init__.__globals__}".format(search)])
hunt(["{0.__func__.__globals__[os].environ}".format(FINAL.__self__._finish)])
## a callback's exception -> ok
for mistake in (lambda: llm_query(3), lambda: search(1, 2), lambda: rlm_query("q", {1: [object]})):
    try:
        mistake()
    except Exception as error:
        hunt([str(error), repr(error.args)])
        if "/" in str(error):
            print("ESCAPED", error)
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
