# frozen_string_literal: true

module Dibs
  # Error is the class of all errors of this library, except ArgumentError.
  class Error < StandardError
    # key is the key of the call, or nil. The message names it, or with secret_keys its digest.
    attr_reader :key

    attr_accessor :unanswered # :nodoc: when the call was sent, if no server said what became of it

    def initialize(message, key: nil)
      super(message)
      @key = key
    end
  end

  # Held: another caller holds the key or comes before this one. It is an answer: the caller
  # neither holds the key nor has a place in its queue.
  class Held < Error
    # left is the seconds until the first lease of the key expires unless it is renewed.
    # ahead is how many places at most come first. waited is how long the caller waited, in
    # seconds.
    attr_reader :left, :ahead, :waited

    def initialize(message, left: 0.0, ahead: 0, waited: 0.0, holder: nil, **rest)
      super(message, **rest)
      @left, @ahead, @waited, @holder = left, ahead, waited, holder
    end

    # holder asks the server who holds the key now. It returns a Holder, or nil if nobody holds it, the
    # credential does not have the role look, or no server answers.
    def holder
      @holder&.call
    end
  end

  # Holder is what operators see of a lease: the host, pid and label of its holder, its id, and since,
  # the seconds for which it has held the key.
  Holder = Struct.new(:host, :pid, :label, :id, :since)

  # Lost: the lease expired or was taken away, or the call that ends it was not answered. So another
  # caller may hold the key.
  class Lost < Error; end

  # Done: a record answers the claim (acquire with max_age).
  class Done < Error
    # record is what the holder left, as bytes. age is its age in seconds.
    attr_reader :record, :age

    def initialize(message, record:, age:, **rest)
      super(message, **rest)
      @record, @age = record, age
    end
  end

  # Mismatch: the key is in use, or was used, with another fingerprint.
  class Mismatch < Error; end

  # Unknown: an earlier attempt with at_most_once ended without an outcome. An operator must
  # resolve it.
  class Unknown < Error
    # id names the attempt whose outcome is unknown.
    attr_reader :id

    def initialize(message, id:, **rest)
      super(message, **rest)
      @id = id
    end
  end

  # Unavailable: no server answered, or the store did not. The call may or may not have
  # happened. A claim is then undone in the background.
  class Unavailable < Error; end

  # Busy: the store was busy with the key. Nothing was done, and asking again may help.
  class Busy < Error; end

  # Full: the store has reached one of its limits. Nothing was done.
  class Full < Error; end

  # TooLarge: the store never takes data of that size. Nothing was done.
  class TooLarge < Full; end

  # Refused: the server refused the whole call, and nothing was done; or what answers at the
  # address is not a dibs serve. A server behind it may have done the call. A claim is then undone in
  # the background.
  class Refused < Error; end

  # Unauthorized: the URL has no token, or one that the server does not know.
  class Unauthorized < Refused; end

  # Forbidden: the credential does not have the role, or the call names another namespace.
  class Forbidden < Refused; end

  # Overloaded: a bound of the server is reached. Asking again may help.
  class Overloaded < Refused; end

  # Remembered: the block of an earlier call of once failed with an error that it remembers.
  # The message is that of the error.
  class Remembered < Error; end

  # NotKept: the block of once ran in this call, but its result could not be stored. The message
  # says what follows, and cause says why. Later callers get Unrecorded, or run with rerun: true.
  # In a transaction nothing was done, and the next caller runs.
  class NotKept < Error
    # result is what the block returned, or nil if its transaction was rolled back.
    attr_reader :result

    def initialize(message, result:, **rest)
      super(message, **rest)
      @result = result
    end
  end

  # Unrecorded: an earlier call of once ran the block, and its result could not be stored. The
  # block does not run again until an operator gives its result (dibs resolve) or deletes the record
  # (dibs forget).
  class Unrecorded < Error
    # why is why the result could not be stored.
    attr_reader :why

    def initialize(claim, why) # :nodoc:
      super("dibs: an earlier run under the key #{claim.shown} was done, but its result could not be stored (#{why}); " \
            "an operator gives the result with dibs resolve, or lets it run again with dibs forget", key: claim.key)
      @why = why
    end
  end

  # WrongTransaction: the connection is not in the transaction that the lease is to end with, or
  # that transaction was not committed. Nothing was settled.
  class WrongTransaction < Error; end

  # Closed: the client was closed.
  class Closed < Error; end
end
