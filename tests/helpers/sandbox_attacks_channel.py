"""Hostile cells that deceive the host over its channel: one attack each.

Same format as in `sandbox_attacks_outward.py`. `echo(value)` is a sub-call that returns the value
which the host received. `frame` makes an honest frame, `send` sends one and loops, `forge` sends
any JSON as one.
"""

CHANNEL = r"""
## text subclass -> ok
class Liar(str):
    def __str__(self): return "lie"
    def __eq__(self, other): return True
    def __hash__(self): return 0
assert "".join(echo([Liar("a"), Liar("b")])) == "ab"
## number subclass -> ok
class Liar(int):
    def __repr__(self): return "1e999"
assert echo(Liar(7)) == 7
## endless generator -> cpu, memory, memory lost, cpu lost
echo(i for i in itertools.count())
## fifty megabytes -> memory, exception, cpu
echo("x" * 50_000_000)
## one text sixty gigabytes long -> exception
echo(["x" * 4_000_000] * 15_000)
## keys of sixty gigabytes -> exception
echo([{"x" * 4_000_000: 1}] * 8_000)
## garbage -> killed lost
send(b"garbage" * 100)
## two gigabytes announced -> killed lost
send((2**31 - 1).to_bytes(4, "big"))
## half a frame -> exit lost
os.write(3, b"\0\0\1\0" + b"x" * 100)
os._exit(0)
## half a frame and a loop -> killed lost
send(b"\0\0\1\0" + b"x" * 100)
## forged call -> cpu
send(frame("call", NUMBER, {"fn": "llm_query", "prompts": ["x"], "contexts": None}))
## forged call of another cell -> killed lost
forge({"t": "call", "n": NUMBER + 1, "v": None, "b": []})
## forged call to the host's own functions -> killed lost
send(frame("call", NUMBER, {"fn": "__init__", "prompts": ["x"], "contexts": None}))
## forged done with the right id -> ok
send(frame("done", NUMBER, REPORT))
## forged done with a long output -> killed lost
send(frame("done", NUMBER, {**REPORT, "stdout": "x" * 100_000}))
## forged done of a stop that was not -> killed lost
send(frame("done", NUMBER, {**REPORT, "error": "stopped"}))
## forged ready -> killed lost
forge({"t": "ready", "n": NUMBER, "v": [], "b": []})
## forged sixty gigabytes -> killed lost
data = b"x" * 4_000_000
head = json.dumps({"t": "final", "n": NUMBER, "v": [{"s": 0}] * 15_000, "b": [len(data)]}).encode()
os.write(3, struct.pack("!II", 4 + len(head) + len(data), len(head)) + head)
worker._channel.send(data)
while True: pass
## the channel read -> killed lost
while True:
    try: os.read(3, 1)
    except BaseException: pass
## twenty thousand calls -> ok, cpu
for i in range(20_000):
    assert llm_query(str(i)) == str(i)
"""
