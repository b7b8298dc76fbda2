# frozen_string_literal: true

module Dibs
  # Local is what a client has in one process: its connections, what its callers ask at the same time,
  # and two threads.
  class Local # :nodoc:
    attr_reader :pid, :wire, :renewer, :undoer

    def initialize(address, timeout)
      @timeout, @clock = timeout, address.clock
      @pid = Process.pid
      @wire = Wire.new(address, timeout)
      # What a record may answer goes apart, because a large one would hold the others up.
      @claims, @readers, @settlements = %w[claim claim settle].map { |verb| Batch.new(@wire, verb, @clock) }
      @lock = Mutex.new
      @waits = {} # the claims of callers that wait for a key
      @left = ConditionVariable.new
      @renewer = Renewer.new(self, timeout)
      @undoer = Undoer.new(self, timeout)
      @clock.drive(self) unless threads?
    end

    # now is the time of the leases, in seconds, and sleep waits.
    def now
      @clock.now
    end

    def sleep(seconds)
      @clock.sleep(seconds)
    end

    # threads? reports whether the renewer and the undoer have threads. Otherwise the clock drives
    # them: when due has come it calls work.
    def threads?
      @clock.threads?
    end

    def due
      [@renewer.due, @undoer.due].compact.min
    end

    def work
      @renewer.work
      @undoer.work
    end

    # call makes a call of these elements. See Wire#call.
    def call(verb, elements, **options)
      @wire.call(verb, elements.map { |e| JSON.generate(e) }, **options)
    end

    # call_all makes a call of these elements, and returns the answer to each and when it was sent, or nil
    # for one that has none. One element may be why a call is refused, so the halves are asked then.
    def call_all(verb, elements, timeout:)
      answers, sent = call(verb, elements, timeout: timeout)
      answers.map { |answer| [answer, sent] }
    rescue Error => e
      of_one = e.is_a?(Refused) && !e.unanswered && !e.is_a?(Unauthorized) && !e.is_a?(Overloaded)
      return elements.map { nil } unless of_one && elements.size > 1

      elements.each_slice((elements.size + 1) / 2).flat_map { |half| call_all(verb, half, timeout: timeout) }
    end

    # claim sends a claim, with others unless it waits, and returns its answer, when it was sent, and
    # when it was sent before and not answered, or nil.
    def claim(element, wait: 0.0)
      return (element[:max_age_ms] ? @readers : @claims).call(element, @timeout) unless wait.positive?

      answers, sent, again = call("claim", [element], wait: wait)
      [answers[0], sent, again]
    end

    # flying? reports whether a claim of the token is under way that its caller does not wait for.
    def flying?(token)
      @claims.flying?(token) || @readers.flying?(token)
    end

    # settle sends a settlement, with others, and returns what claim does.
    def settle(element)
      @settlements.call(element, @timeout)
    end

    # trying asks by the block, and again for that many seconds if no server answers or the store is busy. It
    # returns the answer, which has no error but lost, and whether the call may have been done before.
    def trying(claim, patience)
      tries = Tries.new(patience, self)
      repeated = nil
      begin
        answer, _, again = yield
        repeated ||= again
        type, detail = answer["error"]&.values_at("type", "detail")
        raise Client.error(type, detail, claim) if type && type != "lost"

        [answer, repeated]
      rescue Error => e
        repeated = e.unanswered ||= repeated
        retry if [Unavailable, Busy, Overloaded].any? { |c| e.is_a?(c) } && tries.again?
        Hooks.tell(:unavailable, claim, Dibs.plain(e.message), error: e) if e.is_a?(Unavailable)
        raise
      end
    end

    # holder returns the Holder of a key, or nil.
    def holder(claim)
      query = { key: claim.key, namespace: claim.namespace }.reject { |_, v| v.empty? }
      run = @wire.get("/v1/keys?#{URI.encode_www_form(query)}").flat_map { |entry| entry["state"] == "held" ? entry["runs"] : [] }.first
      run && Holder.new(*run["owner"].values_at("host", "pid", "label"), run["id"], run["since_ms"] / 1000.0)
    rescue Error
      nil
    end

    # wait_begins and wait_ends are called around the wait of a caller.
    def wait_begins(claim)
      @lock.synchronize { @waits[claim.token] = claim }
    end

    def wait_ends(claim)
      @lock.synchronize do
        @waits.delete(claim.token)
        @left.broadcast
      end
    end

    # endless? reports whether the caller with the token waits without a limit.
    def endless?(token)
      @lock.synchronize { @waits.key?(token) && @waits[token].wait.nil? }
    end

    # end_waits ends the calls that wait, and then waits for their callers, for that many seconds.
    def end_waits(limit)
      ends = @clock.now + limit
      @wire.end_waits
      @lock.synchronize do
        until @waits.empty? || (left = ends - @clock.now) <= 0
          @left.wait(@lock, left)
        end
      end
    end

    def abandon
      @wire.abandon
    end

    def close
      @wire.close
    end
  end
end
