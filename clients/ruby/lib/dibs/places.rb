# frozen_string_literal: true

module Dibs
  class Client
    # reserve takes a place in the key's queue without waiting there, and returns its ticket: a
    # text to keep secret, for redeem in any process. The place lasts for ttl (default: 7 days).
    # Until it is redeemed or has ended, no caller behind it gets the key, but a free key waits for
    # it for at most grace (default: as long as the place lasts).
    def reserve(key, ttl: PLACE, grace: nil, fingerprint: nil, label: nil)
      claim = claim(key, grace: grace, fingerprint: fingerprint, label: label, place_ttl: place_ttl(ttl))
      here = local
      done = false
      begin
        ask_place(claim)
        done = true
        Ticket.write(claim)
      ensure
        undo(here, claim) unless done # nobody has its ticket
      end
    end

    # reserve_in is reserve in a transaction of the application: the place exists when it commits. For
    # the connection and its errors see Lease#complete_in.
    def reserve_in(connection, key, ttl: PLACE, grace: nil, label: nil)
      claim = claim(key, grace: grace, label: label)
      Postgres.new(self, connection).reserve(claim, own_namespace(claim), place_ttl(ttl), grace && Dibs.seconds(grace, "grace"), claim.owner)
    end

    # prolong makes a reserved place last for ttl from now, with this grace. A place that has ended
    # is reserved again, at the end of the queue.
    def prolong(ticket, ttl: PLACE, grace: nil)
      token, namespace, key = Ticket.read(ticket)
      ask_place(claim(key, namespace: namespace, token: token, grace: grace, place_ttl: place_ttl(ttl)))
      nil
    end

    # redeem runs the block while it holds the key at a reserved place, like lock. If it gives up
    # waiting, the place stays and can be redeemed again. If the place has ended, wait: 0 takes the
    # key if it is free, and a caller that waits joins the queue at the end. The end of the block
    # ends the place. grace limits how long the place keeps others from a free key if this process
    # dies.
    def redeem(ticket, grace: nil, **options, &block)
      raise ArgumentError, "dibs: redeem needs a block" unless block

      token, namespace, key = Ticket.read(ticket)
      claim = asked(key, options, namespace: namespace, from: token, grace: grace)
      begin
        hold(claim, &block)
      rescue Mismatch => e
        local.undoer.settle(place_of(ticket), "release") if e.key.equal?(claim.key)
        raise
      end
    end

    # cancel gives a reserved place back. It raises Lost if the place had ended before.
    def cancel(ticket)
      claim = place_of(ticket)
      answer, again = local.trying(claim, @timeout) { local.settle(claim.named.merge(outcome: "release")) }
      local.undoer.settled(claim, "release")
      raise self.class.error("lost", answer["error"]["detail"], claim) if answer["error"] && !again
    end

    # give_back is cancel, now or in the background.
    def give_back(ticket) # :nodoc:
      over = false
      cancel(ticket)
      over = true
    rescue Lost
      over = true
    rescue Error
      nil
    ensure
      local.undoer.settle(place_of(ticket), "release") unless over || @closed
    end

    private

    def place_ttl(value)
      Dibs.seconds(value, "ttl", 0.001)
    end

    def place_of(ticket)
      token, namespace, key = Ticket.read(ticket)
      claim(key, namespace: namespace, token: token)
    end

    # ask_place reserves a place.
    def ask_place(claim)
      answer, = local.trying(claim, 1.0) { ask(local, claim, "reserve", 0.0) }
      raise refusal(claim, answer) unless answer["state"] == "held" && answer["queued"]
    end

    # own_namespace is the namespace of a key: if the credential decides it, the server says it.
    def own_namespace(claim)
      return claim.namespace unless claim.namespace.empty?

      @own_namespace ||= look(claim(claim.key))["namespace"] || ""
    end
  end
end
