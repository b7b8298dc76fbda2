"""Locks and unlocks keys of its own for a time, and prints how often a second."""
import sys
import time

side, address, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])

if side == "dibs":
    import dibs

    keys = dibs.connect(address)

    def lock(key):
        with keys.lock(key, ttl=30):
            pass

else:
    try:
        import redis
    except ImportError:
        sys.exit(3)
    client = redis.Redis.from_url(address)

    def lock(key):
        with client.lock(key, timeout=30):
            pass


def cycles(seconds):
    count, start = 0, time.monotonic()
    while time.monotonic() - start < seconds:
        lock(f"{side}, cycle {count}")
        count += 1
    return count / (time.monotonic() - start)


cycles(seconds / 4)
print(cycles(seconds))
