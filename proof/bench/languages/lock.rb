# lock.rb SIDE ADDRESS SECONDS [THREADS]: so many threads at the same time lock and unlock keys of their own for a
# time. It prints how often a second, and for dibs how many HTTP calls a lock takes.
require "securerandom"

SIDE, ADDRESS, SECONDS, THREADS = ARGV[0], ARGV[1], Float(ARGV[2]), Integer(ARGV[3] || 1)
$calls = 0

# Counted counts calls.
module Counted
  def exchange(...)
    $calls += 1
    super
  end
end

if SIDE == "dibs"
  require "dibs"
  Dibs::Connection.prepend(Counted)
  KEYS = Dibs.connect(ADDRESS)

  def lock(key) = KEYS.lock(key, ttl: 30) {}
else # what many write themselves: SET NX PX, and a script that deletes what it has set
  begin
    Gem.use_paths(nil, [*Gem.path, ENV["GEMS"]].compact)
    require "redis"
  rescue LoadError
    exit 3
  end
  DELETE = "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1]) or 0"

  # A Redis is one connection with a lock, so each thread has its own.
  def lock(key)
    client = Thread.current[:redis] ||= Redis.new(url: ADDRESS)
    token = SecureRandom.hex(16)
    raise "held" unless client.set(key, token, nx: true, px: 30_000)

    client.eval(DELETE, keys: [key], argv: [token])
  end
end

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

def cycles(seconds)
  $calls, start = 0, now
  locks = Array.new(THREADS) do |i|
    work = lambda do
      count = 0
      while now - start < seconds
        lock("#{SIDE}, thread #{i}, cycle #{count}")
        count += 1
      end
      count
    end
    THREADS == 1 ? work : Thread.new(&work)
  end.sum { |one| one.is_a?(Thread) ? one.value : one.call }
  [locks / (now - start), SIDE == "dibs" ? $calls.fdiv(locks) : ""]
end

cycles(SECONDS / 4)
puts cycles(SECONDS).join(" ")
