# frozen_string_literal: true

require_relative "support"

# What is asked at the same time goes in one call, and each caller's time is its own.
class BatchTest < Case
  def setup
    super
    @line = Line.new(@server)
    @over = Dibs.connect(@line.url, ttl: 600)
    @over.lock("#{@key}/first") { nil } # it has a connection
  end

  def teardown
    @over.close
    @line.close
    super
  end

  # Held back are the answers to the calls of a verb, each until the test lets it go.
  def hold(verb)
    @came, @go = Queue.new, Queue.new
    came, go = @came, @go
    @line.before(verb) { came << 1; go.pop }
  end

  def came
    Timeout.timeout(LIMIT) { @came.pop }
  end

  # start runs the block in a thread.
  def start(*arguments, &block)
    Thread.new(*arguments, &block).tap { |t| t.report_on_exception = false }
  end

  # queued waits until this many wait for a call that is under way.
  def queued(count, batch = :@claims)
    queue = -> { @over.send(:local).instance_variable_get(batch).instance_variable_get(:@queue).size }
    wait("#{count} are queued, and not #{queue.call}") { queue.call == count }
  end

  # slow makes a call that is under way keep the others waiting, however long it takes.
  def slow(seconds)
    before = Dibs::Batch.send(:remove_const, :SLOW)
    Dibs::Batch.const_set(:SLOW, seconds)
    yield
  ensure
    Dibs::Batch.send(:remove_const, :SLOW)
    Dibs::Batch.const_set(:SLOW, before)
  end

  # crowd has a claim under way, and this many behind it.
  def crowd(count)
    hold("claim")
    slow(LIMIT) do
      first = start { @over.acquire("#{@key}/a") }
      came
      rest = Array.new(count) { |i| start { @over.acquire("#{@key}/#{i}") }.tap { queued(i + 1) } }
      @go << 1
      first.value
      came # the call of the rest
      yield rest
    end
  end

  def test_what_is_asked_meanwhile_is_the_next_call
    crowd(20) do |rest|
      @go << 1
      leases = rest.map(&:value)
      leases.each(&:check)
      assert_empty @came
      hold("settle")
      threads = leases.map.with_index do |lease, i|
        start { lease.release }.tap { i.zero? ? came : queued(i, :@settlements) }
      end
      2.times { @go << 1 }
      threads.each(&:join)
      assert_equal 1, @came.size
      20.times { |i| assert_free "#{@key}/#{i}" }
    end
  end

  STRIKES = { "an exception" => ->(t) { t.raise(KeyError) }, "Timeout" => ->(t) { t.raise(Timeout::Error) }, "a kill" => :kill.to_proc }.freeze

  STRIKES.each do |name, strike|
    define_method("test_#{name.tr(" ", "_")}_of_the_caller_that_leads_is_its_own") do
      crowd(3) do |rest|
        strike.(rest[0])
        rest[0].join rescue nil
        2.times { @go << 1 }
        assert_equal [1, 1], rest[1..].map { |t| t.value.check.attempt }
        assert_free "#{@key}/0"
      end
    end

    # Its claim is carried out, so it is undone after the answer.
    define_method("test_#{name.tr(" ", "_")}_of_a_caller_that_rides_is_its_own") do
      crowd(3) do |rest|
        strike.(rest[1])
        rest[1].join rescue nil
        undoer = @over.send(:local).undoer
        undoer.send(:pass, LIMIT)
        assert_equal [nil], undoer.instance_variable_get(:@entries).map(&:again), "it was undone before its answer"
        @go << 1
        [0, 2].each { |i| rest[i].value.check }
        assert_free "#{@key}/1"
      end
    end
  end

  def test_a_caller_that_leaves_the_queue_is_not_sent
    hold("claim")
    slow(LIMIT) do
      first = start { @over.acquire("#{@key}/a") }
      came
      other = start { @over.acquire("#{@key}/b") }
      queued(1)
      other.kill.join
      queued(0)
      @go << 1
      first.value
      assert_empty @came
    end
  end

  # One element is why the call is refused, and the others are done.
  def test_a_call_that_is_refused_is_made_one_by_one
    dir = Support.dir
    File.write("#{dir}/tokens", "app #{Digest::SHA256.hexdigest("secret")} shop use\n")
    server = Server.new("--tokens", "#{dir}/tokens", listen: "127.0.0.1:0")
    line = Line.new(server, tcp: true)
    @over.close
    @over = Dibs.connect(line.url.sub("://", "://:secret@"), ttl: 600)
    elsewhere = Dibs::Ticket.write(@keys.send(:claim, @key, namespace: "elsewhere"))
    leases = Array.new(3) { |i| @over.acquire("#{@key}/#{i}") }
    @came, @go = Queue.new, Queue.new
    held = [@came, @go]
    line.before("settle") { held[0] << 1; held[1].pop }
    slow(LIMIT) do
      first = start { leases[0].release }
      came
      refused = start { @over.cancel(elsewhere) }
      queued(1, :@settlements)
      rest = leases[1..].map.with_index { |lease, i| start { lease.release }.tap { queued(i + 2, :@settlements) } }
      8.times { @go << 1 }
      [first, *rest].each(&:join)
      assert_raises(Dibs::Forbidden) { refused.value }
    end
    3.times { |i| refute @over.held?("#{@key}/#{i}") }
  ensure
    line&.close
    server&.stop
  end

  def test_a_renewal_that_is_refused_is_not_that_of_the_others
    leases = Array.new(3) { |i| @over.acquire("#{@key}/#{i}") }
    leases[1].define_singleton_method(:named) { super().merge(token: "none") }
    @over.send(:local).renewer.send(:renew, leases, LIMIT)
    dues = leases.map(&:due)
    assert_operator dues[1], :<, dues[0]
    assert_operator dues[1], :<, dues[2]
  end

  def test_the_error_of_one_half_of_a_refused_call_is_not_that_of_the_other
    leases = Array.new(4) { |i| @over.acquire("#{@key}/#{i}") }
    local, line = @over.send(:local), @line
    said = [Line.problem("403 Forbidden", "forbidden"), nil, Line.problem("429 Too Many Requests", "overloaded")]
    local.define_singleton_method(:call) do |*elements, **options|
      answer = said.shift
      answer ? line.say("renew", answer, false) : line.forward
      super(*elements, **options)
    end
    local.renewer.send(:renew, leases, LIMIT)
    dues = leases.map(&:due)
    assert_operator dues[2..].max, :<, dues[..1].min
  end

  # They are longer than a call may be.
  def test_records_in_the_background_are_written_in_several_calls
    leases = Array.new(20) { |i| @over.acquire("#{@key}/#{i}") }
    hold("settle")
    leases[0].complete_later("x" * 1_000_000, 60)
    came
    leases[1..].each { |lease| lease.complete_later("x" * 1_000_000, 60) }
    200.times { @go << 1 }
    20.times { |i| wait("#{i} is recorded") { !@keys.held?("#{@key}/#{i}") } }
  end

  # Without that the test does not end.
  def test_a_slow_call_holds_nobody_up
    hold("claim")
    first = start { @over.acquire("#{@key}/a") }
    came
    others = Array.new(2) { |i| start { @over.acquire("#{@key}/#{i}") } }
    came
    @line.before("claim") { nil }
    @over.acquire("#{@key}/3").check
    2.times { @go << 1 }
    3.times { @go << 1 }
    [first, *others].each { |t| t.value.check }
  end

  def test_a_large_element_goes_alone
    hold("settle")
    leases = Array.new(2) { |i| @over.acquire("#{@key}/#{i}") }
    slow(LIMIT) do
      first = start { leases[0].release }
      came
      second = start { leases[1].complete("x" * 100_000) }
      came
      2.times { @go << 1 }
      [first, second].each(&:join)
    end
  end

  # Its own time is over, and the others' call is not.
  def test_each_caller_has_its_own_time
    hold("claim")
    batch = @over.send(:local).instance_variable_get(:@claims)
    claim = ->(name) { @over.send(:claim, "#{@key}/#{name}").wire("try") }
    slow(LIMIT) do
      first = start { batch.call(claim["a"], LIMIT) }
      came
      assert_raises(Dibs::Unavailable) { batch.call(claim["b"], 0.05) }
      now = Dibs.now
      batch.instance_variable_set(:@clock, Object.new.tap { |clock| clock.define_singleton_method(:now) { now } })
      second = start { batch.call(claim["c"], 600) }
      queued(1)
      third = start { batch.call(claim["d"], 6000) }
      queued(2)
      @go << 1
      first.value
      came # the call of both, which the second leads
      now += 1000
      @line.cut("claim", 2)
      3.times { @go << 1 }
      assert_raises(Dibs::Unavailable) { second.value }
      answer, _, again = third.value
      assert_equal "granted", answer["state"]
      refute_nil again
    end
  end

  def test_a_child_does_not_wait_for_a_call_of_its_parent
    hold("claim")
    slow(LIMIT) do
      first = start { @over.acquire("#{@key}/a") }
      came
      rest = start { @over.acquire("#{@key}/b") }
      queued(1)
      pid = fork do
        @over.lock("#{@key}/child", &:check)
        exit! 0
      end
      came
      @go << 1
      @go << 1
      assert_predicate ended(pid), :success?
      @go << 1
      [first, rest].each { |t| t.value.check }
    end
  end

  def test_the_end_of_the_program_leaves_nothing
    ["exit", "Process.kill(:TERM, $$); sleep", "abort"].each_with_index do |way, i|
      key = "#{@key} #{i}"
      pid, _, from = script(@server.url, <<~RUBY)
        $stderr.reopen(File::NULL)
        keys, begun = Dibs.connect, Queue.new
        12.times { |n| Thread.new { loop { keys.lock("#{key} \#{n % 6}", ttl: 600) { begun << 1 } } } }
        50.times { begun.pop }
        puts "begun"
        #{way}
      RUBY
      assert_equal "begun", line(from)
      ended(pid)
      6.times { |n| assert_free "#{key} #{n}" }
    end
  end
end
