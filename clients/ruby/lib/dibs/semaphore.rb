# frozen_string_literal: true

module Dibs
  # Semaphore is a mixin: its block runs in both cases and is told which.
  module Semaphore
    # with_semaphore_lock yields :locked while it holds the key, or :skipped at once if another
    # caller holds it, and returns what the block returns. The same key in another namespace is
    # another key: it is the key "NAMESPACE:KEY" of Client#lock. The lease is renewed while the block runs. The client is Dibs.default. It raises
    # the errors of Client#lock except Held.
    def with_semaphore_lock(key, ttl: TTL, namespace: nil)
      raise ArgumentError, "dibs: a key is a String that is not empty, not #{key.inspect}" unless key.is_a?(String) && !key.empty?

      name = namespace ? "#{namespace.to_s.gsub(/[%:]/) { |c| format("%%%02X", c.ord) }}:#{key}" : key
      ours = true
      begin
        return Dibs.default.lock(name, ttl: ttl, wait: 0) do
          ours = false
          yield :locked
        end
      rescue Held
        raise unless ours # the block's own
      end
      yield :skipped
    end
  end

  # LockManager locks and unlocks keys without a block. A lock lasts for its ttl and is not
  # renewed, so that one that is forgotten ends by itself. As with a Mutex, only the thread (and the
  # fiber) that locked a key can unlock it, and only with the same manager. One manager for the
  # program is safe for threads.
  class LockManager
    def initialize(client = Dibs.default)
      @client = client
      @leases = {}
      @mutex = Mutex.new
    end

    # lock takes the key for ttl seconds, without waiting. It returns true, or false if the key is
    # held, also by this manager.
    def lock(key, ttl = TTL)
      lease = @client.acquire(key, ttl: ttl, wait: 0, renew: false)
      @mutex.synchronize do
        @leases.delete_if { |_, l| !l.held? } if @leases.size >= 1000 # forgotten ones
        @leases[[Fiber.current, key.dup.freeze]] = lease
      end
      true
    rescue Held
      false
    end

    # unlock gives the key back. It returns false if this thread has not locked it with this manager,
    # or does not hold it any more.
    def unlock(key)
      lease = @mutex.synchronize { @leases.delete([Fiber.current, key]) }
      return false unless lease

      lease.release
      true
    rescue Lost
      false
    end

    # locked? reports whether the key is held by any program.
    def locked?(key)
      @client.held?(key)
    end
  end
end
