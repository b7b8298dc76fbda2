# frozen_string_literal: true

module Dibs
  # Client takes, waits for, renews and settles leases. Make one with Dibs.connect.
  class Client
    # timeout bounds one call, in seconds. namespace is that of the keys. schema and prefix name the
    # store's tables in PostgreSQL.
    attr_reader :timeout, :namespace, :schema, :prefix

    # A client has these defaults: ttl of its leases, timeout of a call, the namespace of its keys
    # (default: the server's or the credential's), and a label that tells operators what the keys
    # are held for. For complete_in, reserve_in and once with in:, schema and prefix are those of the
    # store's URL. With secret_keys messages and events have the digest of a key in place of the key.
    def initialize(url, ttl: TTL, timeout: TIMEOUT, namespace: "", label: File.basename($PROGRAM_NAME), schema: "public", prefix: "dibs",
                   secret_keys: false)
      @address = url.respond_to?(:servers) ? url : Address.new(url)
      @ttl = Dibs.seconds(ttl, "ttl", MIN_TTL)
      @timeout = Dibs.seconds(timeout, "timeout", 0.001)
      @namespace, @label = namespace, label
      @schema, @prefix = schema, prefix
      @secret_keys = secret_keys
      @lock = Mutex.new
    end

    # lock runs the block while it holds the key, and returns what the block returns. Callers get
    # the key in the order in which they arrive.
    #
    # wait: how long to wait before it raises Held; 0: not at all. Default: without limit.
    # ttl: of the lease. Default: that of the client, 30 seconds. It is renewed while the block runs.
    # permits, weight: how many permits the key has, and how many the lease takes. Default: 1.
    # fingerprint: the SHA-256, in 64 hexadecimal digits, of what is asked under the key.
    # at_most_once: refuses to run again after a holder that ended without an outcome.
    # stop_timeout: how long the lease ends before another caller can get the key.
    # max_lifetime: how long the lease may last in all.
    # label: what operators see.
    #
    # Every way out of the block releases the key. If the lease was lost, lock raises Lost when the
    # block ends, unless the block raised an error. A caller that already holds the key in this
    # thread gets Held at once, because its wait would never end. lock also raises Mismatch,
    # Unknown, Unavailable, Busy, Full, Refused and its kinds, and Closed.
    def lock(key, **options, &block)
      raise ArgumentError, "dibs: lock needs a block; acquire returns a lease" unless block

      hold(asked(key, options), &block)
    end

    # acquire takes the key like lock and returns the Lease, which is renewed until it is settled.
    # max_age (seconds, or :any) accepts a record up to that age: acquire then raises Done. With
    # renew: false the lease lasts for its ttl.
    def acquire(key, max_age: nil, renew: true, **options)
      max_age = Dibs.seconds(max_age, "max_age") if max_age && max_age != :any
      claim = asked(key, options, max_age: max_age)
      lease = got = nil
      begin
        Thread.handle_interrupt(Object => :never) { lease = take(claim, renew) }
        got = lease
      ensure
        lease.undo_later if lease && !got # an exception from another thread was waiting
      end
    end

    # held? reports whether a caller holds the key, or comes before a new one. It changes nothing.
    def held?(key)
      claim = claim(key)
      answer = look(claim)
      return answer["state"] == "held" if %w[held free].include?(answer["state"])

      raise refusal(claim, answer)
    end

    # close settles what is to be undone, for at most the timeout, and closes the connections of
    # this process. Callers that wait get Closed. Leases that are held are not renewed any more.
    def close
      @closed = true
      Dibs.clients.delete(self)
      here = @local
      return unless here && here.pid == Process.pid

      ends = here.now + @timeout
      here.end_waits(@timeout)
      here.undoer.flush(ends - here.now)
      here.renewer.stop
      here.undoer.stop
      here.close
      nil
    end

    # inspect shows no token.
    def inspect
      "#<Dibs::Client #{@address.servers.join(",")}>"
    end

    # flush waits until what is undone in the background is done. At the end of the program it is
    # called by itself.
    def flush(limit = @timeout)
      here = @local
      here && here.pid == Process.pid ? here.undoer.flush(limit) : 0
    end

    # forked is called in a process that was forked.
    def forked # :nodoc:
      here = @local
      @local = nil
      here&.abandon
    end

    # error is the error of an element.
    def self.error(type, detail, claim) # :nodoc:
      kind = { "lost" => Lost, "busy" => Busy, "full" => Full, "too_large" => TooLarge }.fetch(type, Refused)
      kind.new("dibs: the key #{claim.shown}: #{Dibs.plain(detail || type)}", key: claim.key)
    end

    private

    # local is what the client has in this process.
    def local
      open!
      here = @local
      return here if here && here.pid == Process.pid

      @lock.synchronize do
        @local = nil if @local && @local.pid != Process.pid
        Dibs.clients << self unless Dibs.clients.include?(self)
        @local ||= Local.new(@address, @timeout)
      end
    end

    def open!
      raise Closed, "dibs: the client is closed" if @closed
    end

    # OPTIONS are what a caller may say of a lock.
    OPTIONS = %i[ttl wait permits weight fingerprint at_most_once stop_timeout max_lifetime label].freeze
    private_constant :OPTIONS

    # asked is the claim of a caller's options, and of what the method adds.
    def asked(key, options, **more)
      unknown = options.keys - OPTIONS
      bad "unknown keyword: #{unknown.join(", ")}; there are #{OPTIONS.join(", ")}" unless unknown.empty?
      claim(key, **options, **more)
    end

    # claim validates what the caller asks for.
    def claim(key, ttl: nil, wait: nil, permits: 1, weight: 1, fingerprint: nil, at_most_once: false, stop_timeout: nil,
              max_lifetime: nil, label: nil, max_age: nil, grace: nil, place_ttl: nil, from: nil, token: nil, namespace: @namespace)
      valid_key(key)
      ttl = ttl ? Dibs.seconds(ttl, "ttl", MIN_TTL) : @ttl
      wait = Dibs.seconds(wait, "wait") if wait
      grace = Dibs.seconds(grace, "grace") if grace
      max_lifetime = Dibs.seconds(max_lifetime, "max_lifetime") if max_lifetime
      stop_timeout = Dibs.seconds(stop_timeout, "stop_timeout") if stop_timeout
      bad "stop_timeout is #{stop_timeout}; it must be at most half of the ttl of #{ttl}" if stop_timeout && stop_timeout > ttl / 2
      bad "permits is #{permits.inspect}; it must be 1 to 65536" unless permits.is_a?(Integer) && permits.between?(1, 65_536)
      bad "weight is #{weight.inspect}; it must be 1 to permits" unless weight.is_a?(Integer) && weight.between?(1, permits)
      bad "permits cannot be more than 1 together with at_most_once or max_age" if permits > 1 && (at_most_once || max_age)
      if fingerprint && !fingerprint.to_s.match?(/\A\h{64}\z/)
        bad "fingerprint is not a SHA-256 in 64 hexadecimal digits, such as Digest::SHA256.hexdigest(text)"
      end
      Claim.new(key.dup.freeze, ttl: ttl, wait: wait, permits: permits, weight: weight, fingerprint: fingerprint,
                at_most_once: at_most_once, stop_timeout: stop_timeout, max_lifetime: max_lifetime, max_age: max_age, grace: grace,
                place_ttl: place_ttl, from: from, token: token, namespace: namespace, secret_keys: @secret_keys,
                owner: { host: HOST, pid: Process.pid, label: (label || @label).to_s.scrub[0, 100] })
    end

    HOST = Socket.gethostname.scrub
    private_constant :HOST

    def valid_key(key)
      bad "a key is a String, not #{key.class}" unless key.is_a?(String)
      bad "the key has #{key.bytesize} bytes; it must have 1 to 512" unless key.bytesize.between?(1, 512)
    end

    def bad(why)
      raise ArgumentError, "dibs: #{why}"
    end
  end
end
