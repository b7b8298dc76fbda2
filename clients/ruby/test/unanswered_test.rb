# frozen_string_literal: true

require_relative "support"

# Settlements that are sent and not answered.
class UnansweredTest < Case
  # ENDS are what may come of a settlement that is sent: the answer (nil: it is lost), whether the
  # server does the call, the error, and whether the lease may have ended.
  PAGE = "text/html"
  ENDS = {
    "the answer is lost" => [nil, true, Dibs::Unavailable, true],
    "the store does not answer" => [Line.problem("503 Service Unavailable", "store-unavailable"), true, Dibs::Unavailable, true],
    "a proxy does not get the answer" => [Line.response("502 Bad Gateway", PAGE, "<p>"), true, Dibs::Unavailable, true],
    "a proxy answers" => [Line.response("200 OK", PAGE, "<p>"), true, Dibs::Refused, true],
    "a proxy knows no such page" => [Line.response("404 Not Found", PAGE, "<p>"), true, Dibs::Refused, true],
    "the answer is another program's" => [Line.response("200 OK", "application/json", '{"answers": []}'), true, Dibs::Refused, true],
    "the server is stopping" => [Line.problem("503 Service Unavailable", "stopping"), false, Dibs::Unavailable, false],
    "the credential is refused" => [Line.problem("401 Unauthorized", "unauthorized"), false, Dibs::Unauthorized, false],
    "a bound is reached" => [Line.problem("429 Too Many Requests", "overloaded"), false, Dibs::Overloaded, false]
  }.freeze

  CALLS = { "complete" => ->(l) { l.complete("record") }, "abandon" => :abandon.to_proc, "undo" => :undo.to_proc }.freeze

  # Once sends each call once.
  module Once
    def self.again?
      false
    end
  end

  def setup
    super
    @line = Line.new(@server)
    @over = Dibs.connect(@line.url)
  end

  def teardown
    @over.close
    @line.close
    super
  end

  def fails(ending, lease, call)
    answer, done, kind = ENDS[ending]
    answer ? @line.say("settle", answer, done) : @line.cut("settle", 2)
    error = Dibs::Tries.stub(:new, Once) { assert_raises(kind) { call.(lease) } }
    assert_equal 1, error.message.scan("dibs: ").size
    @line.forward
  end

  def renew(lease)
    @over.send(:local).renewer.send(:renew, [lease], LIMIT)
  end

  def test_the_lease_is_not_trusted_if_it_may_have_ended
    ENDS.each do |ending, (_, done, _, doubt)|
      CALLS.each do |name, call|
        lease = @over.acquire("#{@key} #{ending} #{name}", ttl: 600)
        fails(ending, lease, call)
        if doubt
          [:check, :fence, ->(l) { l.save("progress") }].each do |look|
            error = assert_raises(Dibs::Lost) { look.to_proc.(lease) }
            assert_match(/its #{name} was sent and not answered; call #{name} again/, error.message)
          end
          renew(lease)
        end
        assert_equal [!doubt, doubt], [lease.held?, lease.left.zero?], ending
        call.(lease)
        assert_equal done, doubt
        assert_match(/it was settled/, assert_raises(Dibs::Lost) { lease.check }.message)
        assert_raises(Dibs::Done) { @keys.acquire(lease.key, max_age: "1h") } if name == "complete"
      end
    end
  end

  # The call did not reach the server, so the lease stands, and is renewed.
  def test_a_renewal_does_not_restore_trust
    lease = @over.acquire(@key, ttl: 600)
    @line.say("settle", Line.response("502 Bad Gateway", PAGE, "<p>"), false)
    Dibs::Tries.stub(:new, Once) { assert_raises(Dibs::Unavailable) { lease.complete("record") } }
    @line.forward
    before = lease.due
    renew(lease)
    assert_operator lease.due, :>, before
    assert_match(/not answered/, assert_raises(Dibs::Lost) { lease.check }.message)
    lease.complete("record")
    assert_raises(Dibs::Done) { @keys.acquire(@key, max_age: "1h") }
  end

  def test_the_store_decides_what_is_repeated
    CALLS.each do |name, call|
      lease = @over.acquire("#{@key} #{name}", ttl: 600)
      @line.say("settle", Line.response("502 Bad Gateway", PAGE, "<p>"), false)
      Dibs::Tries.stub(:new, Once) { assert_raises(Dibs::Unavailable) { call.(lease) } }
      @line.forward
      @server.keys.send(:local).call("settle", [lease.named])
      if name == "complete" # a record may be written twice, so this is certain
        2.times { assert_raises(Dibs::Lost) { call.(lease) } }
      else
        call.(lease)
      end
      refute lease.held?
    end
  end

  def test_a_record_is_found_after_the_time_of_its_lease
    lease = @over.acquire(@key, ttl: 600)
    fails("the answer is lost", lease, CALLS["complete"])
    later = Dibs.now + 700
    Dibs.stub(:now, -> { later }) do
      assert_raises(Dibs::Lost) { lease.check }
      lease.complete("record")
    end
  end

  # An answer that nothing was done says nothing of a call before it.
  def test_a_call_that_was_not_answered_may_be_done_whatever_comes_after_it
    busy = Line.response("200 OK", "application/json", JSON.generate(answers: [{ error: { type: "busy", detail: "a transaction has the key" } }]))
    CALLS.each do |name, call|
      lease = @over.acquire("#{@key} #{name}", ttl: 600)
      @line.cut("settle", 2)
      @line.say("settle", busy, false)
      again = [true, false]
      tries = Object.new
      tries.define_singleton_method(:again?) { again.shift }
      Dibs::Tries.stub(:new, tries) { assert_raises(Dibs::Busy) { call.(lease) } }
      refute lease.held?, name
      @line.forward
      call.(lease)
    end
  end

  def test_a_place_that_is_given_back_without_an_answer_is_no_loss
    [1, 2].each do |lost|
      ticket = @over.reserve(@key)
      @line.cut("settle", lost)
      assert_nil @over.cancel(ticket)
    end
  end

  # So the same call at another one is not a repeated one.
  def test_what_a_stopping_server_refused_was_not_done
    lease, ticket = @over.acquire(@key, ttl: 600), @over.reserve("#{@key}/2")
    @server.keys.send(:local).call("settle", [lease.named])
    @keys.cancel(ticket)
    tries = Object.new
    line = @line
    tries.define_singleton_method(:again?) { line.forward && true }
    [-> { lease.release }, -> { @over.cancel(ticket) }].each do |call|
      @line.say("settle", Line.problem("503 Service Unavailable", "stopping"), false)
      Dibs::Tries.stub(:new, tries) { assert_raises(Dibs::Lost, &call) }
    end
  end

  def test_the_end_of_a_block_says_it
    ENDS.each do |ending, (_, _, _, doubt)|
      key = "#{@key} #{ending}"
      said = begin
        @over.lock(key, ttl: 600) { |lease| fails(ending, lease, CALLS["complete"]) }
        nil
      rescue Dibs::Lost => e
        e.message
      end
      doubt ? assert_match(/may have ended while its block ran: its complete was sent and not answered/, said) : assert_nil(said)
      assert_free key
    end
  end

  def test_the_end_of_a_block_makes_an_abandon_or_undo_again
    { "abandon" => 2, "undo" => 1 }.each do |name, attempt|
      key = "#{@key} #{name}"
      assert_raises(Dibs::Lost) do
        @over.lock(key, ttl: 600) do |lease|
          @line.say("settle", Line.response("502 Bad Gateway", PAGE, "<p>"), false)
          Dibs::Tries.stub(:new, Once) { assert_raises(Dibs::Unavailable) { CALLS[name].(lease) } }
          @line.forward
        end
      end
      @keys.lock(key) { |lease| assert_equal attempt, lease.attempt }
    end
  end

  def test_a_result_that_may_be_stored
    @line.cut("settle", 2)
    error = Dibs::Tries.stub(:new, Once) { assert_raises(Dibs::NotKept) { @over.once(@key) { 1 } } }
    assert_equal 1, error.message.scan("dibs: ").size
    assert_equal 1, @keys.once(@key) { 2 }
  end

  def test_a_server_that_is_away_did_nothing
    lease = @over.acquire(@key, ttl: 600)
    @line.close
    Dibs::Tries.stub(:new, Once) do
      CALLS.each_value do |call|
        assert_raises(Dibs::Unavailable) { call.(lease) }
        assert lease.held?
      end
      assert_raises(Dibs::Unavailable) { lease.release }
    end
    refute lease.held?
  end

  # A server that is away does not make its call a repeated one.
  def test_what_another_server_lost_is_lost
    a = Server.new(listen: "127.0.0.1:0")
    b = Server.new(listen: "127.0.0.1:0", store: a.store)
    both = "#{a.url},#{b.url.delete_prefix("http://")}"
    keys, others = Dibs.connect(both), Dibs.connect(both)
    lease = keys.acquire(@key, ttl: 600)
    b.keys.send(:local).call("settle", [lease.named])
    ticket = others.reserve("#{@key}/2")
    b.keys.cancel(ticket)
    a.kill
    assert_raises(Dibs::Lost) { lease.release }
    assert_raises(Dibs::Lost) { others.cancel(ticket) }
  ensure
    [keys, others].each { |k| k&.close }
    [a, b].each { |s| s&.stop }
  end
end
