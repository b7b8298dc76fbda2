# frozen_string_literal: true

require_relative "support"
require "set"

class OnceTest < Case
  def test_later_callers_get_the_stored_result
    value = { id: 17, "list" => [nil, true, 1.5, "é"] }
    stored = { "id" => 17, "list" => [nil, true, 1.5, "é"] }
    assert_equal stored, @keys.once(@key, keep: "1h") { value }
    assert_equal stored, @server.keys.once(@key) { flunk }
    [nil, false, "", 0].each do |v|
      2.times { |i| assert_equal [v], [@keys.once("#{@key}/#{v.inspect}") { i.zero? ? v : flunk }] }
    end
  end

  def test_callers_at_once_run_it_once
    runs = Queue.new
    threads = Array.new(5) { Thread.new { @keys.once(@key) { runs << 1; sleep 0.05; "result" } } }
    assert_equal ["result"] * 5, threads.map(&:value)
    assert_equal 1, runs.size
  end

  def test_an_error_is_not_stored_unless_it_is_to_be_remembered
    assert_raises(KeyError) { @keys.once(@key) { raise KeyError } }
    assert_raises(KeyError) { @keys.once(@key, remember: IndexError) { raise KeyError, "declined" } }
    assert_equal "declined", assert_raises(Dibs::Remembered) { @keys.once(@key) { flunk } }.message
    assert_raises(KeyError) { @keys.once("#{@key}/p", remember: ->(e) { e.is_a?(KeyError) }) { raise KeyError } }
    assert_raises(Dibs::Remembered) { @keys.once("#{@key}/p") { flunk } }
  end

  def test_leaving_the_block_stores_nothing
    assert_equal 1, @keys.once(@key) { break 1 }
    assert_equal 2, @keys.once(@key) { 2 }
  end

  # LOST are results that cannot be stored, and why.
  LOST = {
    Object.new => /class Object/, Time.now => /class Time/, Float::NAN => /NaN/, [Float::INFINITY] => /Infinity/, "\xff" => /UTF-8/,
    { 1 => 2 } => /Integer/, { "a" => 1, a: 2 } => /as String and as Symbol/, [:symbol] => /Symbol/, Set.new([1]) => /class Set/,
    200.times.inject([]) { |a, _| [a] } => /nested/
  }.freeze

  # The effect happened; only its record failed. So the block does not run again.
  def test_a_result_that_cannot_be_stored_does_not_run_again
    LOST.each_with_index do |(value, why), i|
      [{}, { at_most_once: true }].each do |options|
        key = "#{@key}/#{i}/#{options}"
        error = assert_raises(Dibs::NotKept, value.inspect) { @keys.once(key, **options) { value } }
        assert_same value, error.result
        assert_match(/could not be stored, and later callers get Dibs::Unrecorded: /, error.message)
        refute_nil error.cause
        2.times do
          later = assert_raises(Dibs::Unrecorded) { @server.keys.once(key, **options) { flunk } }
          assert_match why, later.why
          assert_match(/dibs resolve.*dibs forget/, later.message)
        end
      end
    end
  end

  def test_a_result_that_is_nested_in_itself
    a = []
    a << a
    assert_raises(Dibs::NotKept) { @keys.once(@key) { a } }
    assert_raises(Dibs::Unrecorded) { @keys.once(@key) { flunk } }
  end

  def test_the_record_says_why
    assert_raises(Dibs::NotKept) { @keys.once(@key) { Float::NAN } }
    record = assert_raises(Dibs::Done) { @keys.acquire(@key, max_age: :any) }.record
    assert_equal({ "not_kept" => "the result is NaN" }, JSON.parse(record))
  end

  def test_a_result_that_is_too_large_does_not_run_again
    server = Server.new("--max-body", "1MiB")
    keys = server.keys
    assert_raises(Dibs::NotKept) { keys.once(@key) { "x" * (2 << 20) } }
    assert_raises(Dibs::Unrecorded) { keys.once(@key) { flunk } }
    assert_raises(Dibs::NotKept) { keys.once("#{@key}/error", remember: KeyError) { raise KeyError, "x" * (2 << 20) } }
    assert_raises(Dibs::Unrecorded) { keys.once("#{@key}/error") { flunk } }
  ensure
    keys&.close
    server&.stop
  end

  def test_with_rerun_the_next_caller_runs
    2.times { assert_match(/the next caller runs again/, assert_raises(Dibs::NotKept) { @keys.once(@key, rerun: true) { Time.now } }.message) }
    assert @server.free?(@key)
    assert_equal 1, @keys.once(@key) { 1 }
  end

  # What is too large or no JSON is noted, and what no server answers is stored in the background.
  def test_a_result_is_stored_in_the_background
    line = Line.new(@server)
    over = Dibs.connect(line.url)
    no_more = Object.new
    def no_more.again? = false
    { "result" => 1, "note" => Time.now }.each do |name, value|
      key = "#{@key}/#{name}"
      line.say("settle", Line.problem("503 Service Unavailable", "stopping"), false)
      Dibs::Tries.stub(:new, no_more) { assert_raises(Dibs::NotKept) { over.once(key, at_most_once: true) { value } } }
      line.forward
      wait("it is stored") { @server.entry(key)&.fetch("state") == "done" }
    end
    assert_equal 1, @keys.once("#{@key}/result") { flunk }
    assert_raises(Dibs::Unrecorded) { @keys.once("#{@key}/note") { flunk } }
  ensure
    over&.close
    line&.close
  end

  # The effect of the block has happened, so nothing interrupts what stores its result.
  def test_nothing_interrupts_what_stores_a_result
    line = Line.new(@server)
    over = Dibs.connect(line.url)
    [:kill.to_proc, ->(t) { t.raise(KeyError) }].each_with_index do |strike, i|
      held, go = Queue.new, Queue.new
      line.before("settle") { held << 1; go.pop }
      thread = Thread.new { over.once("#{@key}/#{i}") { 1 } }
      thread.report_on_exception = false
      held.pop
      strike.call(thread)
      assert_nil thread.join(0.3), "it was interrupted"
      go << 1
      thread.join rescue nil
      assert_equal 1, @keys.once("#{@key}/#{i}") { flunk }
      line.forward
    end
  ensure
    over&.close
    line&.close
  end

  def test_a_record_that_is_not_of_once
    @keys.acquire(@key).complete("no json")
    assert_raises(Dibs::Refused) { @keys.once(@key) { flunk } }
    @keys.acquire("#{@key}/2").complete("[1]")
    assert_raises(Dibs::Refused) { @keys.once("#{@key}/2") { flunk } }
  end

  def test_a_lost_lease_stores_nothing
    assert_raises(Dibs::Lost) do
      @keys.once(@key, ttl: 600) { |lease| @server.keys.tap { |k| steal(k, lease) } && 1 }
    end
    assert_equal 2, @keys.once(@key) { 2 }
  end

  # steal settles the lease by its token.
  def steal(keys, lease)
    keys.send(:local).call("settle", [lease.named])
  end
end

class TicketTest < Case
  def test_cancel_and_prolong
    ticket = @keys.reserve(@key, ttl: 600, grace: 60)
    @keys.prolong(ticket, ttl: "2h")
    assert_operator @server.entry(@key)["places"][0]["left_ms"], :>, 3_600_000
    @keys.cancel(ticket)
    assert_raises(Dibs::Lost) { @keys.cancel(ticket) }
    assert @server.free?(@key)
  end

  def test_other_texts_are_refused
    ticket = @keys.reserve(@key)
    [nil, "", "dibs1", "#{ticket}=", "#{ticket}.", ticket.sub("dibs1", "dibs2"), " #{ticket}", "#{ticket}\n",
     ticket.sub(/\.[^.]+/, ".AAAA")].each do |text|
      assert_raises(ArgumentError, text.inspect) { @keys.redeem(text, wait: 0) { flunk } } unless text == ticket
    end
    @keys.cancel(ticket)
  end
end
