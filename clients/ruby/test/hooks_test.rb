# frozen_string_literal: true

require_relative "support"
require "active_support"
require "active_support/notifications"
require "logger"
require "stringio"

# What a program is told.
class HooksTest < Case
  EVENTS = %w[acquired waited skipped lost undone unavailable].freeze

  def setup
    super
    @events = Queue.new
    @subscriber = ActiveSupport::Notifications.subscribe(/\A(#{EVENTS.join("|")})\.dibs\z/) { |name, *, payload| @events << [name, payload] }
    @log = StringIO.new
    Dibs.logger = Logger.new(@log, formatter: ->(level, _, _, text) { "#{level} #{text}\n" })
  end

  def teardown
    Dibs.logger = nil
    ActiveSupport::Notifications.unsubscribe(@subscriber)
    super
  end

  # told returns the events of the test's key, and forgets them.
  def told
    events = Array.new(@events.size) { @events.pop }
    events.each { |_, payload| assert_equal [@key.inspect, ""], payload.values_at(:key, :namespace) }
    lines = @log.string.lines
    @log.truncate(0)
    @log.rewind
    assert_equal events.map { |_, payload| payload[:message] }, lines.map { |l| l.split(" ", 2)[1].chomp }
    events.map { |name, payload| [name.delete_suffix(".dibs"), payload] }
  end

  def names
    told.map(&:first)
  end

  def test_a_lease_begins
    @keys.lock(@key) do |lease|
      name, payload = told.fetch(0)
      assert_equal ["acquired", lease.fence, 1], [name, *payload.values_at(:fence, :attempt)]
    end
    assert_empty told
  end

  def test_a_caller_is_skipped
    @keys.lock(@key) do
      told
      other = @server.keys
      assert_raises(Dibs::Held) { other.lock(@key, wait: 0) { flunk } }
      assert_equal "dibs: skipped: another holder has the lock for this key: #{@key.inspect}", told.fetch(0)[1][:message]
      refute Dibs::LockManager.new(other).lock(@key)
      assert_equal ["skipped"], names
    end
  end

  def test_a_caller_waits
    waiter = nil
    @keys.lock(@key) do
      waiter = Thread.new { @keys.lock(@key) { nil } }
      wait("it waits") { @server.waiters(@key) == 1 }
      told
    end
    waiter.join
    (name, payload), (after,) = told
    assert_equal %w[waited acquired], [name, after]
    assert_operator payload[:waited], :>, 0
  end

  def test_a_lease_is_lost
    assert_raises(Dibs::Lost) do
      @keys.lock(@key, ttl: 600) do |lease|
        told
        @server.keys.send(:local).call("settle", [lease.named])
        @keys.send(:local).renewer.send(:renew, [lease], LIMIT)
        assert_equal ["lost"], names
      end
    end
    assert_empty told
  end

  def test_no_server_answers
    line = Line.new(@server)
    over = Dibs.connect(line.url)
    line.cut("claim", 1000)
    error = assert_raises(Dibs::Unavailable) { over.lock(@key, wait: 0) { flunk } }
    events = told
    assert_equal %w[unavailable undone], events.map(&:first)
    assert_same error, events[0][1][:error]
    lease = @keys.acquire(@key)
    told
    lease.instance_variable_set(:@local, over.send(:local))
    line.close
    Dibs::Tries.stub(:new, Class.new { def self.again? = false }) { assert_raises(Dibs::Unavailable) { lease.abandon } }
    assert_equal ["unavailable"], names
  ensure
    over&.close
    line&.close
  end

  # A lease depends on it.
  def test_what_they_raise_is_ignored
    ActiveSupport::Notifications.subscribed(->(*) { raise KeyError }, /dibs/) { assert_equal 1, @keys.lock(@key) { 1 } }
    Dibs.logger = Object.new
    assert_equal 1, @keys.lock(@key) { 1 }
    assert_free
  end

  def test_a_secret_key_is_not_told
    keys = @server.keys(secret_keys: true)
    keys.lock(@key) { nil }
    refute_includes @log.string, @key
    refute_equal @key.inspect, @events.pop[1][:key]
  ensure
    keys.close
  end

  def test_it_says_nothing_by_itself
    pid, _, from = script(@server.url, "$stderr.reopen($stdout); Dibs.connect.lock(#{@key.inspect}) { puts Dibs.logger.inspect }")
    assert_equal "nil\n", Timeout.timeout(LIMIT) { from.read }
    ended(pid)
  end
end
