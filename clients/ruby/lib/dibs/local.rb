# frozen_string_literal: true

module Dibs
  # Local is what a client has in one process: its connections, what its callers ask at the same time,
  # and two threads.
  class Local # :nodoc:
    attr_reader :pid, :wire, :renewer, :undoer

    def initialize(address, timeout)
      @timeout = timeout
      @pid = Process.pid
      @wire = Wire.new(address, timeout)
      # What a record may answer goes apart, because a large one would hold the others up.
      @claims, @readers, @settlements = %w[claim claim settle].map { |verb| Batch.new(@wire, verb) }
      @lock = Mutex.new
      @waits = 0 # callers that wait for a key
      @left = ConditionVariable.new
      @renewer = Renewer.new(self, timeout)
      @undoer = Undoer.new(self, timeout)
    end

    # call makes a call of these elements. See Wire#call.
    def call(verb, elements, **options)
      @wire.call(verb, elements.map { |e| JSON.generate(e) }, **options)
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

    # wait_begins and wait_ends are called around the wait of a caller.
    def wait_begins
      @lock.synchronize { @waits += 1 }
    end

    def wait_ends
      @lock.synchronize do
        @waits -= 1
        @left.broadcast
      end
    end

    # end_waits ends the calls that wait, and then waits for their callers, for that many seconds.
    def end_waits(limit)
      ends = Dibs.now + limit
      @wire.end_waits
      @lock.synchronize do
        until @waits.zero? || (left = ends - Dibs.now) <= 0
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
