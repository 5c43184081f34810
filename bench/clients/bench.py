"""bench.py idem|redis PORT SECONDS THREADS: calls a second."""
import os
import sys
import threading
import time

import redis

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../clients/python"))
import idem  # noqa: E402

what, port, seconds, callers = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
name, counts = os.urandom(6).hex(), [0] * callers
client = idem.Client("idem://127.0.0.1:%d" % port, scope="bench")
server = redis.Redis(port=port)


def empty():
    return {"order": 7}


def once(key):
    client.once(key, empty)


def bare(key):
    if server.set(key, "claimed", nx=True, px=86400000):
        server.set(key, '{"order":7}', px=86400000)


def call(i):
    work = once if what == "idem" else bare
    while time.monotonic() < end:
        work("%s-%d-%d" % (name, i, counts[i]))
        counts[i] += 1


begin = time.monotonic()
end = begin + seconds
threads = [threading.Thread(target=call, args=(i,)) for i in range(callers)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sum(counts) / (time.monotonic() - begin))
