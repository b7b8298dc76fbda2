# frozen_string_literal: true

require_relative "support"

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

  def test_what_is_no_json_is_not_kept
    [Object.new, Time.now, Float::NAN, "\xff", { 1 => 2 }, { "a" => 1, a: 2 }, [:symbol], "\xff".b].each do |value|
      error = assert_raises(Dibs::NotKept, value.inspect) { @keys.once(@key) { value } }
      assert_same value, error.result
      assert @server.free?(@key)
    end
    assert_equal 1, @keys.once(@key) { 1 }
  end

  def test_a_record_that_is_not_of_once
    @keys.acquire(@key).complete("no json")
    assert_raises(Dibs::Refused) { @keys.once(@key) { flunk } }
    @keys.acquire("#{@key}/2").complete("[1]")
    assert_raises(Dibs::Refused) { @keys.once("#{@key}/2") { flunk } }
  end

  def test_another_fingerprint
    a, b = %w[a b].map { |t| Digest::SHA256.hexdigest(t) }
    @keys.once(@key, fingerprint: a) { 1 }
    assert_raises(Dibs::Mismatch) { @keys.once(@key, fingerprint: b) { flunk } }
  end

  def test_a_lost_lease_stores_nothing
    assert_raises(Dibs::Lost) do
      @keys.once(@key, ttl: 600) { |lease| @server.keys.tap { |k| steal(k, lease) } && 1 }
    end
    assert_equal 2, @keys.once(@key) { 2 }
  end

  # steal settles the lease by its token.
  def steal(keys, lease)
    keys.send(:local).call("settle", { settlements: [lease.named] }, 1)
  end
end

class TicketTest < Case
  def test_a_ticket_keeps_its_place
    first, second = @keys.reserve(@key), @keys.reserve(@key)
    assert_raises(Dibs::Held) { @keys.redeem(second, wait: 0) { flunk } }
    assert_raises(Dibs::Held) { @keys.lock(@key, wait: 0) { flunk } }
    assert_equal 1, @keys.redeem(first) { 1 }
    assert_equal 2, @keys.redeem(second) { 2 }
    assert_free
  end

  def test_a_block_that_undoes_keeps_the_place
    ticket = @keys.reserve(@key)
    later = @keys.reserve(@key)
    @keys.redeem(ticket, &:undo)
    assert_raises(Dibs::Held) { @keys.redeem(later, wait: 0) { flunk } }
    @keys.redeem(ticket) { nil }
    @keys.redeem(later) { nil }
  end

  def test_cancel_and_prolong
    ticket = @keys.reserve(@key, ttl: 600, hold: 60)
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
