# frozen_string_literal: true

require_relative "support"
require "dibs/testing"


# dibs/testing: what table_test.rb does not say.

# Desk is a keeper with the methods of Server.
class Desk
  def initialize
    @keeper = Dibs::Testing::Keeper.new
  end

  def keys(**options)
    @keeper.connect(**options)
  end

  def entry(key)
    leases, places = %i[@leases @places].map { |name| state(key).instance_variable_get(name) }
    waiting = places.reject(&:reserved)
    { "reserved" => places.count { |p| p.reserved && (waiting + leases).none? { |w| w.number == p.number } }, "waiters" => waiting.size }
  end

  def waiters(key)
    entry(key)["waiters"]
  end

  def free?(key)
    state(key).claim("token" => "", "mode" => "look")["state"] == "free"
  end

  def state(key)
    @keeper.send(:state, { "key" => key })
  end

  def advance(seconds)
    @keeper.advance(seconds)
  end
end

Minitest::Runnable.runnables.delete(JobTest) if require_relative "job_test" # it runs in a file of its own

# Jobs run with a keeper, which each test has.
class JobOnDeskTest < JobTest
  def self.server = Desk.new

  # wait lets time pass.
  def wait(what, &block)
    super { @server.advance(0.005) || block.call }
  end

  public_instance_methods.grep(/_child_|_without_a_server|_could_not_ask/).each { |test| undef_method(test) }
end

