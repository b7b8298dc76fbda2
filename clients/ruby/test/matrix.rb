# frozen_string_literal: true

require_relative "support"

# The kill matrix: what happens to a process at each step of each call. For nightly runs; the cheap
# part of it is in the tests beside this file.
class Matrix < Case
  def test_a_killed_waiter_is_passed_over
    pid = nil
    @keys.lock(@key, ttl: 600) do
      pid, = script(@server.url, "Dibs.connect.lock(#{@key.inspect}, ttl: 600) { sleep }")
      wait("it waits") { @server.waiters(@key) == 1 }
      Process.kill("KILL", pid)
      ended(pid)
      other = Thread.new { @keys.lock(@key) { :mine } }
      wait("both wait, or the dead one is gone") { @server.waiters(@key) >= 1 && other.status == "sleep" }
      @other = other
    end
    assert_equal :mine, @other.value
  end


  def test_a_grant_at_the_end_of_a_long_poll_lasts_a_whole_ttl
    @keys.lock(@key, ttl: 600) do
      @thread = Thread.new { @keys.lock(@key, ttl: 4) { |lease| lease.check.left } }
      sleep 5
    end
    assert_operator @thread.value, :>, 0
  end

  # STEPS are what a process does when it is struck. It says its pid, and stays there.
  STEPS = {
    "inside a block" => "keys.lock(KEY, ttl: 2) { puts $$; sleep }",
    "waiting" => "Thread.new { sleep 0.2; puts $$ }; keys.lock(KEY, ttl: 2) { sleep }",
    "inside once" => "keys.once(KEY, ttl: 2) { puts $$; sleep }",
    "with a lease of its own" => "lease = keys.acquire(KEY, ttl: 2); puts $$; sleep",
    "redeeming" => "keys.redeem(keys.reserve(KEY, grace: 2), ttl: 2, grace: 1) { puts $$; sleep }",
    "before a reserved place is redeemed" => "keys.reserve(KEY, grace: 1); puts $$; sleep",
    "in a forked child" => "keys.lock(KEY, ttl: 2) { }; fork { keys.lock(KEY, ttl: 2) { puts $$; sleep } }; Process.wait",
    "anywhere" => "Thread.new { sleep rand * 0.2; puts $$ }; loop { keys.lock(KEY, ttl: 2) { } }"
  }.freeze

  SIGNALS = { "KILL" => false, "TERM" => true, "INT" => true, "STOP" => false }.freeze

  STEPS.each do |step, text|
    SIGNALS.each_key do |signal|
      define_method("test_#{signal} #{step}") { strike(signal, text) }
    end
  end

  # strike requires that the key can be had again, and that a process that continues does not trust
  # its lease.
  def strike(signal, text)
    blocker = text.include?("waiting") || text.include?("Thread.new { sleep 0.2") ? @keys.acquire(@key, ttl: 600) : nil
    pid, to, from = script(@server.url, "KEY = #{@key.inspect}\n$stderr.reopen(File::NULL)\nkeys = Dibs.connect\n#{text}")
    at = Integer(line(from))
    Process.kill(signal, at)
    blocker&.release
    assert_equal :mine, @keys.lock(@key, wait: LIMIT) { |lease| lease.check && :mine }
  ensure
    to&.close
    [at, pid].compact.uniq.each { |p| Process.kill("KILL", p) rescue nil }
    ended(pid) if pid
  end

  # Two threads contend and are interrupted at a random moment, many times: nothing is left behind.
  def test_threads_that_are_interrupted_anywhere_leave_nothing
    seed = Integer(ENV.fetch("SEED", rand(1 << 30)))
    random = Random.new(seed)
    400.times do |i|
      threads = Array.new(2) do
        Thread.new do
          Thread.current.report_on_exception = false
          loop { step(i) }
        end
      end
      sleep random.rand * 0.02
      threads.each { |t| i % 3 == 0 ? t.kill : t.raise(i % 3 == 1 ? KeyError : Timeout::Error) }
      threads.each do |t|
        t.join
      rescue KeyError, Timeout::Error
        nil
      end
    end
    wait("nothing is left (SEED=#{seed}): #{@server.entry(@key)}") { @server.free?(@key) }
    assert_equal :mine, @keys.lock(@key, wait: 0) { :mine }
  end

  # step is what a thread does when it is interrupted. A ticket that its caller never got is not
  # the library's, so redeem has one that is cancelled.
  def step(i)
    return @keys.once("#{@key}/#{i}", ttl: 600) { 1 } if i % 4 == 3
    return @keys.lock(@key, ttl: 600, &:check) if i % 4 != 2

    ticket = @keys.reserve("#{@key}/tickets", ttl: 600)
    begin
      @keys.redeem(ticket, ttl: 600, &:check)
    ensure
      begin
        @keys.cancel(ticket)
      rescue Dibs::Lost
        nil
      end
    end
  end

  # Two servers share a store, and one after the other is killed: no lease is lost, none is granted
  # twice, and no caller sees an error.
  def test_servers_that_are_killed_in_turn
    servers = [Server.new(listen: "127.0.0.1:0")]
    servers << Server.new(listen: "127.0.0.1:0", store: servers[0].store)
    keys = Dibs.connect("#{servers[0].url},#{servers[1].url.delete_prefix("http://")}")
    inside, together, stop = 0, Queue.new, false
    threads = Array.new(6) do
      Thread.new do
        until stop
          keys.lock(@key, ttl: 60) do |lease|
            together << (inside += 1)
            sleep 0.001
            inside -= 1
            lease.check
          end
        end
      end
    end
    8.times do |i|
      before = together.size
      server = servers[i % 2]
      server.kill
      wait("the other server continues") { together.size > before + 5 }
      server.start(server.url.delete_prefix("http://"))
    end
    stop = true
    threads.each(&:join)
    assert_equal [1], Array.new(together.size) { together.pop }.uniq
    assert_free_at servers[0]
  ensure
    keys&.close
    servers&.each(&:stop)
  end

  def assert_free_at(server)
    wait("the key is free") { server.free?(@key) }
  end
end
