"""Hostile cells that exhaust or break the process that runs them: one attack each.

Same format as in `sandbox_attacks_outward.py`; `# next cell` begins another cell of the attack.
"""

CPU = r"""
## swallows BaseException -> cpu lost
def f(): sum(i for i in range(10**9))
while True:
    try: f()
    except BaseException: pass
## power -> cpu, cpu lost
10 ** 10 ** 8
## regular expression -> cpu
re.match("(a+)+$", "a" * 40 + "b")
## sleep -> exception
time.sleep(10**6)
## sleep by select -> refused
select.select([], [], [], 0.2)
## sleep on a lock -> ok
lock = threading.Lock()
lock.acquire()
lock.acquire(timeout=10**6)
## sleep on a queue -> cpu
queue.Queue().get()
## gives its processor away -> cpu
while True: os.sched_yield()
## SIGALRM ignored -> cpu
try: signal.signal(signal.SIGALRM, signal.SIG_IGN)
except OSError: pass
while True: pass
## all signals blocked -> cpu
try: signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
except OSError: pass
while True: pass
## in a destructor -> cpu, cpu lost
class A:
    def __del__(self):
        while True: pass
a = A()
del a
## in an exception's text -> cpu
class E(Exception):
    def __str__(self):
        while True: pass
raise E
## in a repr -> cpu
class A:
    def __repr__(self):
        while True: pass
A()
## in a final -> cpu
class A:
    def __str__(self):
        while True: pass
FINAL(A())
## thread pool -> cpu
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda n: sum(1 for _ in iter(int, 1)), range(8)))
"""

MEMORY = r"""
## growth loop -> memory lost, cpu, cpu lost
x = []
while True: x.append("a" * 10**6 + str(len(x)))
## swallows MemoryError -> cpu, cpu lost, memory lost
x = []
while True:
    try: x.append(bytearray(10**6))
    except MemoryError: pass
## repr amplification -> memory, cpu
text = "a" * 10**7
class Long:
    def __repr__(self): return text
x = [Long()]
for _ in range(7): x = [x, x]
print(repr(x))
## tiny objects -> memory lost, cpu, cpu lost
x = []
while True: x.append([])
## held across cells -> memory
x = bytearray(25_000_000)
# next cell
y = bytearray(25_000_000)
# next cell
z = bytearray(25_000_000)
## shared pages -> refused
pages = []
while True: pages.append(mmap.mmap(-1, 10**7))
## zip bomb -> memory
bomb = zlib.compress(zlib.compress(bytes(10**7), 1), 1)
while True: bomb = zlib.decompress(bomb, bufsize=10**8)
"""

OUTPUT = r"""
## endless prints -> cpu
while True: print("x" * 10**6)
## endless empty writes -> cpu
while True: sys.stdout.write("")
## one huge print -> memory
print("a" * 200_000_000)
## a huge echo -> ok
"a" * 10_000_000
## a huge message -> exception
raise ValueError("a" * 10_000_000)
## a huge name -> ok
globals()["a" * 1_000_000] = 1
## long lines in a traceback -> exception
exec("1 / 0" + " " * 1_000_000)
## raw standard input -> refused
os.read(0, 1)
## raw other descriptors -> ok
for fd in [1, 2, *range(4, 70), 1000]:
    refused(os.write, fd, b"x")
## C's own printf -> ok
libc.printf(b"ESCAPED")
libc.fflush(None)
"""

PARSER = r"""
## deep recursion -> exception
def f(): f()
f()
## raised recursion limit -> cpu, cpu lost, memory, memory lost, killed lost
sys.setrecursionlimit(10**9)
def f(x): return f([x])
f(1)
## nested source -> exception
eval("(" * 5000 + ")" * 5000)
## huge number as source -> exception
eval("1" * 100_000)
## NFKC identifiers -> refused
exec("\uff4f\uff53.listdir('/')")
## code object by hand -> killed lost, exception
code = (lambda: 0).__code__
exec(code.replace(co_code=bytes([101, 255, 83, 0]), co_names=()))
## pickle of a command -> ok
class Evil:
    def __reduce__(self): return os.system, ("true",)
if pickle.loads(pickle.dumps(Evil())) == 0: print("ESCAPED")
"""

EXIT = r"""
## os._exit -> exit lost
os._exit(0)
## abort -> killed lost
os.abort()
## sys.exit -> exit
sys.exit(0)
## KeyboardInterrupt -> exception
raise KeyboardInterrupt
## all descriptors closed -> ok
os.closerange(0, 1000)
## the channel closed -> refused
os.close(3)
## exit with handlers -> exit
atexit.register(lambda: print("ESCAPED"))
sys.exit(1)
"""

TAMPERING = r"""
## functions of the REPL -> ok
FINAL = FINAL_VAR = search = list_papers = print
llm_query = rlm_query = rlm_query_batched = print
## context -> ok
context = {"p1": "forged"}
## context deleted -> ok
del search, FINAL, context
## builtins -> ok
import builtins
builtins.print = builtins.len = builtins.__import__ = None
## builtins cleared -> exit lost
import builtins
builtins.__dict__.clear()
## sys.modules -> ok
sys.modules.clear()
## output -> ok
sys.stdout = sys.stderr = None
## settrace -> exception
sys.settrace(lambda *a: 1 / 0)
## audit hook -> killed lost
sys.addaudithook(lambda *a: 1 / 0)
## recursion limit -> ok
sys.setrecursionlimit(50)
## hooks -> ok
sys.displayhook = sys.excepthook = sys.unraisablehook = None
## garbage collector -> ok
gc.disable()
gc.set_threshold(1)
gc.callbacks.append(lambda *a: 1 / 0)
## methods of helpers -> ok
type(search.__self__).search = None
## methods of the worker -> ok
type(FINAL.__self__._finish.__self__).run = None
## methods of the output -> killed lost
type(sys.stdout).text = lambda self: "x" * 10**6
## a module that answers -> killed lost
class Liar:
    def __eq__(self, other): raise KeyboardInterrupt
sys.modules["json"] = Liar()
## a builtin that answers for ever -> cpu lost
import builtins
class Liar:
    def __eq__(self, other):
        while True: pass
builtins.len = Liar()
## a text that lies -> killed lost
class Liar(str):
    def __len__(self): return 0
    def __getitem__(self, key): return Liar("x" * 10**6)
print(Liar("x" * 10_000))
sys.stdout.write(Liar("y" * 10_000))
## names that are none -> ok
globals()[1] = globals()[None] = 2
## the output's parts -> killed lost
sys.stdout._parts.append("x" * 10**6)
## limits of the output -> killed lost
sys.stdout._limit = 10**9
print("x" * 10**6)
## the cell's number -> ok
worker._number += 1
## namespace -> ok
globals().clear()
## warnings -> ok
warnings.simplefilter("error")
## hash of texts -> exception
str.__hash__ = None
## rlimits raised -> exception
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
## rlimits lowered -> exception
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
## rights -> ok
refused(native, "prlimit64", 0, 7, (1000).to_bytes(8, "little") * 2, 0)
refused(os.setuid, 0)
refused(os.setgroups, [0])
## umask -> exception
os.umask(0)
"""

SOURCES = {
    "NUL": "a\0b",
    "lone surrogate": "x = '\ud800' + )",
    "bidi": "x = \u202e1",
    "open brackets": "(" * 5000,
    "a megabyte of minus": "-" * 1_000_000 + "1",
    "form feeds and tabs": "if 1:\n\tx = 1\n        y = 2\n\fz",
}
"""Cells that no parser accepts: each ends as `syntax`."""
