# frozen_string_literal: true

require_relative "support"
require "active_job"

ActiveJob::Base.logger = Logger.new(File::NULL)

# Jobs is a queue in memory, with workers that take any job.
class Jobs
  attr_reader :list

  def initialize
    @list = Queue.new
  end

  def enqueue(job)
    @list << job.serialize
  end

  def enqueue_at(job, _at)
    @list << job.serialize
  end

  # work runs jobs in so many threads until none is left.
  def work(threads)
    running = Queue.new
    Array.new(threads) do
      Thread.new do
        loop do
          running << 1
          data = begin
            @list.pop(true)
          rescue ThreadError
            nil
          end
          ActiveJob::Base.execute(data) if data
          running.pop
          break if @list.empty? && running.empty?

          sleep 0.005 unless data
        end
      end
    end.each(&:join)
  end
end

class JobTest < Case
  # Base is a job whose runs are noted.
  class Base < ActiveJob::Base
    include Dibs::ActiveJob
    dibs_key(wait: 0.05, retry_in: 0.01) { |key, *| key }

    class << self
      attr_accessor :runs
    end

    def perform(_key, number, *)
      Base.runs << [number, executions, dibs_lease&.held?]
    end
  end

  class Failing < Base
    retry_on(KeyError, wait: 0, attempts: 3)

    def perform(_key, number, *)
      super
      raise KeyError if executions < 3
    end
  end

  class Discarded < Base
    discard_on(KeyError)

    def perform(*)
      super
      raise KeyError
    end
  end

  class Stopped < Base
    before_enqueue { throw :abort }
  end

  # Shutdown is what Sidekiq raises in its workers.
  class Shutdown < Interrupt; end

  class Long < Base
    def perform(*)
      super
      sleep if executions == 1
    end
  end

  # Halted is halted by a callback outside of the one that redeems the place.
  class Outer < ActiveJob::Base
    before_perform { throw :abort if arguments[1] == 1 }
  end

  class Halted < Outer
    include Dibs::ActiveJob
    dibs_key(wait: 0.05, retry_in: 0.01) { |key, *| key }

    def perform(*) = raise("it runs")
  end

  # Within is halted by a callback inside of it.
  class Within < Base
    before_perform { throw :abort }
  end

  class Undone < Base
    discard_on(ActiveJob::DeserializationError)
  end

  class Again < Base
    def perform(_key, number, *)
      super
      retry_job(wait: 0) if executions == 1
    end
  end

  class Own < Base
    def perform(key, *)
      Dibs.default.lock("#{key}/other", wait: 0) { nil }
    end
  end

  class Keyless < ActiveJob::Base
    include Dibs::ActiveJob

    def perform; end
  end

  class Symbolic < Base
    dibs_key { |*| :key }
  end

  def setup
    super
    Dibs.default = @keys
    Base.runs = Queue.new
    @jobs = Jobs.new
    ActiveJob::Base.queue_adapter = @jobs
  end

  # worker runs a job in a thread of its own.
  def worker(data)
    Thread.new do
      ActiveJob::Base.execute(data)
    rescue Exception # rubocop:disable Lint/RescueException
      nil
    end
  end

  def runs
    Array.new(Base.runs.size) { Base.runs.pop }
  end

  def test_jobs_run_in_the_order_in_which_they_were_enqueued_and_waiting_uses_no_attempt
    6.times { |i| Base.perform_later(@key, i) }
    data = Array.new(6) { @jobs.list.pop }
    data.reverse_each { |d| @jobs.list << d }
    @jobs.work(3)
    assert_equal 6.times.map { |i| [i, 1, true] }, runs
    assert_free
  end

  def test_a_job_that_fails_and_is_tried_again_keeps_its_place
    Failing.perform_later(@key, 1)
    Base.perform_later(@key, 2)
    @jobs.work(2)
    assert_equal [[1, 1, true], [1, 2, true], [1, 3, true], [2, 1, true]], runs
    assert_free
  end

  def test_a_job_that_fails_for_good_gives_its_place_back
    Discarded.perform_later(@key, 1)
    Base.perform_later(@key, 2)
    @jobs.work(1)
    assert_equal [[1, 1, true], [2, 1, true]], runs
    assert_free
  end

  def test_a_job_that_is_not_enqueued_leaves_no_place
    Stopped.perform_later(@key, 1)
    assert_empty @jobs.list
    assert_free
    def @jobs.enqueue(_job) = raise(IOError)
    assert_raises(IOError) { Base.perform_later(@key, 1) }
    assert_free
  end

  # Deferred is enqueued when the transaction commits, as by enqueue_after_transaction_commit of Rails 7.2.
  class Deferred < Base
    def successfully_enqueued? = true
  end

  def test_a_job_that_is_enqueued_when_the_transaction_commits_has_its_place_before
    commits = []
    @jobs.define_singleton_method(:enqueue) { |job| job.is_a?(Deferred) ? commits << -> { super(job) } : super(job) }
    Deferred.perform_later(@key, 1)
    Base.perform_later(@key, 2)
    commits.each(&:call)
    @jobs.work(1)
    assert_equal [[1, 1, true], [2, 1, true]], runs
    assert_free
  end

  # STOPS are how a worker is told to stop. Then the queue has the job again, as it was.
  STOPS = { "Shutdown" => ->(t) { t.raise(Shutdown) }, "Interrupt" => ->(t) { t.raise(Interrupt) }, "SIGTERM" => ->(t) { t.raise(SignalException, "TERM") },
            "exit" => ->(t) { t.raise(SystemExit) }, "a kill" => :kill.to_proc }.freeze

  def test_a_worker_that_is_told_to_stop_keeps_the_place
    STOPS.each do |name, stop|
      key = "#{@key}/#{name}"
      Long.perform_later(key, 1)
      Base.perform_later(key, 2)
      data = @jobs.list.pop
      thread = worker(data)
      assert_equal [1, 1, true], Timeout.timeout(LIMIT) { Base.runs.pop }
      stop.call(thread)
      thread.join
      assert_equal 2, @server.entry(key).fetch("reserved"), name
      @jobs.list << data.merge("executions" => 1)
      @jobs.work(1)
      assert_equal [[1, 2, true], [2, 1, true]], runs, name
      assert_free key
    end
  end

  def test_a_worker_that_is_told_to_stop_without_a_server_keeps_the_place
    line = Line.new(@server)
    Dibs.default = over = Dibs.connect(line.url)
    Long.perform_later(@key, 1)
    data = @jobs.list.pop
    thread = worker(data)
    Base.runs.pop
    line.say("settle", Line.problem("503 Service Unavailable", "stopping"), false)
    Dibs::Tries.stub(:new, Class.new { def self.again? = false }) do
      thread.raise(Shutdown)
      thread.join
    end
    line.forward
    wait("the lease has ended, and the place is there") { (e = @server.entry(@key)) && e["state"] != "held" && e["reserved"] == 1 }
  ensure
    over&.close
    line&.close
  end

  def test_a_worker_that_is_told_to_stop_while_it_waits_keeps_the_place
    lease = @keys.acquire(@key)
    Base.perform_later(@key, 1)
    thread = worker(@jobs.list.pop)
    wait("it waits or was enqueued again") { @server.waiters(@key) == 1 || !thread.alive? }
    thread.raise(Shutdown)
    thread.join
    wait("nobody waits at the place, which stands") { @server.entry(@key).fetch("reserved") == 1 }
    lease.release
  end

  # A job that has ended gives its place up, although it did not come to the callback that redeems it.
  def test_a_job_that_ends_before_its_turn_gives_its_place_up
    [Halted, Within].each do |job|
      job.perform_later("#{@key}/#{job}", 1)
      ActiveJob::Base.execute(@jobs.list.pop)
      assert_free "#{@key}/#{job}"
    end
    { Undone => nil, Base => ActiveJob::DeserializationError }.each do |job, error|
      key = "#{@key}/#{job}"
      job.perform_later(key, 1)
      data = @jobs.list.pop
      data["arguments"] << { "_aj_globalid" => "gid://app/Gone/1" }
      error ? assert_raises(error) { ActiveJob::Base.execute(data) } : ActiveJob::Base.execute(data)
      assert_free key
    end
    assert_empty runs
  end

  def test_a_job_that_enqueues_itself_again_keeps_its_place
    Again.perform_later(@key, 1)
    Base.perform_later(@key, 2)
    @jobs.work(1)
    assert_equal [[1, 1, true], [1, 2, true], [2, 1, true]], runs
    assert_free
  end

  # Without a server the job did not have its turn, so what the queue runs again has its place.
  def test_a_job_that_could_not_ask_keeps_its_place
    Base.perform_later(@key, 1)
    data = @jobs.list.pop
    line = Line.new(@server)
    Dibs.default = over = Dibs.connect(line.url)
    line.say("claim", Line.problem("401 Unauthorized", "unauthorized"), false)
    assert_raises(Dibs::Unauthorized) { ActiveJob::Base.execute(data) }
    over.flush
    assert_equal 1, @server.entry(@key)&.fetch("reserved")
    line.forward
    ActiveJob::Base.execute(data)
    assert_free
  ensure
    over&.close
    line&.close
  end

  def test_perform_now_of_an_enqueued_job_leaves_its_place
    job = Base.new(@key, 1)
    Base.dibs_key(wait: 0.05, retry_in: 0.01, grace: 0.01) { |key, *| key }
    job.enqueue
    job.perform_now
    ActiveJob::Base.execute(@jobs.list.pop)
    assert_equal 2, runs.size
    assert_free
  ensure
    Base.dibs_key(wait: 0.05, retry_in: 0.01) { |key, *| key }
  end

  def test_perform_now_waits_for_its_turn
    lease = @keys.acquire(@key)
    thread = Thread.new { Base.perform_now(@key, 1) }
    wait("it waits") { @server.waiters(@key) == 1 }
    lease.release
    thread.join
    assert_equal [[1, 1, true]], runs
    assert_free
  end

  def test_a_held_key_of_the_jobs_own_is_its_error
    @keys.lock("#{@key}/other") do
      Own.perform_later(@key, 1)
      assert_raises(Dibs::Held) { ActiveJob::Base.execute(@jobs.list.pop) }
    end
    assert_empty @jobs.list
    assert_free
  end

  def test_a_job_without_a_key_is_refused
    assert_match(/dibs_key/, assert_raises(Dibs::Error) { Keyless.perform_later }.message)
    assert_match(/String/, assert_raises(ArgumentError) { Symbolic.perform_later(@key, 1) }.message)
  end
end
