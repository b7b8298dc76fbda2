# frozen_string_literal: true

module Dibs
  # Batch makes one call of what is asked at the same time, without waiting: a caller that is alone
  # sends at once, and what others ask meanwhile is the next call. There is no thread for it. The first
  # caller in the queue leads: it sends the call, with others as its riders. A call that takes longer
  # than SLOW holds nobody up, because then another one may leave.
  class Batch # :nodoc:
    SLOW = 0.1      # seconds
    BYTES = 1 << 18 # of a call
    ALONE = 1 << 16 # bytes of an element that is sent alone
    private_constant :SLOW, :BYTES, :ALONE

    # Rider is an element on its way. turn wakes its caller. again is when it was sent before and not
    # answered. call is the Call that it leads.
    class Rider
      attr_reader :token, :text, :ends, :turn
      attr_accessor :call, :sent, :again, :answer, :error, :gone

      def initialize(element, text, ends)
        @token, @text, @ends = element[:token], text, ends
        @turn = ConditionVariable.new
      end

      def over?
        answer || error
      end
    end

    # Call is a call that is under way.
    Call = Struct.new(:riders, :began)

    def initialize(wire, verb, clock)
      @wire, @verb, @clock = wire, verb, clock
      @lock = Mutex.new
      @queue = []
      @calls = []
    end

    # call sends an element and returns its answer, when it was sent, and when it was sent before and
    # not answered, or nil. An exception of another thread, or a kill, may strike its caller meanwhile:
    # then the element may have been sent.
    def call(element, timeout)
      text = JSON.generate(element)
      # A program that ends kills its threads, and a killed one waits for no other.
      return alone(text, timeout) if text.bytesize > ALONE || Dibs.ending?

      rider = Rider.new(element, text, @clock.now + timeout)
      begin
        Thread.handle_interrupt(Object => :never) { enter(rider) }
        follow(rider)
        lead(rider) if rider.call
      ensure
        Thread.handle_interrupt(Object => :never) { leave(rider) }
      end
      return alone(text, timeout, rider.again) if rider.answer == :alone
      raise rider.error if rider.error

      [rider.answer, rider.sent, rider.again]
    end

    # flying? reports whether a call with the token is under way whose caller has left.
    def flying?(token)
      @lock.synchronize { @calls.any? { |c| c.riders.any? { |r| r.gone && !r.over? && r.token == token } } }
    end

    private

    def alone(text, timeout, before = nil)
      answers, sent, again = @wire.call(@verb, [text], timeout: timeout)
      [answers[0], sent, again || before]
    rescue Error => e
      e.unanswered ||= before
      raise
    end

    def enter(rider)
      @lock.synchronize do
        @queue << rider
        begin_call
      end
    end

    # begin_call lets the first in the queue lead, unless a call is under way.
    def begin_call
      now = @clock.now
      return if @queue.empty? || @calls.any? { |c| now < c.began + SLOW }

      rider = @queue.shift
      @calls << rider.call = Call.new([], now)
      rider.turn.signal
    end

    # follow waits until the rider is answered, or leads.
    def follow(rider)
      @lock.synchronize do
        until rider.over? || rider.call
          left = rider.ends - @clock.now
          return rider.error = late(rider) unless left.positive?

          rider.turn.wait(@lock, [left, SLOW].min)
          begin_call
        end
      end
    end

    def late(rider)
      Unavailable.new("dibs: #{@verb}: no server answered in time").tap { |e| e.unanswered = rider.sent || rider.again }
    end

    # lead makes the call of all that is asked now.
    def lead(rider)
      left = rider.ends - @clock.now
      return rider.error = late(rider) unless left.positive?

      answers, sent, again = @wire.call(@verb, board(rider).map(&:text), timeout: left)
      deliver(rider) { |r, i| [r.answer = answers[i], r.sent = sent, r.again = again || r.again] }
    rescue Error => e
      # One element may be why the call is refused, such as a place of another namespace.
      refused = e.is_a?(Refused) && !e.is_a?(Overloaded) && !e.unanswered && rider.call.riders.size > 1
      over = @clock.now >= rider.ends # those that have more time are sent again
      deliver(rider) do |r, _|
        next r.answer = :alone if refused
        next if over && !r.equal?(rider) && r.ends > rider.ends

        r.error = r.equal?(rider) ? e : e.dup
        r.error.unanswered = e.unanswered || r.again
      end
    end

    # board takes what is queued, as far as a call has room for it.
    def board(rider)
      Thread.handle_interrupt(Object => :never) do
        @lock.synchronize do
          size, now = rider.text.bytesize, @clock.now
          fits = @queue.take(MAX_ELEMENTS - 1).take_while { |r| (size += r.text.bytesize) <= BYTES }
          @queue.shift(fits.size)
          rider.call.riders = [rider, *fits].each { |r| r.sent = now }
        end
      end
    end

    def deliver(rider, &block)
      Thread.handle_interrupt(Object => :never) do
        @lock.synchronize do
          rider.call.riders.each_with_index(&block)
          rider.call.riders.each { |r| r.turn.signal if r.over? }
        end
      end
    end

    # leave ends a caller's part. What a leader has not delivered is sent again, first of all.
    def leave(rider)
      @lock.synchronize do
        rider.gone = true
        @queue.delete(rider)
        next unless rider.call

        left = rider.call.riders.reject { |r| r.over? || r.gone }
        left.each { |r| r.again ||= r.sent }
        @queue.unshift(*left)
        @calls.delete_if { |c| c.equal?(rider.call) }
        begin_call
      end
    end
  end
end
