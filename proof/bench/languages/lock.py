"""lock.py SIDE ADDRESS SECONDS [threads|tasks COUNT]: so many callers at the same time lock and unlock keys of
their own for a time. It prints how often a second, and how many HTTP calls a lock took.
"""
import asyncio
import secrets
import sys
import threading
import time

side, address, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
how, count = (sys.argv[4], int(sys.argv[5])) if len(sys.argv) > 4 else ("threads", 1)
calls = 0

if side == "dibs":
    import dibs.servers

    keys = dibs.connect(address)
    sent = dibs.servers.Servers._ask

    def counted(*args):
        global calls
        calls += 1
        return sent(*args)
    dibs.servers.Servers._ask = counted

    def lock(key):
        with keys.lock(key, ttl=30):
            pass

    async def lock_async(key):
        async with keys.aio.lock(key, ttl=30):
            pass

else:  # what many write themselves: SET NX PX, and a script that deletes what it has set
    try:
        import redis
        import redis.asyncio
    except ImportError:
        sys.exit(3)
    client, client_async = redis.Redis.from_url(address), redis.asyncio.Redis.from_url(address, max_connections=1000)
    DELETE = "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1]) or 0"

    def lock(key):
        token = secrets.token_hex(16)
        assert client.set(key, token, nx=True, px=30_000)
        client.eval(DELETE, 1, key, token)

    async def lock_async(key):
        token = secrets.token_hex(16)
        assert await client_async.set(key, token, nx=True, px=30_000)
        await client_async.eval(DELETE, 1, key, token)


def in_threads(seconds):
    done, ends = [0] * count, time.monotonic() + seconds

    def work(i):
        while time.monotonic() < ends:
            lock(f"{side}, caller {i}, cycle {done[i]}")
            done[i] += 1
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done)


async def in_tasks(seconds):
    done, ends = [0] * count, time.monotonic() + seconds

    async def work(i):
        while time.monotonic() < ends:
            await lock_async(f"{side}, caller {i}, cycle {done[i]}")
            done[i] += 1
    await asyncio.gather(*(work(i) for i in range(count)))
    return sum(done)


async def both():
    global calls
    await in_tasks(seconds / 4)
    calls, start = 0, time.monotonic()
    return await in_tasks(seconds), time.monotonic() - start


if how == "tasks":
    locks, took = asyncio.run(both())
else:
    in_threads(seconds / 4)
    calls, start = 0, time.monotonic()
    locks = in_threads(seconds)
    took = time.monotonic() - start
print(locks / took, calls / locks)
