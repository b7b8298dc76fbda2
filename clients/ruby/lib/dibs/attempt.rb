# frozen_string_literal: true

module Dibs
  class Client
    private

    # hold runs the block under a lease. Nothing interrupts what is between the block and the
    # store: an exception from another thread, Timeout and Thread#kill strike while it waits and
    # while the block runs.
    def hold(claim)
      Thread.handle_interrupt(Object => :never) do
        lease = take(claim, true)
        raised = nil
        stack = (Thread.current[:dibs_leases] ||= [])
        stack.push(lease)
        begin
          Thread.handle_interrupt(Object => :immediate) { yield lease.check }
        rescue Exception => e # rubocop:disable Lint/RescueException
          raised = e
          raise
        ensure
          stack.delete(lease)
          lost = lease.finish
          raise lost if lost && raised.nil? && Thread.current.status != "aborting"
        end
      end
    end

    # take returns the lease, or raises and leaves nothing of the claim behind.
    def take(claim, renewed)
      here = local
      waits_for_itself(claim)
      lease = nil
      here.wait_begins(claim)
      begin
        answer, sent, waited = Thread.handle_interrupt(Object => :immediate) { await(here, claim) }
        lease = Lease.new(self, here, claim, answer, sent, renewed: renewed)
        Hooks.tell(:waited, claim, "#{waited.round(3)} s for the key", waited: waited) if waited
        Hooks.tell(:acquired, claim, "the key", fence: answer["fence"].to_i, attempt: lease.attempt)
        lease
      rescue Held => e
        Hooks.tell(:skipped, claim, "another holder has the lock for this key", waited: e.waited)
        raise
      rescue Unavailable => e
        Hooks.tell(:unavailable, claim, Dibs.plain(e.message), error: e)
        raise
      ensure
        undo(here, claim) if lease.nil? && claim.open && here.pid == Process.pid
        here.wait_ends(claim)
      end
    end

    # undo undoes a claim in the background.
    def undo(here, claim)
      here.undoer.settle(claim, "undo")
      Hooks.tell(:undone, claim, "a claim that was not answered, or whose caller left")
    end

    def waits_for_itself(claim)
      return if claim.wait&.zero?

      mine = (Thread.current[:dibs_leases] || []).select { |l| l.client.equal?(self) && l.key == claim.key && l.live? }
      mine.select! { |l| l.claim.namespace == claim.namespace }
      return if mine.empty?
      return if mine.all? { |l| l.claim.permits == claim.permits } && mine.sum { |l| l.claim.weight } + claim.weight <= claim.permits

      raise Held.new("dibs: the key #{claim.shown} is held by the caller itself, and waiting would never end", key: claim.key)
    end

    # await asks until the claim is granted, refused or given up, and returns the answer, when the
    # claim was sent, and how long it waited for others, or nil.
    def await(here, claim)
      start = heard = here.now
      try = claim.wait&.zero?
      ends = claim.wait && start + claim.wait
      poll = 0.0
      pause = 0.01
      waits = false
      loop do
        open!
        answer, sent = ask(here, claim, try ? "try" : "queue", poll)
        kind = answer.dig("error", "type")
        raise self.class.error(kind, answer.dig("error", "detail"), claim) if kind

        heard, pause = here.now, 0.01
        case answer["state"]
        when "granted"
          # The trust counts from when the claim was sent. If that was long ago, the same claim
          # is sent again: it gets the same lease, for a whole TTL.
          return answer, sent, waits ? heard - start : nil if poll.zero? || heard - sent < claim.ttl / 20
          poll = 0.0
          next
        when "held"
          waits = true
          raise refusal(claim, answer, heard - start) if try || (ends && heard >= ends)
        else
          raise refusal(claim, answer)
        end
        poll = [ends ? ends - heard : POLL, POLL].min
      rescue Unavailable, Busy, Overloaded => e
        open!
        # Busy is an answer. Before Unavailable, the server waited on purpose.
        heard = here.now if e.is_a?(Busy) ? !try : poll.positive? && e.is_a?(Unavailable)
        pause = [pause * 2, 1.0].min
        rest = pause * rand(0.5..1.0)
        patience = try ? 1.0 : KEEP_PATIENCE
        raise if here.now + rest > [heard + patience, ends && !try ? ends : Float::INFINITY].min

        here.sleep(rest)
        poll = 0.0 unless e.is_a?(Overloaded)
      end
    end

    # ask sends the claim once and notes what it may have at the store.
    def ask(here, claim, mode, poll)
      open = claim.open
      silent = here.undoer.claims(claim)
      claim.open = true
      answer, sent, again = here.claim(claim.wire(mode), wait: poll)
      silent = again || silent
      here.undoer.heard(claim, silent)
      claim.open = answer["state"] == "granted" || answer["queued"] == true || answer.key?("error") || !silent.nil?
      [answer, sent]
    rescue Error => e
      here.undoer.heard(claim, e.unanswered || silent)
      claim.open = open unless e.unanswered # nothing was done
      raise
    end

    # look asks for the state of a key and changes nothing.
    def look(claim)
      local.trying(claim, 1.0) { local.claim(claim.wire("look")) }[0]
    end

    # refusal is the error of an answer that is not a grant.
    def refusal(claim, answer, waited = 0.0)
      key = claim.shown
      case answer["state"]
      when "held"
        left = (answer["left_ms"] || 0) / 1000.0
        text = claim.wait&.positive? ? "after waiting #{waited.round(3)} s" : "for #{left.round(3)} s more at most unless it is renewed"
        Held.new("dibs: the key #{key} is held, #{text}", key: claim.key, left: left, ahead: answer["ahead"] || 0, waited: waited,
                 holder: -> { local.holder(claim) })
      when "done"
        record = answer["record"]
        Done.new("dibs: the key #{key} is done", key: claim.key, record: record["data"].unpack1("m0"), age: record["age_ms"] / 1000.0)
      when "mismatch"
        Mismatch.new("dibs: the key #{key} was used with another fingerprint", key: claim.key)
      when "unknown"
        Unknown.new("dibs: the outcome of the attempt #{answer["id"]} on the key #{key} is unknown; an operator must resolve it",
                    key: claim.key, id: answer["id"])
      else
        Refused.new("dibs: the key #{key}: the server answers with the state #{answer["state"].inspect}", key: claim.key)
      end
    end
  end
end
