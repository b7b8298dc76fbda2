# frozen_string_literal: true

module Dibs
  class Client
    # once runs the block under the key unless that was done before, and returns its result. All
    # callers get it: those that call while it runs wait, and those that call later get the stored
    # one until keep is over (default: 24 hours), in any process. The result is stored as JSON, so
    # every caller gets what JSON makes of it: keys of hashes are strings.
    #
    # If the block ran and its result could not be stored, because JSON would make something else of
    # it or because it is too large, once raises NotKept. The effect has happened, so the block does
    # not run again: later callers get Unrecorded until keep is over. An operator gives the result
    # (dibs resolve) or lets the next caller run (dibs forget). With rerun: true the next caller runs.
    #
    # max_age: the age up to which a stored result is returned. Default: any.
    # remember: error classes (or a proc) that are stored like a result; later callers get
    # Remembered. Default: none, and the next caller runs.
    #
    # in: a connection as with Lease#complete_in, outside of a transaction. The block then runs in a
    # transaction on it, which commits together with the result. So a crash leaves both or neither,
    # and the block has its effect exactly once. An error rolls back; errors of PG are for the
    # caller, who calls once again after a conflict. So does NotKept, and then the next caller runs.
    #
    # with_origin: returns a OnceResult, which says whether the result is an earlier one.
    #
    # The other arguments and errors are those of lock.
    def once(key, keep: RETENTION, max_age: nil, remember: [], rerun: false, with_origin: false, **options, &block)
      raise ArgumentError, "dibs: once needs a block" unless block

      connection = options.delete(:in)
      database = connection && Postgres.new(self, connection)
      retention = Dibs.seconds(keep, "keep", 0.001)
      max_age = max_age ? Dibs.seconds(max_age, "max_age") : :any
      claim = asked(key, options, max_age: max_age)
      begin
        hold(claim) do |lease|
          value = if database
                    run_once_in(database, lease, retention, [*remember], &block)
                  else
                    run_once(lease, retention, [*remember], rerun, &block)
                  end
          with_origin ? OnceResult.new(value, false) : value
        end
      rescue Done => e
        raise unless e.key.equal?(claim.key)

        value = Outcome.recall(e, claim)
        with_origin ? OnceResult.new(value, true) : value
      end
    end

    private

    # run_once runs the block and stores its outcome. Nothing interrupts what comes after the
    # block, because its effect has happened.
    def run_once(lease, retention, remember, rerun)
      Thread.handle_interrupt(Object => :never) do
        begin
          result = Thread.handle_interrupt(Object => :immediate) { yield lease }
        rescue NotKept, Lost
          raise
        rescue StandardError => e
          keep(lease, retention, rerun, nil) { Outcome.error(e) } if remember.any? { |r| r === e } # rubocop:disable Style/CaseEquality
          raise
        end
        Outcome.read(keep(lease, retention, rerun, result) { Outcome.value(result) })
      end
    end

    # keep stores the record that the block makes, and returns it.
    def keep(lease, retention, rerun, result)
      record = yield
      lease.complete(record, keep: retention)
      record
    rescue Lost
      raise
    rescue Outcome::NoJSON, Error => e
      why = Dibs.plain(e.message)
      follows = rerun ? "the next caller runs again" : not_kept(lease, e, record, why, retention)
      raise NotKept.new("dibs: the result could not be stored, and #{follows}: #{why}", key: lease.key, result: result)
    end

    # not_kept leaves a record that says that the block ran, because nobody may run it again. It
    # returns what follows. What no server answered, or was too busy for, is stored in the background:
    # nothing releases the lease, which is abandoned if that fails.
    def not_kept(lease, error, record, why, retention)
      unless [Unavailable, Busy, Overloaded].any? { |c| c === error } # rubocop:disable Style/CaseEquality
        record = Outcome.not_kept(why)
        lease.complete(record, keep: retention)
        return "later callers get Dibs::Unrecorded"
      end
      lease.complete_later(record, retention)
      "is stored in the background while the lease lasts"
    rescue Lost
      raise
    rescue Error
      lease.complete_later(record, retention)
      "that is noted in the background while the lease lasts"
    end

    # run_once_in is run_once in a transaction.
    def run_once_in(database, lease, retention, remember)
      text = nil
      settled = false
      database.run do
        result = yield lease
        begin
          text = Outcome.value(result)
          lease.settle_in(database, text, retention, "marked")
        rescue Outcome::NoJSON, TooLarge => e
          raise NotKept.new("dibs: the result could not be stored, so the transaction was rolled back. Nothing in it was done, and the next caller runs: #{Dibs.plain(e.message)}", key: lease.key, result: nil)
        end
        settled = true
      end
      raise NotKept.new("dibs: the block rolled its transaction back, so its result is not kept", key: lease.key, result: nil) unless settled
      raise WrongTransaction.new("dibs: a statement failed after the block of once, so PostgreSQL answered COMMIT with ROLLBACK, and nothing was done", key: lease.key) unless database.committed?

      lease.committed
      Outcome.read(text)
    rescue StandardError => e
      return Outcome.read(text) if settled && committed?(lease, text, retention) # and its answer did not arrive

      own = [NotKept, Lost, WrongTransaction].any? { |c| c === e } # rubocop:disable Style/CaseEquality
      remembered = !settled && !own && remember.any? { |r| r === e } # rubocop:disable Style/CaseEquality
      keep(lease, retention, true, nil) { Outcome.error(e) } if remembered # the transaction did nothing
      raise
    end

    # committed? finds out whether a transaction that settled the lease was committed, although it
    # raised. If the servers do not say it, the next call of once finds it out.
    def committed?(lease, text, retention)
      lease.find_out(text, retention)
    rescue Error
      false
    end
  end

  # OnceResult is the value of once with with_origin, and whether an earlier call produced it.
  OnceResult = Struct.new(:value, :replayed)

  # Outcome is the record that once leaves behind, the same as in the Go library.
  module Outcome # :nodoc:
    class NoJSON < StandardError; end

    module_function

    def value(result)
      check(result, "the result")
      JSON.generate({ "value" => result })
    rescue NoJSON
      raise
    rescue JSON::NestingError, SystemStackError
      no("the result is nested too deeply")
    rescue StandardError => e
      no("JSON of the result fails with #{e.class}")
    end

    def error(raised)
      JSON.generate({ "error" => raised.message.dup.force_encoding(Encoding::UTF_8).scrub })
    end

    # not_kept says that the run was done, and why its result could not be stored.
    def not_kept(why)
      JSON.generate({ "not_kept" => why.dup.force_encoding(Encoding::UTF_8).scrub[0, 200] })
    end

    def read(text)
      JSON.parse(text)["value"]
    end

    def recall(done, claim)
      body = JSON.parse(done.record)
      raise JSON::ParserError unless body.is_a?(Hash) && (body.key?("value") || body["error"].is_a?(String) || body["not_kept"].is_a?(String))
      raise Remembered.new(body["error"], key: claim.key) if body["error"]
      raise Unrecorded.new(claim, body["not_kept"]) if body["not_kept"]

      body["value"]
    rescue JSON::ParserError
      raise Refused.new("dibs: the record of the key #{claim.shown} is not one of once", key: claim.key)
    end

    # check refuses what JSON.generate would turn into some text.
    def check(value, what)
      case value
      when nil, true, false, Integer then nil
      when Float then value.finite? || no("#{what} is #{value}")
      when String
        value.encode(Encoding::UTF_8).valid_encoding? || no("#{what} is a String that is not UTF-8")
      when Array then value.each { |v| check(v, "an element of #{what}") }
      when Hash
        value.each_key { |k| k.is_a?(String) || k.is_a?(Symbol) || no("a key of #{what} is of class #{k.class}, not a String or a Symbol") }
        value.keys.map(&:to_s).uniq.size == value.size || no("#{what} has a key as String and as Symbol")
        value.each_value { |v| check(v, "a value of #{what}") }
      else no("#{what} is of class #{value.class}; return nil, true, false, numbers, strings, arrays and hashes")
      end
    rescue EncodingError
      no("#{what} is a String that is not UTF-8")
    end

    def no(why)
      raise NoJSON, why
    end
  end
end
