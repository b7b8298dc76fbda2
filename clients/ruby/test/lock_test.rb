# frozen_string_literal: true

require_relative "support"

class LockTest < Case
  def test_a_block_holds_the_key_and_returns_its_value
    got = @keys.lock(@key, ttl: 600) do |lease|
      assert_same lease, lease.check
      assert_operator lease.fence, :>, 0
      refute_includes lease.inspect, lease.claim.token
      assert_equal "held", @server.entry(@key)["state"]
      assert_equal lease.id, @server.entry(@key)["runs"][0]["id"]
      :value
    end
    assert_equal :value, got
    assert_free
  end

  def test_a_held_key_is_an_answer
    @keys.lock(@key, ttl: 600) do
      error = assert_raises(Dibs::Held) { @server.keys.lock(@key, wait: 0) { flunk } }
      assert_equal @key, error.key
      assert_operator error.left, :>, 500
      assert_includes error.message, "the key #{@key.inspect} is held"
      error = assert_raises(Dibs::Held) { @server.keys.lock(@key, wait: 0.05) { flunk } }
      assert_operator error.waited, :>=, 0.05
      wait("the place is given back") { @server.waiters(@key).zero? }
      assert @keys.held?(@key)
    end
    refute @keys.held?(@key)
  end

  def test_a_key_may_be_a_secret
    secret = @server.keys(secret_keys: true)
    @keys.lock(@key) do
      error = assert_raises(Dibs::Held) { secret.lock(@key, wait: 0) { flunk } }
      assert_equal @key, error.key
      refute_includes error.message, @key
      assert_includes error.message, "the key #{@server.entry(@key)["digest"]} is held"
    end
    secret.lock(@key) { |lease| refute_includes lease.inspect, @key }
  ensure
    secret.close
  end

  def test_held_says_the_holder_when_it_is_asked
    @keys.lock(@key, ttl: 600, label: "import") do |lease|
      error = assert_raises(Dibs::Held) { @server.keys.lock(@key, wait: 0) { flunk } }
      holder = error.holder
      assert_equal [Socket.gethostname, Process.pid, "import", lease.id], holder.to_a[0, 4]
      assert_operator holder.since, :<, LIMIT
      lease.release
      assert_nil error.holder
    end
  end

  def test_a_credential_that_may_not_look_is_not_told_the_holder
    file = "#{Support.dir}/tokens"
    File.write(file, "app #{Digest::SHA256.hexdigest("use")} shop use\nops #{Digest::SHA256.hexdigest("look")} shop use,look\n")
    server = Server.new("--tokens", file, listen: "127.0.0.1:0")
    server.keys_with("use").lock(@key) do
      use, look = %w[use look].map { |token| assert_raises(Dibs::Held) { server.keys_with(token).lock(@key, wait: 0) { flunk } } }
      assert_nil use.holder
      assert_equal Process.pid, look.holder.pid
      server.kill
      assert_nil look.holder
    end
  rescue Dibs::Unavailable
    nil # the end of the block
  ensure
    server&.stop
  end

  def test_waiting_for_oneself_is_refused_at_once
    @keys.lock(@key) do
      assert_raises(Dibs::Held) { @keys.lock(@key) { flunk } }
    end
    @keys.lock(@key, permits: 2) do
      @keys.lock(@key, permits: 2) do
        assert_raises(Dibs::Held) { @keys.lock(@key, permits: 2) { flunk } }
      end
    end
  end

  # The ways out of a block.

  def test_return
    outer = lambda { |keys| keys.lock(@key, ttl: 600) { return_of_it } }
    assert_equal 7, outer.call(@keys)
    assert_equal 8, returning
    assert_free
  end

  def return_of_it
    7
  end

  def returning
    @keys.lock(@key, ttl: 600) { return 8 }
  end

  def test_break_next_throw_and_exceptions
    assert_equal 1, @keys.lock(@key, ttl: 600) { break 1 }
    assert @server.free?(@key)
    assert_equal 2, @keys.lock(@key, ttl: 600) { next 2 }
    assert @server.free?(@key)
    assert_equal 3, catch(:out) { @keys.lock(@key, ttl: 600) { throw :out, 3 } }
    assert @server.free?(@key)
    assert_raises(KeyError) { @keys.lock(@key, ttl: 600) { raise KeyError } }
    assert @server.free?(@key)
    assert_raises(Interrupt) { @keys.lock(@key, ttl: 600) { raise Interrupt } }
    assert @server.free?(@key)
  end

  def test_a_killed_thread_releases
    held = Queue.new
    thread = Thread.new { @keys.lock(@key, ttl: 600) { held << 1; sleep } }
    held.pop
    thread.kill.join
    assert @server.free?(@key)
  end

  def test_a_timeout_releases
    assert_raises(Timeout::Error) { Timeout.timeout(0.1) { @keys.lock(@key, ttl: 600) { sleep } } }
    assert_free
  end

  def test_a_waiter_that_is_killed_or_timed_out_leaves_the_queue
    @keys.lock(@key, ttl: 600) do
      thread = Thread.new { @keys.lock(@key, ttl: 600) { flunk } }
      wait("it waits") { @server.waiters(@key) == 1 }
      thread.kill.join
      wait("its place is gone") { @server.waiters(@key).zero? }
      late = Thread.new { assert_raises(Timeout::Error) { Timeout.timeout(0.2) { @keys.lock(@key) { flunk } } } }
      late.join
      wait("its place is gone") { @server.waiters(@key).zero? }
      other = Thread.new { @server.keys.lock(@key) { flunk } }
      other.report_on_exception = false
      wait("it waits") { @server.waiters(@key) == 1 }
      other.raise(KeyError, "stop")
      assert_raises(KeyError) { other.join }
      wait("its place is gone") { @server.waiters(@key).zero? }
    end
    assert_free
  end

  def test_exit_releases
    ["exit 3", "Thread.new { exit 3 }.join", "Process.kill(:TERM, $$); sleep", "abort 'x'"].each do |way|
      pid, _, from = script(@server.url, <<~RUBY)
        $stderr.reopen(File::NULL)
        Dibs.connect.lock(#{@key.inspect}, ttl: 600) { puts "held"; #{way} }
      RUBY
      assert_equal "held", line(from), way
      ended(pid)
      assert_free
    end
  end

  def test_the_end_of_the_program_releases_what_threads_hold_and_wait_for
    pid, to, from = script(@server.url, <<~RUBY)
      keys = Dibs.connect
      Thread.new { keys.lock(#{@key.inspect}, ttl: 600) { puts "held"; sleep } }
      Thread.new { keys.lock(#{"#{@key}/2".inspect}, ttl: 600) { } }
      gets
    RUBY
    @keys.lock("#{@key}/2", ttl: 600) do
      assert_equal "held", line(from)
      wait("it waits") { @server.waiters("#{@key}/2") == 1 }
      to.puts
      assert_predicate ended(pid), :success?
      assert_free
      wait("it left the queue") { @server.waiters("#{@key}/2").zero? }
    end
  end

  # Leases.

  def test_a_lease_is_renewed
    lease = @keys.acquire(@key, ttl: 3)
    wait_renewed(lease)
    lease.release
  end

  def test_a_lease_wakes_the_renewer_only_if_it_is_due_before_others
    renewer = @keys.send(:local).renewer
    @keys.lock(@key) { wait("it waits") { renewer.instance_variable_get(:@wakes).finite? } }
    woken = 0
    renewer.instance_variable_get(:@changed).stub(:signal, -> { woken += 1 }) do
      3.times { @keys.lock(@key) {} }
      @keys.lock(@key, ttl: 1) {}
    end
    assert_equal 1, woken
  end

  # Counting stands for a server: it notes how many leases each call renews. Its first call waits.
  class Counting
    attr_reader :pid, :calls, :begun, :go
    attr_accessor :renewer

    def initialize
      @pid, @calls, @begun, @go = Process.pid, Queue.new, Queue.new, Queue.new
      @first = true
    end

    def now = Dibs.now

    def threads? = true

    def call_all(_, renewals, **)
      calls << renewals.size
      if @first
        @first = false
        begun << 1
        go.pop
      end
      renewals.map { [{}, Dibs.now] }
    end
  end

  def test_all_leases_that_are_due_are_renewed_in_one_call
    counting = Counting.new
    counting.renewer = Dibs::Renewer.new(counting, 5)
    add = lambda do |i|
      claim = @keys.send(:claim, "#{@key}#{i}", ttl: 600)
      Dibs::Lease.new(@keys, counting, claim, { "fence" => "1" }, Dibs.now - 300)
    end
    add[0]
    counting.begun.pop
    5.times(&add)
    counting.go << 1
    assert_equal [1, 5], Array.new(2) { Timeout.timeout(LIMIT) { counting.calls.pop } }
  ensure
    counting.renewer.stop
  end

  def test_the_clock_runs_while_the_machine_is_suspended
    skip "only Linux has the clock" unless defined?(Process::CLOCK_BOOTTIME)
    Process.stub(:clock_gettime, ->(clock) { clock }) { assert_equal Process::CLOCK_BOOTTIME, Dibs.now }
  end

  def test_a_lease_that_was_taken_away_is_lost
    lease = @keys.acquire(@key, ttl: 600)
    @server.take(@key)
    assert_raises(Dibs::Lost) { lease.save("progress") }
    assert_raises(Dibs::Lost) { lease.check }
    assert_raises(Dibs::Lost) { lease.fence }
    assert_raises(Dibs::Lost) { @keys.lock(@key, ttl: 600) { |l| @server.take(@key) } }
    assert_raises(KeyError) { @keys.lock(@key, ttl: 600) { |l| @server.take(@key); raise KeyError } }
    assert_raises(Dibs::Lost) { @keys.lock(@key, ttl: 600) { |l| @server.take(@key); break } }
  end

  def test_arguments_are_refused_by_name
    {
      { ttl: 0.001 } => /ttl/, { ttl: "1 hour" } => /ttl/, { wait: -1 } => /wait/, { wait: Float::NAN } => /wait/,
      { permits: 0 } => /permits/, { weight: 2 } => /weight/, { fingerprint: "x" } => /fingerprint/, { stop_timeout: 20 } => /stop_timeout/,
      { wiat: 1 } => /wiat/, { token: "0" * 32 } => /token/, { max_age: 1 } => /max_age/
    }.each do |options, text|
      assert_match text, assert_raises(ArgumentError, options.to_s) { @keys.lock(@key, **options) { flunk } }.message
    end
    [nil, :a, 42, "", "x" * 513].each { |key| assert_raises(ArgumentError, key.inspect) { @keys.lock(key) { flunk } } }
    assert_raises(ArgumentError) { @keys.lock(@key) }
  end
end
