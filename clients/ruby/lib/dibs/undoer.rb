# frozen_string_literal: true

module Dibs
  # Undoer settles in the background, by token, what no caller uses any more.
  #
  # It also remembers the silent claims: those that were sent to a server and not answered. If that
  # server was frozen, it may carry the claim out when it wakes. So when the token of a silent claim
  # has been settled, it is undone again and again, until no server carries the claim out any more.
  class Undoer # :nodoc:
    # Entry is what is settled when it is due. again is the pause after it if it is one of the
    # repeated undos, and nil if it is the first settlement of its token.
    Entry = Struct.new(:claim, :settlement, :due, :expires, :again) do
      def wire
        claim.named.merge(settlement)
      end
    end

    def initialize(local, timeout)
      @local, @timeout = local, timeout
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @entries = []
      @under_way = []
      @silent = {} # when the last silent claim of a token was sent
      @pending = 0 # first settlements that were not answered
    end

    # claims says that a claim is sent, and returns when the last silent one of its token was sent,
    # or nil. The claim is silent until heard says otherwise. The token is not undone meanwhile.
    def claims(claim)
      @lock.synchronize do
        if @silent.key?(claim.token)
          @entries.reject! { |e| e.again && e.claim.token == claim.token }
          @changed.wait(@lock) while @under_way.any? { |e| e.again && e.claim.token == claim.token }
        end
        now = @local.now
        @silent.delete_if { |_, sent| now >= sent + SILENCE } if @silent.size >= 1000
        before = @silent[claim.token]
        @silent[claim.token] = now
        before
      end
    end

    # heard says that a claim was answered, or not sent. silent is when the last silent one was sent,
    # or nil.
    def heard(claim, silent)
      @lock.synchronize { silent ? @silent[claim.token] = silent : @silent.delete(claim.token) }
    end

    # settled says that a server has answered the settlement of a claim.
    def settled(claim, outcome)
      @lock.synchronize { ended(claim, outcome) }
    end

    # settle settles in the background: with an outcome, or with a whole settlement.
    def settle(claim, settlement)
      settlement = { outcome: settlement } unless settlement.is_a?(Hash)
      now = @local.now
      @lock.synchronize do
        expires = [now + [claim.ttl, claim.place_ttl].max + @timeout, (@silent[claim.token] || 0) + SILENCE].max
        @pending += 1
        add(Entry.new(claim, settlement, now, expires))
      end
      # A program that ends kills its threads, this one and the undoer's: then it is done here.
      pass(2.0) if Dibs.ending? || !@local.threads?
    end

    # flush waits until everything was settled once, or for so many seconds.
    def flush(limit)
      ends = @local.now + limit
      @lock.synchronize do
        while @pending.positive? && (left = ends - @local.now).positive? && @thread&.alive?
          @changed.wait(@lock, left)
        end
        @pending
      end
    end

    def stop
      @thread&.kill
    end

    # due is when the next settlement is due, or nil.
    def due
      @lock.synchronize { @entries.map(&:due).min }
    end

    # work settles what is due.
    def work
      pass(@timeout)
    end

    private

    def add(entry)
      @entries << entry
      begin
        unless !@local.threads? || (@thread&.alive? && @thread.status != "aborting")
          @thread = Thread.new { Thread.handle_interrupt(Object => :never) { run } }
          @thread.name = "dibs undoer"
        end
      rescue ThreadError
        nil # the program ends
      end
      @changed.broadcast
    end

    # ended undoes what silent claims of a token may still get. A release and a record end the place
    # that was redeemed, too.
    def ended(claim, outcome)
      again(claim, 1.0)
      again(claim.place, 1.0) if claim.from && %w[release keep].include?(outcome)
    end

    # again undoes a token after a pause if a claim of it was silent.
    def again(claim, pause)
      sent = @silent[claim.token] or return
      now = @local.now
      return @silent.delete(claim.token) if now >= sent + SILENCE

      due = [now + pause, sent + SILENCE].min
      add(Entry.new(claim, { outcome: "undo" }, due, due, [pause * 2, 15.0].min))
    end

    def run
      pause = 0.02
      loop do
        # Only between two calls may the thread be killed.
        Thread.handle_interrupt(Object => :immediate) do
          sleep(pause * rand(0.5..1.0)) if pause > 0.02
          await
        end
        pause = pass(@timeout) ? 0.02 : [pause * 2, 1.0].min
      end
    end

    def await
      @lock.synchronize do
        until (first = @entries.map(&:due).min) && first <= @local.now
          @changed.wait(@lock, first && first - @local.now)
        end
      end
    end

    # pass settles what is due in one call, and reports whether the servers answered.
    def pass(timeout)
      due = @lock.synchronize do
        due, @entries = @entries.partition { |e| e.due <= @local.now && !wait_for_answer(e) }
        @entries.concat(due.slice!(MAX_ELEMENTS..) || [])
        @under_way += due
        due
      end
      return true if due.empty?

      answers = @local.call_all("settle", due.map(&:wire), timeout: timeout)
      done = due.zip(answers).select { |_, (a, _)| a && !%w[busy full].include?(a.dig("error", "type")) }.map(&:first)
      answers.any?
    rescue StandardError
      false
    ensure
      finish(due, done || [])
    end

    # wait_for_answer puts a settlement off while its claim is under way with those of others, because
    # it must not overtake the claim.
    def wait_for_answer(entry)
      return false if Dibs.ending? || !@local.flying?(entry.claim.token)

      entry.due = @local.now + 0.02
    end

    def finish(due, done)
      return if due.nil?

      now = @local.now
      @lock.synchronize do
        due.each do |entry|
          @under_way.delete_if { |e| e.equal?(entry) }
          if entry.again
            again(entry.claim, entry.again)
          elsif now >= entry.expires || done.any? { |e| e.equal?(entry) }
            @pending -= 1
            ended(entry.claim, entry.settlement[:outcome])
          else
            entry.due = now + 0.05
            @entries << entry
          end
        end
        @changed.broadcast
      end
    end
  end
end
