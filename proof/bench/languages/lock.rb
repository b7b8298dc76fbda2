# Locks and unlocks keys of its own for a time, and prints how often a second.
require "dibs"

KEYS = Dibs.connect(ARGV[1])

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

def cycles(seconds)
  count = 0
  start = now
  while now - start < seconds
    KEYS.lock("dibs, cycle #{count}", ttl: 30) {}
    count += 1
  end
  count / (now - start)
end

seconds = Float(ARGV[2])
cycles(seconds / 4)
puts cycles(seconds)
