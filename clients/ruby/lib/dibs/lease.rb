# frozen_string_literal: true

module Dibs
  # Lease is the right to a key until it is settled or lost. It is renewed in the background. Its
  # methods are safe for threads. A process that was forked does not own it.
  class Lease
    # ttl is the TTL in seconds. attempt is 1 plus the number of leases in a row that were
    # abandoned before this one. progress is what those saved last, or nil.
    attr_reader :ttl, :attempt, :progress

    def initialize(client, local, claim, answer, sent, renewed: true) # :nodoc:
      @client, @local, @claim = client, local, claim
      @ttl = claim.ttl
      @fence, @attempt = Integer(answer.fetch("fence"), 10), answer["attempt"] || 1
      @progress = answer["progress"]&.unpack1("m0")
      @namespace = answer["namespace"] || ""
      @limit = claim.max_lifetime && sent + claim.max_lifetime
      @guard = Mutex.new    # of the fields below
      @settling = Mutex.new # held while a settlement is under way
      @trusted = -Float::INFINITY
      @renewed = renewed
      trust(sent)
      local.renewer.add(self) if renewed
    end

    # key is the key that is held.
    def key
      @claim.key
    end

    # check returns the lease, and raises Lost if it is not held any more. It looks at the clock,
    # so it also knows when the process was stopped for longer than the lease.
    def check
      raise lost unless held?

      self
    end

    # held? reports whether the lease is held and trusted.
    def held?
      @unanswered.nil? && live?
    end

    # fence is the fencing token: it rises with every grant of the key. A resource that remembers
    # the highest fence and refuses lower ones is safe from a holder that was stopped for longer
    # than its lease. It raises Lost like check.
    def fence
      check
      @fence
    end

    # left is the seconds for which the lease can still be trusted unless it is renewed.
    def left
      held? ? [@trusted - @local.now, 0.0].max : 0.0
    end

    # id is the public name of this lease, which operators see.
    def id
      Claim.id(@claim.token)
    end

    # save keeps progress (bytes, at most 1 MiB) with the lease and renews it. The next holder
    # gets it if this one does not settle. It raises Lost, Unavailable or another Error.
    def save(progress)
      check
      element = @claim.named.merge(ttl_ms: (@ttl * 1000).ceil, progress: [progress].pack("m0"))
      answers, sent = @local.call("renew", [element], timeout: [@client.timeout, left].min)
      type, detail = answers[0]["error"]&.values_at("type", "detail")
      case type
      when nil then trust(sent)
      when "lost"
        lose
        raise lost
      else raise Client.error(type, detail, @claim)
      end
      nil
    end

    # release ends the lease and leaves nothing behind. It does nothing if the lease was settled
    # before. It raises Lost when the lease was lost. It raises Unavailable, Busy or another Error
    # when the server did not do it; the lease is then released in the background.
    def release
      conclude({ outcome: "release" }, @client.timeout, background: true)
    end

    # complete ends the lease and leaves data (bytes) behind as the key's record, for keep
    # (default: 24 hours). It raises Lost, and then nothing is written. After Busy or Full the lease
    # is still held: call complete again, or release. After Unavailable the record may be written, so
    # the lease is not trusted any more: call complete again, and the store decides. If the call is
    # interrupted, by Timeout or Thread#kill, the record is written in the background.
    def complete(data, keep: RETENTION)
      conclude(record(data, keep), KEEP_PATIENCE)
    end

    # complete_in is complete in a transaction of the application, in the PostgreSQL database of the
    # store: what the transaction writes and the record are both committed, or neither is. Call it
    # as the last statement of the transaction. connection is a PG::Connection, or a class or
    # connection of ActiveRecord. With data: nil it leaves no record, as release.
    #
    # The lease has ended when the transaction commits. If it is rolled back, the lease is still
    # held. The end of the block of lock settles it in both cases; a lease of acquire needs release
    # after the transaction, which does nothing if it committed.
    #
    # It raises Lost, WrongTransaction, Refused (the database has no such store), Forbidden (the
    # role may not call the function) and the errors of PG. Let them roll the transaction back.
    def complete_in(connection, data, keep: RETENTION)
      settle_in(Postgres.new(@client, connection), data, Dibs.seconds(keep, "keep", 0.001), "caller")
    end

    # abandon ends the lease as if its holder had crashed: the next holder learns of it.
    def abandon
      conclude({ outcome: "abandon" }, @client.timeout)
    end

    # undo ends the lease as if it had not been granted, for a holder that has done nothing. A
    # reserved place can then be redeemed again.
    def undo
      conclude({ outcome: "undo" }, @client.timeout)
    end

    # inspect shows no token.
    def inspect
      "#<Dibs::Lease #{@claim.shown} #{held? ? "held" : "ended"}>"
    end

    # For the client and its renewer.

    attr_reader :due, :claim, :client # :nodoc:

    # live? reports whether the lease may hold the key.
    def live? # :nodoc:
      !@settled && !@lost && Process.pid == @local.pid && !overdue?(@local.now)
    end

    def named # :nodoc:
      @claim.named
    end

    # trust extends the trust: the server confirmed the lease in answer to what was sent then.
    def trust(sent) # :nodoc:
      @guard.synchronize do
        @trusted = [[@trusted, sent + @ttl - @claim.stop_timeout].max, @limit || Float::INFINITY].min
        @due = sent + @ttl / 3
      end
    end

    # later says when a renewal that failed is sent again.
    def later # :nodoc:
      @guard.synchronize { @due = @local.now + [@ttl / 15, 0.001].max }
    end

    def overdue?(now) # :nodoc:
      now >= @trusted
    end

    # lose notes that the server does not know the lease. While a settlement is under way, or if
    # one may have been done, that says nothing, and lose returns false.
    def lose # :nodoc:
      return later && false if @unanswered || @in_transaction || !@settling.try_lock

      begin
        lost! unless @settled
        true
      ensure
        @settling.unlock
      end
    end

    # undo_later undoes the lease in the background.
    def undo_later # :nodoc:
      hand_over({ outcome: "undo" })
    end

    # complete_later is complete in the background.
    def complete_later(data, keep) # :nodoc:
      hand_over(record(data, keep))
    end

    # settle_in settles with the last statement of a transaction. Until it commits the lease is held,
    # and then a renewal finds none, which is not a loss.
    def settle_in(database, data, retention, proof) # :nodoc:
      raise ArgumentError, "dibs: a key with more than one permit cannot have a record" if data && @claim.permits > 1

      check
      @in_transaction = true
      database.settle(@claim, @namespace, data, retention, proof)
    rescue Lost
      lost!
      @local.renewer.remove(self)
      raise
    end

    # committed notes that the transaction in which the lease was settled is committed.
    def committed # :nodoc:
      @settled = true
      @local.renewer.remove(self)
      @local.undoer.settled(@claim, "keep")
    end

    # find_out finds out whether the transaction was committed that settled the lease with this
    # record, if its answer did not arrive. A lease that can be released was not settled, and cannot
    # be any more. The store accepts a record again from the token that has left it.
    def find_out(data, retention) # :nodoc:
      done = !ask_settle({ outcome: "release" }) &&
             ask_settle({ outcome: "keep", data: [data].pack("m0"), retention_ms: (retention * 1000).ceil })
      committed
      done
    end

    # finish ends the lease of a block, and returns the error if it was lost while its block ran. An
    # abandon or undo that was not answered is made again.
    def finish # :nodoc:
      doubt = @settling.synchronize { @settled ? nil : @unanswered }
      why = doubt ? "may have ended while its block ran: its #{CALLS[doubt]} was sent and not answered" : "was lost while its block ran"
      error = Lost.new("dibs: the lease of the key #{@claim.shown} #{why}", key: key)
      return @settled ? nil : error if Process.pid != @local.pid

      conclude({ outcome: doubt && doubt != "keep" ? doubt : "release" }, @client.timeout, background: true)
      doubt && error
    rescue Lost
      error
    rescue Error
      doubt && error # it is released in the background, and the block must not run again
    end

    private

    # CALLS are the methods that send a settlement, by its outcome.
    CALLS = { "keep" => "complete", "release" => "release", "abandon" => "abandon", "undo" => "undo" }.freeze
    private_constant :CALLS

    def lost!
      Hooks.tell(:lost, @claim, "the lease") unless @lost
      @lost = true
    end

    def lost
      why = Process.pid == @local.pid ? "" : ": it belongs to the process that forked this one"
      if @settled
        why = ": it was settled"
      elsif @unanswered && !@lost && why.empty?
        call = CALLS[@unanswered]
        why = ", or may be: its #{call} was sent and not answered; call #{call} again, and the store decides"
      end
      Lost.new("dibs: the lease of the key #{@claim.shown} is lost#{why}", key: key)
    end

    # record is the settlement that leaves a record.
    def record(data, keep)
      retention = (Dibs.seconds(keep, "keep", 0.001) * 1000).ceil
      raise ArgumentError, "dibs: a key with more than one permit cannot have a record" if @claim.permits > 1

      { outcome: "keep", data: [data].pack("m0"), retention_ms: retention }
    end

    # conclude settles now. A caller that leaves it in any other way than with an answer, such as
    # with the exception of another thread, with throw or because it is killed, does not call
    # again: then the lease is settled in the background. background does that after an error, too.
    def conclude(settlement, patience, background: false)
      over = false
      settle(settlement, patience)
      over = true
      nil
    rescue Error => e
      over = !background || e.is_a?(Lost)
      raise
    ensure
      hand_over(settlement) unless over
    end

    # hand_over settles the lease in the background.
    def hand_over(settlement)
      return if Process.pid != @local.pid

      Thread.handle_interrupt(Object => :never) do
        @settling.synchronize do
          next if @settled

          @settled = true
          @handed = settlement[:outcome]
          @local.renewer.remove(self)
          @local.undoer.settle(@claim, settlement)
        end
      end
    end

    def settle(settlement, patience)
      raise lost if Process.pid != @local.pid

      @settling.synchronize do
        # A record that is being written in the background is written by its caller, too.
        return if @settled && !(@handed == "keep" && settlement[:outcome] == "keep")

        if @lost || (overdue?(@local.now) && @unanswered != settlement[:outcome] && !@in_transaction)
          # What the store still has of it is abandoned, as it would be when it expires.
          ended
          @local.undoer.settle(@claim, "abandon")
          raise lost
        end
        send_settlement(@claim.named.merge(settlement), patience)
      end
    end

    # ask_settle reports whether the store accepts a settlement.
    def ask_settle(settlement)
      answer, = @local.trying(@claim, KEEP_PATIENCE) { @local.settle(@claim.named.merge(settlement)) }
      answer["error"].nil?
    end

    def send_settlement(element, patience)
      outcome = element[:outcome]
      before, @unanswered = @unanswered, @unanswered || outcome
      begin
        answer, again = @local.trying(@claim, patience) { @local.settle(element) }
      rescue Error => e
        @unanswered = before unless e.unanswered # nothing was done
        raise
      end
      gone = answer["error"]
      @local.undoer.settled(@claim, gone ? "lost" : outcome)
      # The same record may be written twice. Any other end that was done before is a loss to the
      # store, and none to the holder.
      if gone && (outcome == "keep" || !(again || before == outcome || @in_transaction))
        lost!
        @local.renewer.remove(self)
        raise lost
      end
      ended
    end

    def ended
      if (overdue?(@local.now) && !@in_transaction) || @lost
        lost!
      else
        @settled = true
      end
      @local.renewer.remove(self)
      nil
    end
  end
end
