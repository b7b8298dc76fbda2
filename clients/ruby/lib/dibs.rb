# frozen_string_literal: true

require "digest"
require "fiber"
require "json"
require "openssl"
require "securerandom"
require "socket"
require "uri"

# Dibs calls dibs on a key: one caller runs, and all others wait their turn, do something else,
# or get the same answer. It is a client of `dibs serve`, with the standard library only.
#
#   keys = Dibs.connect                      # DIBS_SERVER, or unix:/run/dibs/dibs.sock
#   keys.lock("invoice 42", wait: 30) do |lease|
#     lease.check                            # raises Dibs::Lost
#   end
#   receipt = keys.once("order-17", keep: "24h") { charge }
#
# Durations are seconds, a text such as "1h30m", or an ActiveSupport::Duration.
module Dibs
  VERSION = "0.0.0"

  TTL = 30.0            # the default TTL of a lease, in seconds
  MIN_TTL = 0.01        # the shortest TTL
  RETENTION = 86_400.0  # the default of keep
  PLACE = 7 * 86_400.0  # the default TTL of a reserved place
  PLACE_TTL = 10.0      # how long a waiter's place outlasts its last question
  POLL = 20.0           # the longest call that waits
  TIMEOUT = 5.0         # the default timeout of a call
  KEEP_PATIENCE = 10.0  # how long what was waited or worked for is asked again
  SILENCE = 300.0       # how long after a claim was sent a server that was frozen may carry it out
  ANY_AGE_MS = 9_223_372_036_854 # accepts a record of any age
  MAX_ELEMENTS = 1024   # of a call
  IDLE = 30.0           # a connection that was not used for longer is not used again
  # The clock of Linux that runs while the machine is suspended, and elsewhere the monotonic one.
  CLOCK = defined?(Process::CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC
  private_constant :PLACE_TTL, :POLL, :KEEP_PATIENCE, :SILENCE, :ANY_AGE_MS, :MAX_ELEMENTS, :IDLE, :CLOCK

  class << self
    # connect returns a client of the servers at the URL:
    #
    #   unix:/run/dibs/dibs.sock, http+unix:/run/dibs/dibs.sock    a Unix socket
    #   http://127.0.0.1:7331
    #   https://:TOKEN@dibs.internal                     with a credential
    #   https://:TOKEN@a.internal,b.internal:8443        several servers of one store
    #
    # The default is the variable DIBS_SERVER, or unix:/run/dibs/dibs.sock. It does not connect yet.
    # Keyword arguments are those of Client.new. Make one client for the program: it is safe for
    # threads, and after a fork parent and child may both use it.
    def connect(url = nil, **options)
      named = ENV["DIBS_SERVER"].to_s
      Client.new(url || (named.empty? ? "unix:/run/dibs/dibs.sock" : named), **options)
    end

    # default is the client of Semaphore and ActiveJob: the one that was set, or connect without
    # arguments.
    def default
      @default_lock.synchronize { @default ||= connect }
    end

    # default= sets the client of Semaphore and ActiveJob.
    def default=(client)
      @default_lock.synchronize { @default = client }
    end

    # now is the clock of leases, in seconds.
    def now
      Process.clock_gettime(CLOCK)
    end

    # plain is a message that stands inside another one.
    def plain(message) # :nodoc:
      message.delete_prefix("dibs: ")
    end

    # seconds reads a duration: a number of seconds, or a text such as "24h" or "1h30m".
    def seconds(value, name, least = 0)
      number =
        case value
        when String
          unless value.match?(/\A(\d+(\.\d+)?(ms|s|m|h))+\z/)
            raise ArgumentError, "dibs: #{name} is #{value.inspect}; a duration is a number of seconds, or a text such as \"90s\" or \"1h30m\""
          end
          value.scan(/([\d.]+)(ms|s|m|h)/).sum { |n, unit| Float(n) * { "ms" => 0.001, "s" => 1, "m" => 60, "h" => 3600 }[unit] }
        when Numeric then value.to_f
        else raise ArgumentError, "dibs: #{name} is #{value.inspect}; it must be a duration, in seconds"
        end
      unless number.finite? && number >= least
        raise ArgumentError, "dibs: #{name} is #{value.inspect}; it must be finite and at least #{least} seconds"
      end
      number
    end

    # clients are those that are used and not closed: for forks and the end of the program.
    attr_reader :clients # :nodoc:

    # ending? reports whether the program ends, so that its threads are killed.
    def ending? # :nodoc:
      !Thread.main.alive?
    end
  end

  @default_lock = Mutex.new
  @clients = []

  # Forks closes, in a process that was forked, the connections of its parent. (Ruby 3.0 has no
  # such hook: there they are dropped when the child first uses the client.)
  module Forks # :nodoc:
    def _fork
      pid = super
      Dibs.clients.each(&:forked) if pid.zero?
      pid
    end
  end

  Process.singleton_class.prepend(Forks) if Process.respond_to?(:_fork)

  at_exit { clients.each { |client| client.flush(2.0) } }
end

%w[errors hooks address connection wire batch local renewer undoer claim ticket lease transaction client attempt places once semaphore
   active_job].each { |name| require_relative "dibs/#{name}" }
