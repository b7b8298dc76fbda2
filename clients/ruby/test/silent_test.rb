# frozen_string_literal: true

require_relative "support"

# Claims that a frozen server carries out when it wakes, after another server has answered them and
# their token was settled there.
class SilentTest < Case
  def setup
    super
    @second = Server.new(listen: "127.0.0.1:0", store: @server.store)
    @line = Line.new(@server, tcp: true)
    @both = Dibs.connect("#{@line.url},#{@second.url.delete_prefix("http://")}", timeout: 6, ttl: 600)
  end

  def teardown
    @both.close
    @line.close
    @second.stop
    super
  end

  # WAYS settle the token of a claim whose first server is frozen.
  WAYS = {
    "a lock" => ->(keys, key) { keys.lock(key, wait: 0) { nil } },
    "a lock that waits" => ->(keys, key) { keys.lock(key) { nil } },
    "a record" => ->(keys, key) { keys.acquire(key).complete("x", keep: 0.001) },
    "an abandon" => ->(keys, key) { keys.acquire(key).abandon },
    "an undo" => ->(keys, key) { keys.acquire(key).undo },
    "once" => ->(keys, key) { keys.once(key, keep: 0.001) { 1 } },
    "a cancelled place" => ->(keys, key) { keys.cancel(keys.reserve(key)) },
    "a redeemed place" => ->(keys, key) { keys.reserve(key).then { |ticket| keys.redeem(ticket) { nil } } }
  }.freeze

  # freeze runs the block while the first server is frozen, and returns what wakes it.
  def freeze
    thaw = @line.freeze("claim")
    @both.send(:local).wire.instance_variable_set(:@current, 0)
    yield
    thaw
  end

  def undoer
    @both.send(:local).undoer
  end

  def again(key)
    undoer.instance_variable_get(:@entries).select { |e| e.again && e.claim.key == key }
  end

  def test_nothing_is_left_of_a_claim_that_was_settled_at_another_server
    WAYS.each { |name, way| freeze { way.(@both, "#{@key} #{name}") }.call }
    WAYS.each_key do |name|
      key = "#{@key} #{name}"
      wait("nobody has #{key}: #{@server.entry(key)}") { found = @server.entry(key); found.nil? || (found["state"] == "abandoned" && found["places"].nil?) }
    end
  end

  def test_nothing_is_left_of_a_claim_that_another_server_refused
    lease = @keys.acquire(@key)
    thaw = freeze { assert_raises(Dibs::Held) { @both.lock(@key, wait: 0) { flunk } } }
    lease.release
    thaw.call
    assert_free
  end

  # A kill runs no rescue.
  def test_nothing_is_left_of_a_claim_whose_caller_was_killed
    thaw = freeze do
      thread = Thread.new { @both.acquire(@key) }
      wait("the claim is sent") { undoer.instance_variable_get(:@silent).any? }
      thread.kill.join
      wait("it was undone") { again(@key).any? }
    end
    thaw.call
    assert_free
  end

  def test_it_is_undone_more_than_once
    thaw = freeze { @both.lock(@key, wait: 0) { nil } }
    wait("it was undone again") { again(@key).any? { |e| e.again > 2 } }
    thaw.call
    assert_free
  end

  def test_it_is_undone_with_growing_pauses_for_five_minutes
    now = Dibs.now
    claim = @keys.send(:claim, @key)
    undoer = @keys.send(:local).undoer
    entries, changed = %i[@entries @changed].map { |name| -> { undoer.instance_variable_get(name) } }
    dues = []
    start = now
    Dibs.stub(:now, -> { now }) do
      undoer.claims(claim)
      undoer.settled(claim, "release")
      while (entry = entries.call.first)
        dues << entry.due - start
        now = entry.due
        changed.call.broadcast
        give_up = Process.clock_gettime(Process::CLOCK_MONOTONIC) + LIMIT
        sleep 0.001 while (entries.call.include?(entry) || undoer.instance_variable_get(:@under_way).any?) && Process.clock_gettime(Process::CLOCK_MONOTONIC) < give_up
      end
      undoer.claims(claim)
      now += 301
      undoer.settled(claim, "release")
      assert_empty entries.call
    end
    assert_equal [1, 3, 7, 15, *(30..300).step(15)], dues.map(&:round)
    assert_empty undoer.instance_variable_get(:@silent)
  end

  def test_a_place_that_is_reserved_again_is_not_undone
    ticket = nil
    thaw = freeze { @both.cancel(ticket = @both.reserve(@key)) }
    assert_equal 1, again(@key).size
    @both.prolong(ticket)
    assert_empty again(@key)
    thaw.call
    assert_equal 1, @server.entry(@key).fetch("reserved")
    @both.cancel(ticket)
    assert_equal 1, again(@key).size
  end

  def test_an_answered_claim_is_not_undone_again
    @both.lock(@key) { nil }
    @both.cancel(@both.reserve(@key))
    assert_empty again(@key)
    assert_empty undoer.instance_variable_get(:@silent)
  end

  # The end of the program waits for what was not settled yet, and not for what is undone again.
  def test_flush_does_not_wait_for_what_is_undone_again
    freeze { @both.lock(@key, wait: 0) { nil } }
    assert_equal 1, again(@key).size
    assert_equal 0, @both.flush(LIMIT)
  end

  # Heard is a server that notes what it gets, and whether the caller closes the connection.
  class Heard
    attr_reader :url, :bodies, :closed

    def initialize(answer = nil)
      @listener = TCPServer.new("127.0.0.1", 0)
      @url = "http://127.0.0.1:#{@listener.addr[1]}"
      @bodies, @closed = Queue.new, Queue.new
      @thread = Thread.new do
        loop do
          io = @listener.accept
          head = +""
          head << io.gets until head.end_with?("\r\n\r\n")
          @bodies << JSON.parse(io.read(head[/content-length: (\d+)/i, 1].to_i))
          answer ? io.close : @closed << io.read
        end
      end
    end

    def stop
      @thread.kill.join
      @listener.close
    end
  end

  def test_a_claim_says_how_long_its_caller_listens
    now = Dibs.now
    servers = Array.new(2) { Heard.new(:none) }
    keys = Dibs.connect(servers.map { |s| s.url.delete_prefix("http://") }.join(",").prepend("http://"), timeout: 3)
    Dibs.stub(:now, now) do
      claim = ->(wait) { keys.send(:local).call("claim", [], wait: wait) }
      assert_raises(Dibs::Unavailable) { claim.(0.0) }
      assert_raises(Dibs::Unavailable) { claim.(0.25) }
    end
    assert_equal [1500, 3250, 3000], [*Array.new(2) { servers[0].bodies.pop["timeout_ms"] }, servers[1].bodies.pop["timeout_ms"]]
  ensure
    servers.each(&:stop)
  end

  def test_a_caller_that_gives_up_closes_its_connection
    ways = {
      "its timeout" => ->(url) { Dibs.connect(url, timeout: 0.1).held?(@key) },
      "Timeout" => ->(url) { Timeout.timeout(0.1) { Dibs.connect(url, timeout: LIMIT).acquire(@key) } },
      "a kill" => ->(url) { Dibs.connect(url, timeout: LIMIT).acquire(@key) }
    }
    ways.each do |name, way|
      heard = Heard.new
      thread = Thread.new { way.(heard.url) }
      thread.report_on_exception = false
      Timeout.timeout(LIMIT) { heard.bodies.pop }
      thread.kill if name == "a kill"
      assert_equal "", Timeout.timeout(LIMIT) { heard.closed.pop }, name
      heard.stop
    end
  end
end
