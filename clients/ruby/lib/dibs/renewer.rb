# frozen_string_literal: true

module Dibs
  # Renewer renews the leases of a process: one thread, and one call for all that are due.
  class Renewer # :nodoc:
    def initialize(local, timeout)
      @local, @timeout = local, timeout
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @leases = {}
      @wakes = Float::INFINITY # when the thread looks again
    end

    def add(lease)
      @lock.synchronize do
        @leases[lease] = true
        unless @thread&.alive? || !@local.threads?
          # A thread begins with the mask of the one that starts it.
          @thread = Thread.new { Thread.handle_interrupt(Object => :immediate) { run } }
          @thread.name = "dibs renewer"
        end
        @changed.signal if lease.due < @wakes
      end
    end

    def remove(lease)
      @lock.synchronize { @leases.delete(lease) }
    end

    def stop
      @lock.synchronize { @leases.clear }
      @thread&.kill
    end

    # due is when the next renewal is due, or nil.
    def due
      @lock.synchronize { first }
    end

    # work renews what is due now or soon.
    def work
      now = @local.now
      due, patience = @lock.synchronize do
        [@leases.keys.select { |lease| lease.due <= now + lease.ttl / 15 }, [@timeout, *@leases.each_key.map { |lease| lease.ttl / 3 }].min]
      end
      due.each_slice(MAX_ELEMENTS) { |leases| renew(leases, patience) }
    end

    # look renews the leases of a key now, to find out whether they are lost.
    def look(key)
      leases = @lock.synchronize { @leases.keys.select { |lease| lease.key == key } }
      renew(leases, @timeout) unless leases.empty?
    end

    private

    def run
      loop do
        @lock.synchronize { await }
        work
      end
    end

    # await waits until a lease is due.
    def await
      while (left = (due = first) && due - @local.now).nil? || left.positive?
        @wakes = due || Float::INFINITY
        @changed.wait(@lock, left)
      end
    end

    def first
      now = @local.now
      @leases.delete_if { |lease, _| lease.overdue?(now) }
      @leases.each_key.map(&:due).min
    end

    def renew(leases, patience)
      elements = leases.map { |l| l.named.merge(ttl_ms: (l.ttl * 1000).ceil) }
      leases.zip(@local.call_all("renew", elements, timeout: patience)) do |lease, (answer, sent)|
        next lease.later unless answer

        case answer.dig("error", "type")
        when nil then lease.trust(sent)
        when "lost" then remove(lease) if lease.lose
        else lease.later
        end
      end
    rescue StandardError
      leases.each(&:later) # it is tried again until the lease is no longer trusted
    end
  end
end