class TestingTest < Case
  def setup
    super
    @keeper = Dibs::Testing::Keeper.new
    @mine = @keeper.connect
  end

  def test_another_holder
    @keeper.held_by_another(@key)
    assert_equal [3600, 43_200], %w[1h 12h].map { |wait| assert_raises(Dibs::Held) { @mine.lock(@key, wait: wait) { flunk } }.waited }
  end

  def test_another_holder_for_a_time
    @keeper.held_by_another(@key, 90)
    assert_raises(Dibs::Held) { @mine.lock(@key, wait: 60) { flunk } }
    assert_equal 1, @mine.lock(@key, &:attempt)
    assert_equal 90, @keeper.now - 1e6
  end

  def test_a_wait_that_never_ends_is_an_error
    @keeper.held_by_another(@key)
    assert_match(/#{Regexp.escape(@key)}.*gives back/, assert_raises(RuntimeError) { @mine.lock(@key) { flunk } }.message)
    @keeper.release(@key)
    assert @mine.lock(@key, &:held?)
  end

  def test_a_lease_is_lost_now
    assert_raises(Dibs::Lost) do
      @mine.lock(@key) do |lease|
        @mine.lock("#{@key}/2", &:check)
        @keeper.lose(@key)
        refute lease.held?
      end
    end
    assert_raises(Dibs::Lost) { @mine.once(@key) { @keeper.lose(@key) } }
    assert_equal 2, @mine.once(@key) { 2 }
  end

  def test_time_passes
    @mine.once(@key, keep: "24h") { 1 }
    @keeper.advance("23h")
    assert_equal 1, @mine.once(@key) { flunk }
    @keeper.advance("1h")
    assert_equal 2, @mine.once(@key) { 2 }
    @mine.lock("#{@key}/l") { |lease| @keeper.advance("8h") && lease.check }
    assert_raises(Dibs::Lost) { @mine.lock("#{@key}/l", max_lifetime: "1h") { |lease| @keeper.advance("1h") && lease.check } }
    lease = @mine.acquire("#{@key}/t", ttl: 30, renew: false)
    @keeper.advance(31)
    assert_raises(Dibs::Lost) { lease.check }
    assert_equal 2, @mine.lock("#{@key}/t", &:attempt)
  end

  # Its grace begins with the first caller that it keeps away.
  def test_a_reserved_place_has_a_grace
    @mine.reserve(@key, grace: 60)
    @keeper.advance("1h")
    assert_raises(Dibs::Held) { @mine.lock(@key, wait: 59) { flunk } }
    assert_equal 1, @mine.lock(@key, wait: 2, &:attempt)
  end

  def test_a_waiter_that_died_is_passed_over
    @mine.acquire(@key).then do |lease|
      @mine.send(:local).claim(@mine.send(:claim, @key).wire("queue"))
      lease.release
    end
    assert_raises(Dibs::Held) { @mine.lock(@key, wait: 9) { flunk } }
    assert_equal 1, @mine.lock(@key, wait: 2, &:attempt)
  end

  # The helper gives each test a keeper of its own.
  class Helped < Minitest::Test
    include Dibs::Testing::Helper
    i_suck_and_my_tests_are_order_dependent!

    def test_1
      Dibs.default.acquire("key")
      assert_raises(Dibs::Held) { keys.lock("key", wait: 0) { flunk } }
      keeper.lose("key")
      assert_equal 1, keys.lock("key") { 1 }
    end

    def test_2
      assert_equal 1, Dibs.default.lock("key", wait: 0, &:attempt)
    end
  end

  # The guide's specs pass, in any order.
  def test_the_helper_works_with_rspec
    guide = File.read(File.expand_path("../../../docs/guides/testing-your-code.md", __dir__))
    file = "#{Support.dir}/remind_spec.rb"
    File.write(file, guide[/^```rb\n(.*?)^```/m, 1])
    said = IO.popen([RbConfig.ruby, "-I", File.expand_path("../lib", __dir__), "-rrspec/autorun", file, "--order", "random"], err: %i[child out], &:read)
    assert_match(/2 examples, 0 failures/, said)
  end

  def test_the_keeper_is_away
    lease = @mine.acquire(@key)
    @keeper.away { assert_raises(Dibs::Unavailable) { @mine.lock("#{@key}/2") { flunk } } }
    assert lease.held?
    assert_equal 1, @mine.lock("#{@key}/2", wait: 0, &:attempt)
    @keeper.away
    @keeper.advance(30)
    refute lease.held?
    @keeper.back
    assert_raises(Dibs::Lost) { lease.release }
    assert_equal 2, @mine.lock(@key, &:attempt)
  end

  # What could not be settled is, when the keeper is back.
  def test_what_is_settled_in_the_background
    lease = @mine.acquire(@key)
    @keeper.away { assert_raises(Dibs::Unavailable) { lease.release } }
    assert_raises(Dibs::Held) { @mine.acquire(@key, wait: 0) }
    @keeper.advance(1)
    assert_equal 1, @mine.lock(@key, wait: 0, &:attempt)
  end

  # A wait for a thread of the program is a real one.
  def test_another_thread_holds_the_key
    lease = Thread.new { @mine.acquire(@key) }.value # that thread has ended, and this one has its lease
    before = @keeper.now
    waiter = Thread.new { @keeper.connect.acquire(@key) }
    wait("it waits") { assert_raises(Dibs::Held) { @mine.acquire(@key, wait: 0) }.ahead == 1 }
    assert_equal before, @keeper.now
    lease.release
    lease = waiter.value
    assert_raises(Dibs::Held) { Thread.new { @mine.lock(@key, wait: 0.05) { flunk } }.tap { |t| t.report_on_exception = false }.value }
    lease.release
  end

  def test_there_is_no_thread
    before = Thread.list
    @mine.lock(@key) { @keeper.advance(600) }
    @keeper.away { assert_raises(Dibs::Unavailable) { @mine.acquire(@key, wait: 0) } }
    assert_equal before, Thread.list
  end

  # Raw calls to a server and to a keeper, with the same random elements, have the same answers. No
  # waiter waits for long enough that the server gives it the key.
  def test_it_answers_as_a_server_does
    seed = Integer(ENV.fetch("SEED", rand(1 << 30)))
    random = Random.new(seed)
    80.times do |round|
      tokens = Array.new(5) { random.bytes(16).unpack1("H*") }
      history = []
      18.times do
        verb, element = draw(random, tokens)
        element[:key] = "#{@key} #{round}"
        history << [verb, element]
        both(verb, element, "SEED=#{seed}, after #{history.map { |v, e| "\n#{v} #{e}" }.join}")
      end
    end
  end

  # both has a call answered by the server and by the keeper.
  def both(verb, element, said = nil)
    real, ours = [@keys, @mine].map { |keys| keys.send(:local).call(verb, [element])[0][0] }
    assert_equal plain(real), plain(ours), said
    assert_operator ours["ahead"] || 0, :<=, real["ahead"] || 0, said # at most as many are ahead
    ours
  end

  def plain(answer)
    answer.except("namespace", "fence", "ahead").merge(answer.slice("left_ms").transform_values { true })
          .merge(answer.slice("error").transform_values { |e| e["type"] })
          .merge(answer.slice("record").transform_values { |r| r["data"] })
  end

  def draw(random, tokens)
    some = ->(*list) { list[random.rand(list.size)] }
    token = some[*tokens]
    return ["renew", { token: token, ttl_ms: 600_000, progress: some[nil, ["half"].pack("m0")] }.compact] if random.rand < 0.2

    if random.rand < 0.4
      outcome = some["release", "keep", "abandon", "undo"]
      kept = outcome == "keep" ? { data: [token].pack("m0"), retention_ms: 600_000 } : {}
      return ["settle", { token: token, outcome: outcome, **kept }]
    end
    mode = some["try", "try", "queue", "reserve", "look"]
    claim = { token: token, mode: mode, ttl_ms: 600_000, place_ttl_ms: 600_000, fingerprint: some[nil, nil, nil, "a" * 64, "b" * 64],
              max_age_ms: some[nil, 600_000] }
    permits = mode == "queue" || mode == "reserve" ? 1 : some[1, 1, 3]
    claim.update(permits: permits, weight: some[1, permits])
    claim[:at_most_once] = true if mode == "queue" # the server gives such a waiter no key before it asks
    claim[:from] = (tokens - [token])[random.rand(4)] if mode != "reserve" && random.rand < 0.4
    ["claim", claim.compact]
  end
end
