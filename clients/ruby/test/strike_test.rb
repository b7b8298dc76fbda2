# frozen_string_literal: true

require_relative "support"

# An exception of another thread strikes a call at each of its steps, while another thread calls, too.
# Nothing is left behind, and nothing waits for the caller that is gone.
class StrikeTest < Case
  class Strike < Exception; end # rubocop:disable Lint/InheritException

  LIB = File.expand_path("../lib", __dir__)

  # WAYS are calls, and what they need. A lease or a ticket that its caller never gets is not the
  # library's, so acquire and reserve are not struck.
  LEASE = ->(keys, key) { keys.acquire(key, ttl: 600) }
  WAYS = {
    "lock" => [->(keys, key, _) { keys.lock(key, ttl: 600, &:check) }],
    "once" => [->(keys, key, _) { keys.once(key, ttl: 600, keep: 0.001) { 1 } }],
    "complete" => [->(_, _, lease) { lease.complete("x", keep: 0.001) }, LEASE],
    "undo" => [->(_, _, lease) { lease.undo }, LEASE],
    "redeem" => [->(keys, _, ticket) { keys.redeem(ticket, ttl: 600, &:check) }, ->(keys, key) { keys.reserve(key, ttl: 600) }]
  }.freeze

  LINES = Dir["#{LIB}/**/*.rb"].to_h { |path| [path, [nil, *File.readlines(path)]] }

  # strike runs the block, and strikes this thread at that line or end of a method of the library. As
  # with any such exception, the library may put it off. It returns false if there are not that many.
  # Between the beginning of a line with handle_interrupt and the mask Ruby looks for no exception.
  def strike(number)
    count, thread = 0, Thread.current
    trace = TracePoint.new(:line, :return, :b_return) do |point|
      next unless Thread.current.equal?(thread) && (lines = LINES[point.path])
      next if point.event == :line && lines[point.lineno].include?("handle_interrupt")

      thread.raise(Strike) if (count += 1) == number
    end
    trace.enable { yield }
    false
  rescue Strike
    true
  end

  WAYS.each do |name, way|
    define_method("test_#{name}") do
      steps = (1..).find { |number| !struck_at(number, "#{@key} #{number}", *way) }
      assert_operator steps, :>, 100
    end
  end

  # struck_at calls with a client of its own, and reports whether the call was struck.
  def struck_at(number, key, way, needs = ->(*) { nil })
    keys, stop = @server.keys, false
    other = Thread.new { keys.lock("#{@key}/other", ttl: 600, &:check) until stop }
    needed = needs.(keys, key)
    struck = strike(number) { way.(keys, key, needed) }
    cancel(keys, needed) if needed.is_a?(String)
    if needed.is_a?(Dibs::Lease) && needed.held?
      assert_operator number, :<, 40, "the call began, so the lease ends in the background"
      needed.release
    end
    assert_free key
    keys.lock(key) { nil }
    stop = true
    Timeout.timeout(LIMIT) { other.join }
    %i[@claims @readers @settlements].map { |name| keys.send(:local).instance_variable_get(name) }.each do |batch|
      assert_equal [[], []], %i[@queue @calls].map { |name| batch.instance_variable_get(name) }
    end
    struck
  ensure
    keys.close
  end

  def cancel(keys, ticket)
    keys.cancel(ticket)
  rescue Dibs::Lost
    nil
  end
end
